"""Calls of programs with compiled kernels: tables in docs/reference/programs.md, and docs/reference/program-calls.md.

Both come from the last recorded walks. Record them: make walks RECORD=--record
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from generate import ROOT
from markdown_table import put_between, table
from walk_records import Walk, read_text, walk_of

PROGRAMS: Final = ROOT / "docs" / "reference" / "programs.md"
CALLS: Final = ROOT / "docs" / "reference" / "program-calls.md"
BEGIN, END = "<!-- walks: begin -->", "<!-- walks: end -->"
MIB: Final = 1 << 20

HEAD: Final = """# Calls of programs

Driver functions that each program of [Programs](programs.md#calls-of-programs-with-compiled-kernels) calls, and how
often. Bare: calls of the program and its libraries without Elastic GPU. Slice: calls that reach the card's driver, with
those of the interposer. An empty cell means no call. Written by `make generate` from the recorded walks.

"""

Programs = Mapping[str, Mapping[str, Any]]
"""By name: what scripts/wheel_walks.yaml says of a program, and `places` with its walks."""


def files() -> Mapping[Path, str | None]:
    """Return both documents."""
    programs = _programs()
    text = put_between(PROGRAMS, BEGIN, END, f"\n\n{summary(programs)}")
    return {PROGRAMS: text, CALLS: HEAD + functions(programs)}


def _programs() -> Programs:
    """Return the programs with their recorded walks."""
    said: Mapping[str, Any] = yaml.safe_load((ROOT / "scripts" / "wheel_walks.yaml").read_text())
    recorded = read_text()
    return {name: one | recorded[name] for name, one in said.items() if name in recorded}


def summary(programs: Programs) -> str:
    """Return the tables of figures, of steps that do not go through, and of what was refused."""
    head = (
        "program",
        "place",
        "steps that go through",
        "driver functions",
        "calls",
        "on the wire",
        "images",
        "kernels",
        "run",
    )
    walks = list(_walks(programs))
    lost = [((one["title"], place, error), step) for one, place, walk in walks for step, error in walk.lost().items()]
    refused = [((one["title"], line), place) for one, place, walk in walks for line in walk.refused]
    return "".join(
        [
            table(head, (_figures(one, place, walk) for one, place, walk in walks)),
            "Steps that do not go through:\n\n",
            table(("program", "place", "error", "steps"), _grouped(lost)),
            "Calls that were refused, in the words of the program's output or the server's log:\n\n",
            table(("program", "line", "places"), _grouped(refused)),
        ]
    )


def functions(programs: Programs) -> str:
    """Return the table of calls by function."""
    walks = [(one["title"], place, walk.functions()) for one, place, walk in _walks(programs) if not walk.sessions]
    names = sorted({name for *_, calls in walks for name in calls})
    head = ("function", *(f"{title}, {place}" for title, place, _ in walks))
    return table(head, ((f"`{name}`", *(_count(calls.get(name)) for *_, calls in walks)) for name in names))


def _walks(programs: Programs) -> Iterator[tuple[Mapping[str, Any], str, Walk]]:
    for one in programs.values():
        for place in ("bare", "slice", "pool"):
            if place in one["places"]:
                yield one, place, walk_of(one["places"][place])


def _grouped(found: Iterable[tuple[tuple[str, ...], str]]) -> list[tuple[str, ...]]:
    """Return a row for each key: its text, which is last, as code, and then all parts of the key."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, part in found:
        groups.setdefault(key, []).append(part)
    return [(*key[:-1], _code(key[-1]), ", ".join(parts)) for key, parts in groups.items()]


def _figures(one: Mapping[str, Any], place: str, walk: Walk) -> tuple[str, ...]:
    figures = walk.figures()
    through = f"{len(walk.steps) - len(walk.lost())} of {len(walk.steps)}"
    size = f"{figures['bytes'] / MIB:,.1f} MiB" if "bytes" in figures else ""
    counts = (_count(figures.get(name)) for name in ("functions", "calls"))
    loads = (_count(figures[name]) for name in ("images", "kernels"))
    return f"{one['title']} {one['version']}", place, through, *counts, size, *loads, one["places"][place]["date"]


def _count(number: int | None) -> str:
    return f"{number:,}" if number is not None else ""


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"
