"""Output of results: rich tables on a terminal, plain text in a pipe, JSON or YAML on request."""

import json
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn

import typer
import yaml
from rich.console import Console
from rich.text import Text

from egpu.api.text import escaped
from egpu.cli.layout import Grid, wrapped

ROOMY_COLUMNS = 120
"""On a terminal with fewer columns, tables have no bars and shorter model names."""
EXIT_FAILED = 1
EXIT_USAGE = 2


class Format(StrEnum):
    """The values of `-o`. `wide` is the table with all its columns."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def for_people(self) -> bool:
        """Return whether this is a table or text, not a format for programs."""
        return self in (Format.TABLE, Format.WIDE)


console = Console()
errors = Console(stderr=True)

STYLES: Mapping[str, str] = {
    "Running": "green",
    "Succeeded": "green",
    "Bound": "green",
    "Available": "green",
    "healthy": "green",
    "Ready": "green",
    "ok": "green",
    "passed": "green",
    "Pending": "yellow",
    "Released": "yellow",
    "unseen": "yellow",
    "limited": "yellow",
    "cordoned": "yellow",
    "waits": "yellow",
    "Failed": "red",
    "failed": "red",
    "Lost": "red",
    "unhealthy": "red",
    "NotReady": "red",
    "wrong": "red",
}
"""Words for states, and their styles on a terminal."""
COLOURS: Mapping[str, int] = {"green": 32, "yellow": 33, "red": 31}
"""The terminal's numbers of these colours."""


@dataclass(frozen=True)
class Cell:
    """The text of one cell of a table: `full` if there is room, `short` on a narrow terminal."""

    full: str
    short: str


@dataclass
class Table:
    """Rows for people. `records` has the same data for scripts: one mapping per row, with units in the keys."""

    columns: Sequence[str]
    rows: list[Sequence[str | Cell]] = field(default_factory=list[Sequence[str | Cell]])
    records: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    title: str = ""
    right: frozenset[str] = frozenset()
    """Right-aligned columns: numbers."""
    wide: frozenset[str] = frozenset()
    """Columns that are shown only with `-o wide`."""
    spare: Sequence[str] = ()
    """Columns that are left out on a narrow terminal, in this order."""
    sentences: bool = False
    """Cells have sentences, which wrap in a pipe too. Scripts read the records."""

    def add(self, row: Sequence[str | Cell], record: Mapping[str, Any]) -> None:
        """Add a row and its record."""
        self.rows.append(row)
        self.records.append(record)

    def narrow(self) -> "Table":
        """Return the table without the columns of `-o wide`."""
        return replace(self.without(self.wide), wide=frozenset())

    def without(self, gone: Container[str]) -> "Table":
        """Return the table without these columns. The records stay as they are."""
        kept = [place for place, column in enumerate(self.columns) if column not in gone]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in kept], rows=rows)

    def where(self, wanted: Callable[[Mapping[str, Any]], bool]) -> "Table":
        """Return the table with only the rows whose record is wanted."""
        kept = [place for place, record in enumerate(self.records) if wanted(record)]
        rows, records = [self.rows[place] for place in kept], [self.records[place] for place in kept]
        return replace(self, rows=rows, records=records)


def show(table: Table, output: Format = Format.TABLE, *, empty: str = "nothing found") -> None:
    """Print the table on stdout in the requested format. Without rows, print `empty` on stderr."""
    if not output.for_people:
        show_value(list(table.records), output)
        return
    if output is Format.TABLE:
        table = table.narrow()
    if not table.rows:
        errors.print(empty, style="dim")
    elif console.is_terminal or table.sentences:
        grid = show_rows(table, spared=output is not Format.WIDE, stacked=output is not Format.WIDE)
        if gone := [name for name in table.columns if name not in grid.names]:
            errors.print(f"terminal too narrow for {', '.join(gone)}. Use -o wide to show all", style="dim")
    else:
        sys.stdout.write(plain(table))


def show_value(value: Any, output: Format) -> None:
    """Print plain values (dicts, lists, scalars) as JSON or YAML, in ASCII if they contain invisible characters."""
    if output is Format.YAML:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
        shown = text if escaped(text, keep="\n") == text else yaml.safe_dump(value, sort_keys=False)
    else:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        shown = (text if escaped(text, keep="\n") == text else json.dumps(value, indent=2)) + "\n"
    sys.stdout.write(shown)


