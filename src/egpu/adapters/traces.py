"""Traces as CSV files: openb's columns, and more for card memory and gangs, which `egpu export-trace` writes.

    nodes   sn, cpu_milli, memory_mib, gpu, model [, gpu_memory_mib]
    pods    cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec [, gpu_memory_mib, gang, gpu_idle_percent, name, …]

`gpu_milli` is per card, `gpu_spec` the accepted models joined by `|`; pods with the same `gang` are placed all or none.
`gpu_idle_percent` is the part of its time in which a pod makes no call of CUDA.
Columns not named here are ignored.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from egpu.core.policies.shapes import WHOLE_CARD, Machine, Shape
from egpu_base.errors import InvalidInput

MAX_ROWS: Final = 5_000_000
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


def read_nodes(path: Path) -> list[Machine]:
    """Read every node, in the file's order. Raises InvalidInput naming file and line."""
    machines: list[Machine] = []
    names: set[str] = set()
    for place, row in _rows(path, _NODE_COLUMNS):
        name = row["sn"]
        if name in names:
            raise InvalidInput(place, f"another node has the name {name!r}, too; use each name once")
        names.add(name)
        machines.append(
            Machine(
                name=name,
                cpu_milli=_amount(place, row, "cpu_milli"),
                ram_mib=_amount(place, row, "memory_mib"),
                cards=_amount(place, row, "gpu"),
                model=row["model"] or "",
                card_memory_mib=_amount(place, row, "gpu_memory_mib"),
            )
        )
    if not machines:
        raise InvalidInput(str(path), "the file lists no node")
    return machines


def read_pods(path: Path) -> list[Shape]:
    """Read every pod's shape, in the file's order. Raises InvalidInput naming file and line."""
    shapes: list[Shape] = []
    known: dict[Shape, Shape] = {}
    for place, row in _rows(path, _POD_COLUMNS):
        cards, core = _amount(place, row, "num_gpu"), _amount(place, row, "gpu_milli")
        if cards > 1 and core < WHOLE_CARD:
            raise InvalidInput(place, f"{cards} cards of {core} thousandths each: request several cards as whole cards")
        models = tuple(sorted({model for model in (row.get("gpu_spec") or "").split("|") if model}))
        try:
            shape = Shape(
                cpu_milli=_amount(place, row, "cpu_milli"),
                ram_mib=_amount(place, row, "memory_mib"),
                cards=cards,
                core_milli=core if cards else 0,
                card_memory_mib=_amount(place, row, "gpu_memory_mib") if cards else 0,
                models=models if cards else (),
            )
        except InvalidInput as error:
            raise InvalidInput(place, error.reason) from error
        shapes.append(known.setdefault(shape, shape))
    if not shapes:
        raise InvalidInput(str(path), "the file lists no pod")
    return shapes


def write_nodes(path: Path, machines: Iterable[Machine]) -> None:
    """Write nodes in the format that `read_nodes` reads."""
    rows = [(m.name, m.cpu_milli, m.ram_mib, m.cards, m.model, m.card_memory_mib) for m in machines]
    _write(path, (*_NODE_COLUMNS, "gpu_memory_mib"), rows)


def read_gangs(path: Path) -> list[str]:
    """Return the gang of every pod of `read_pods`, "" for none; an empty list where no pod is in one."""
    gangs = [(row.get("gang") or "").strip() for _, row in _rows(path, _POD_COLUMNS)]
    return gangs if any(gangs) else []


def read_idle(path: Path) -> list[int]:
    """Return for how much of its time each pod of `read_pods` is idle, in percent. Raises InvalidInput naming file and
    line, also where no pod is idle at all."""
    found: list[int] = []
    for place, row in _rows(path, _POD_COLUMNS):
        idle = _amount(place, row, "gpu_idle_percent")
        if idle > 100:
            raise InvalidInput(place, f"gpu_idle_percent is {idle}, more than 100")
        found.append(idle)
    if not any(found):
        raise InvalidInput(
            str(path), "no pod is idle at times: the column gpu_idle_percent is missing, or 0 everywhere"
        )
    return found


def write_pods(path: Path, shapes: Sequence[Shape], gangs: Sequence[str] = ()) -> None:
    """Write pods in the format of `read_pods` and `read_gangs`, without the names of pods and their owners."""
    rows = [
        (s.cpu_milli, s.ram_mib, s.cards, s.core_milli, "|".join(s.models), s.card_memory_mib, gang)
        for s, gang in zip(shapes, gangs or [""] * len(shapes), strict=True)
    ]
    _write(path, (*_POD_COLUMNS, "gpu_spec", "gpu_memory_mib", "gang"), rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Return every line as `file:line` and its columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [column for column in needed if column not in (reader.fieldnames or ())]
            if missing:
                found = ", ".join(reader.fieldnames or ()) or "nothing"
                raise InvalidInput(str(path), f"the columns {', '.join(missing)} are missing; found {found}")
            for count, row in enumerate(reader):
                if count >= MAX_ROWS:
                    raise InvalidInput(str(path), f"more than {MAX_ROWS} lines")
                yield f"{path}:{reader.line_num}", row
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(str(path), f"is not a CSV file: {error}") from error


def _amount(place: str, row: Mapping[str, str], column: str) -> int:
    """Return a number that is not negative; an empty or missing field is 0."""
    text = (row.get(column) or "").strip() or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 2**53 or value != int(value):
        raise InvalidInput(place, f"{column} is {text!r}, not a whole number of 0 or more")
    return int(value)
