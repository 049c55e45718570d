"""How results reach people and scripts: rich tables on a terminal, plain text in a pipe, JSON or YAML on request."""

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
"""A terminal with fewer gets tables without bars, and shorter names of models."""
EXIT_FAILED = 1
EXIT_USAGE = 2


class Format(StrEnum):
    """What `-o` takes. `wide` is the table with all its columns."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def for_people(self) -> bool:
        """Whether it is a table or text, rather than something that programs read."""
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
    "Pending": "yellow",
    "Released": "yellow",
    "unseen": "yellow",
    "limited": "yellow",
    "cordoned": "yellow",
    "Failed": "red",
    "Lost": "red",
    "unhealthy": "red",
    "NotReady": "red",
    "wrong": "red",
}
"""Words that carry a state, and how a terminal shows them."""
COLOURS: Mapping[str, int] = {"green": 32, "yellow": 33, "red": 31}
"""A terminal's numbers for them."""


@dataclass(frozen=True)
class Cell:
    """What one place of a table shows: `full` where there is room, `short` on a narrow terminal."""

    full: str
    short: str


@dataclass
class Table:
    """Rows for people. `records` is the same for scripts: one mapping a row, with units in the keys."""

    columns: Sequence[str]
    rows: list[Sequence[str | Cell]] = field(default_factory=list[Sequence[str | Cell]])
    records: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    title: str = ""
    right: frozenset[str] = frozenset()
    """Columns of numbers."""
    wide: frozenset[str] = frozenset()
    """Columns that only `wide` shows."""
    spare: Sequence[str] = ()
    """Columns that a terminal too narrow for all does without, the first first."""

    def add(self, row: Sequence[str | Cell], record: Mapping[str, Any]) -> None:
        """One line, in both forms."""
        self.rows.append(row)
        self.records.append(record)

    def narrow(self) -> "Table":
        """Without the columns that only `wide` shows."""
        return replace(self.without(self.wide), wide=frozenset())

    def without(self, gone: Container[str]) -> "Table":
        """The same with these columns less; the records stay as they are."""
        kept = [place for place, column in enumerate(self.columns) if column not in gone]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in kept], rows=rows)

    def where(self, wanted: Callable[[Mapping[str, Any]], bool]) -> "Table":
        """Only the rows whose record is wanted."""
        kept = [place for place, record in enumerate(self.records) if wanted(record)]
        rows, records = [self.rows[place] for place in kept], [self.records[place] for place in kept]
        return replace(self, rows=rows, records=records)


def show(table: Table, output: Format = Format.TABLE, *, empty: str = "nothing found") -> None:
    """Print the table in the wanted form on stdout; `empty` goes to stderr when there is no row."""
    if not output.for_people:
        show_value(list(table.records), output)
        return
    if output is Format.TABLE:
        table = table.narrow()
    if not table.rows:
        errors.print(empty, style="dim")
    elif console.is_terminal:
        grid = show_rows(table, spared=output is not Format.WIDE, stacked=output is not Format.WIDE)
        if gone := [name for name in table.columns if name not in grid.names]:
            errors.print(f"too narrow for {', '.join(gone)}: -o wide shows all", style="dim")
    else:
        sys.stdout.write(plain(table))


def show_value(value: Any, output: Format) -> None:
    """Print plain values (dicts, lists, scalars) as JSON or YAML, in ASCII if there is something not to be seen."""
    if output is Format.YAML:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
        shown = text if escaped(text, keep="\n") == text else yaml.safe_dump(value, sort_keys=False)
    else:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        shown = (text if escaped(text, keep="\n") == text else json.dumps(value, indent=2)) + "\n"
    sys.stdout.write(shown)


def plain(table: Table) -> str:
    """Aligned columns as kubectl prints them: no colours, no borders, one line per row."""
    lines = [[column.upper() for column in table.columns], *_shown(table)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    return "".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def bar(used: float, total: float, width: int = 10) -> str:
    """A small gauge, such as ``████░░░░░░``; a share above the total shows as full."""
    if total <= 0:
        return "░" * width
    filled = min(width, round(width * used / total))
    # Something given out must not look like nothing.
    filled = max(filled, 1) if used > 0 else filled
    return "█" * filled + "░" * (width - filled)


def gauge(used: float, total: float, text: str) -> Cell:
    """A small gauge with its figures; on a narrow terminal the figures alone."""
    return Cell(f"{bar(used, total)} {text}", text.lstrip())


def _text(cell: str | Cell, *, narrow: bool = False) -> str:
    if isinstance(cell, str):
        return cell
    return cell.short if narrow else cell.full


def say(message: str, *, style: str = "") -> None:
    """Lines for people on stdout, in which others' words may be; on a terminal they are broken between words."""
    lines = escaped(message, keep="\n").split("\n")
    shown = wrapped(lines, console.width) if console.is_terminal else lines
    console.print(Text("\n".join(shown), style=style), highlight=False, soft_wrap=True)


def note(message: str, *, label: str = "", style: str = "red") -> None:
    """A line for people on stderr, in which others' words may be; `label` comes first, in a colour."""
    text = Text(escaped(message, keep="\n"))
    errors.print(Text.assemble((label, style), " ", text) if label else text, highlight=False, soft_wrap=True)


def fail(message: str, *, code: int = EXIT_FAILED) -> NoReturn:
    """One clear line on stderr, and the exit code."""
    note(message, label="error:")
    raise typer.Exit(code)


def show_rows(table: Table, *, spared: bool = False, stacked: bool = False, above: Grid | None = None) -> Grid:
    """Print the table as the terminal shows it; returns how. `spared`: it may do without some columns. `stacked`: where
    there is no room for the others either, each row stands by itself, with all of them. `above`: rows that were shown
    before, in whose columns these go on."""
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
