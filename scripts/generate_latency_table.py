"""The tables of latency and batch work in docs/internals/isolation-measured.md, from the last recorded figures.

Record a run: python -m benchmarks latency --quick --out benchmarks/recorded/latency.json
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from generate import ROOT
from markdown_table import put_between, table

sys.path.insert(0, str(ROOT))  # for benchmarks
from benchmarks.isolation import NEVER
from benchmarks.latency import WAYS

RECORDED: Final = ROOT / "benchmarks" / "recorded" / "latency.json"
TARGET: Final = ROOT / "docs" / "internals" / "isolation-measured.md"
BEGIN, END = "<!-- latency: begin -->", "<!-- latency: end -->"
CARDS: Final = {"fifo": "first come", "timeslice": "time slices"}
COLUMNS: Final = ("step", "card", "batch kernels", "driver alone: p50 / p99 / p99.9, batch", *WAYS[1:])


def files() -> Mapping[Path, str | None]:
    """Return the document with both tables."""
    found = json.loads(RECORDED.read_text())["latency"]
    text = f"\n\n{_steps(found['latency'])}{_goals(found['goals'])}"
    return {TARGET: put_between(TARGET, BEGIN, END, text)}


def _steps(figures: Sequence[Mapping[str, Any]]) -> str:
    ways = {(*_case(one), one["way"]): one for one in figures}
    cases = sorted({_case(one) for one in figures}, key=lambda case: (case[0] != "5 ms of 50 ms", *case[1:]))
    rows = [(case[0], CARDS[case[1]], _length(case[2]), *(_cell(ways[(*case, way)]) for way in WAYS)) for case in cases]
    return table(COLUMNS, rows)


def _goals(goals: Sequence[Mapping[str, Any]]) -> str:
    rows = [(one["what"], one["figure"], one["goal"], "met" if one["met"] else "not met") for one in goals]
    return table(("goal of turns", "figure", "bound", ""), rows)


def _case(one: Mapping[str, Any]) -> tuple[str, str, int]:
    return one["program"], one["card"], one["kernel_us"]


def _length(kernel_us: int) -> str:
    return f"{kernel_us} µs" if kernel_us < 1000 else f"{kernel_us // 1000} ms"


def _cell(one: Mapping[str, Any]) -> str:
    steps = " / ".join(_times(one[name]) for name in ("p50", "p99", "p99.9"))
    return f"{steps}, {one['batch']:.2f} ({one['of_the_rest']:.2f})"


def _times(value: float) -> str:
    if value == NEVER:
        return "never"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"