def plain(table: Table) -> str:
    """Return aligned columns as kubectl prints them: no colours, no borders, one line per row."""
    lines = [[column.upper() for column in table.columns], *_shown(table)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    return "".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def bar(used: float, total: float, width: int = 10) -> str:
    """Return a small gauge, such as ``████░░░░░░``. A share above the total shows as full."""
    if total <= 0:
        return "░" * width
    filled = min(width, round(width * used / total))
    # A small share must not look empty.
    filled = max(filled, 1) if used > 0 else filled
    return "█" * filled + "░" * (width - filled)


def gauge(used: float, total: float, text: str) -> Cell:
    """Return a small gauge with its figures; on a narrow terminal only the figures."""
    return Cell(f"{bar(used, total)} {text}", text.lstrip())


def _text(cell: str | Cell, *, narrow: bool = False) -> str:
    if isinstance(cell, str):
        return cell
    return cell.short if narrow else cell.full


def say(message: str, *, style: str = "") -> None:
    """Print lines for people on stdout, with untrusted text escaped. On a terminal, wrap them between words."""
    lines = escaped(message, keep="\n").split("\n")
    shown = wrapped(lines, console.width) if console.is_terminal else lines
    console.print(Text("\n".join(shown), style=style), highlight=False, soft_wrap=True)


def note(message: str, *, label: str = "", style: str = "red") -> None:
    """Print a line for people on stderr, with untrusted text escaped. `label` comes first, in a colour."""
    text = Text(escaped(message, keep="\n"))
    errors.print(Text.assemble((label, style), " ", text) if label else text, highlight=False, soft_wrap=True)


def fail(message: str, *, code: int = EXIT_FAILED) -> NoReturn:
    """Print one error line on stderr and exit with the code."""
    note(message, label="error:")
    raise typer.Exit(code)


def show_rows(table: Table, *, spared: bool = False, stacked: bool = False, above: Grid | None = None) -> Grid:
    """Print the table for the terminal's width and return its layout. `spared`: leave out spare columns if necessary.
    `stacked`: if the other columns are still too wide, print each row as a block with all columns. `above`: the layout
    of earlier rows, whose columns these rows continue."""
    width = console.width

    def laid_out(*, narrow: bool) -> tuple[Grid, list[str]]:
        grid = Grid.of(table.columns, _shown(table, narrow=narrow))
        if above is not None:
            grid = grid.below(above)
        elif spared:
            grid = grid.fitted(table.spare, width)
        heading = _bold if above is None else None
        return grid, list(grid.lines(width, right=table.right, style=_coloured, heading=heading))

    grid, lines = laid_out(narrow=width < ROOMY_COLUMNS)
    if not grid.fits(width) and width >= ROOMY_COLUMNS:
        found = ((grid, lines), laid_out(narrow=True))
        grid, lines = min(found, key=lambda each: (spared and each[0].too_wide(width), len(each[1])))
    if stacked and grid.too_wide(width):
        whole = Grid.of(table.columns, _shown(table, narrow=width < ROOMY_COLUMNS))
        lines = [*([] if above is None else [""]), *whole.stacked(width, style=_coloured, heading=_bold)]
        grid = whole if above is None else grid
    title = [table.title] if table.title and above is None else []
    console.file.write("".join(f"{line}\n" for line in (*title, *lines)))
    return grid


def _shown(table: Table, *, narrow: bool = False) -> list[list[str]]:
    return [[escaped(_text(cell, narrow=narrow)) for cell in row] for row in table.rows]


def _coloured(text: str, padded: str) -> str:
    colour = STYLES.get(text)
    if colour is None or not _has_colours():
        return padded
    return padded.replace(text, f"\x1b[{COLOURS[colour]}m{text}\x1b[0m")


def _bold(text: str, padded: str) -> str:
    return f"\x1b[1m{padded}\x1b[0m" if _has_colours() else padded


def _has_colours() -> bool:
    return console.color_system is not None and not console.no_color
