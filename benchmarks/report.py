"""Options of benchmarks, and their output: progress on stderr, tables, goals."""

import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Options:
    """`quick`: a part of the cases, in less than a minute. `peer`: another interposer (.so) to measure beside ours.
    `kubernetes`: a directory of Kubernetes's own programs, to place pods with as well."""

    quick: bool = False
    peer: Path | None = None
    kubernetes: Path | None = None


@dataclass
class Report:
    """Prints as it goes and keeps the figures for JSON."""

    options: Options
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    verdicts: list[tuple[str, str, str, bool]] = field(default_factory=list[tuple[str, str, str, bool]])
    console: Console = field(default_factory=lambda: Console(width=None if sys.stdout.isatty() else 150))

    def progress(self, what: str) -> None:
        """Print one line per step, on stderr: stdout is for tables."""
        print(f"… {what}", file=sys.stderr, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table; plain text unless on a terminal."""
        self.console.print(title, style="bold", soft_wrap=True, highlight=False)
        made = Table(box=None, pad_edge=False)
        for number, column in enumerate(columns):
            made.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
        for row in rows:
            made.add_row(*map(_text, row))
        self.console.print(made)
        self.console.print()

    def verdict(self, what: str, figure: str, goal: str, met: bool) -> None:
        """Print a goal of the design, and whether this run reached it."""
        self.verdicts.append((what, figure, goal, met))

    def summary(self) -> None:
        """Print all goals at the end."""
        if not self.verdicts:
            return
        rows = [(what, figure, goal, "met" if met else "NOT MET") for what, figure, goal, met in self.verdicts]
        self.table("goals", ("", "figure", "goal", ""), rows)
        self.figures["goals"] = [
            {"what": what, "figure": figure, "goal": goal, "met": met} for what, figure, goal, met in self.verdicts
        ]


def _text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def median(values: Iterable[float]) -> float:
    """Return the median of rounds: other programs of the machine disturb only some of them."""
    return statistics.median(values)
