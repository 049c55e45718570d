"""How results reach people and scripts: rich tables on a terminal, plain text in a pipe, JSON or YAML on request."""

import json
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn

import typer
import yaml
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from egpu.api.text import escaped

ROOMY_COLUMNS = 120
"""A terminal with fewer gets tables without bars, and shorter names of models."""
GAP = 2
"""Columns of the terminal between two of a table."""
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
        fitting = table if output is Format.WIDE else fit(table)
        console.print(render(fitting), crop=False, soft_wrap=True)
        if gone := [column for column in table.columns if column not in fitting.columns]:
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
    rows = ([escaped(_text(cell)) for cell in row] for row in table.rows)
    lines = [[column.upper() for column in table.columns], *rows]
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
    """A line for people on stdout, in which others' words may be."""
    console.print(Text(escaped(message, keep="\n"), style=style), highlight=False, soft_wrap=True)


def note(message: str, *, label: str = "", style: str = "red") -> None:
    """A line for people on stderr, in which others' words may be; `label` comes first, in a colour."""
    text = Text(escaped(message, keep="\n"))
    errors.print(Text.assemble((label, style), " ", text) if label else text, highlight=False, soft_wrap=True)


def fail(message: str, *, code: int = EXIT_FAILED) -> NoReturn:
    """One clear line on stderr, and the exit code."""
    note(message, label="error:")
    raise typer.Exit(code)


def fit(table: Table) -> Table:
    """Without as many of its spare columns as the terminal is too narrow for."""
    for column in table.spare:
        if _total(least for _, least in _widths(table)) <= console.width:
            break
        table = table.without((column,))
    return table


def render(table: Table) -> RichTable:
    """The table as a terminal shows it. Cells are broken between words only: where the widest words do not fit, nothing
    is broken, and lines go on behind the edge, as kubectl's do."""
    rich = RichTable(title=table.title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    ranges = _widths(table)
    widths = [most for most, _ in ranges]
    if _total(least for _, least in ranges) <= console.width:
        while _total(widths) > console.width:
            slack = [width - least for width, (_, least) in zip(widths, ranges, strict=True)]
            widths[slack.index(max(slack))] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        justify = "right" if column in table.right else "left"
        rich.add_column(column.upper(), justify=justify, min_width=width, max_width=width)
    for row in _shown(table):
        rich.add_row(*(Text(text, style=STYLES.get(text, "")) for text in row))
    return rich


def _shown(table: Table) -> list[list[str]]:
    narrow = console.width < ROOMY_COLUMNS
    return [[escaped(_text(cell, narrow=narrow)) for cell in row] for row in table.rows]


def _widths(table: Table) -> list[tuple[int, int]]:
    """Of each column, in cells of the terminal: its longest text, and its longest word."""
    columns = zip(*([column.upper() for column in table.columns], *_shown(table)), strict=True)
    return [(max(map(cell_len, texts)), max(cell_len(word) for text in texts for word in text.split() or [""]))
            for texts in columns]  # fmt: skip


def _total(widths: Iterable[int]) -> int:
    """How wide a table with such columns is."""
    each = list(widths)
    return sum(each) + GAP * (len(each) - 1)
