"""The table itself: functions of every release seen so far, with their classes and parameter directions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from driver_table import directions
from driver_table.classes import Answer, ClassError, Classes, classify, directions_of
from driver_table.headers import Function, Headers, signature_type


@dataclass(frozen=True)
class Known:
    """A function and the newest release (CUDA_VERSION) whose headers declare it."""

    function: Function
    last: int


@dataclass(frozen=True)
class Row:
    """One exported symbol with all known facts."""

    function: Function
    last: int
    interposer: str
    remote: str
    directions: tuple[str, ...]  # one per parameter


@dataclass(frozen=True)
class Table:
    """Rows sorted by symbol, answers of cuGetProcAddress sorted by name, stream default and version."""

    headers: tuple[int, ...]  # releases that added something
    interposer: tuple[str, ...]
    remote: tuple[str, ...]
    rows: tuple[Row, ...]
    answers: tuple[Answer, ...]


def merge(known: dict[str, Known], headers: Headers) -> tuple[dict[str, Known], bool]:
    """Add one release to the known functions; the newer release's spelling wins. Also return whether it changed."""
    merged = dict(known)
    for symbol, function in headers.functions.items():
        before = known.get(symbol)
        if before is None or before.last < headers.version:
            merged[symbol] = Known(function, headers.version)
    return merged, merged != known


def disagreements(known: dict[str, Known], headers: Headers) -> list[str]:
    """Return the differences between headers and table (an ABI's version never changes)."""
    problems: list[str] = []
    for symbol, function in headers.functions.items():
        before = known.get(symbol)
        if before is None:
            problems.append(f"{symbol} (CUDA {function.version}) is not in the table")
        elif before.function.version != function.version:
            problems.append(f"{symbol} is of CUDA {function.version}, the table says {before.function.version}")
        elif [signature_type(p.type) for p in before.function.parameters] != [
            signature_type(p.type) for p in function.parameters
        ]:
            problems.append(f"{symbol} has other parameters than the table says")
    return problems


def build(known: dict[str, Known], releases: Iterable[int], classes: Classes) -> Table:
    """Classify everything. Raises ClassError naming what is missing."""
    found = classify((k.function for k in known.values()), classes)
    rows: list[Row] = []
    problems: list[str] = []
    for symbol, k in sorted(known.items()):
        interposer, remote = found[k.function.name]
        ways = directions.derive(k.function, directions_of(k.function.name, classes))
        if remote in ("sync", "async", "cached"):
            problems += [
                f"{symbol}: the direction of {p.name} ({p.type}) is unknown. Add it under parameters"
                for p, way in zip(k.function.parameters, ways, strict=True)
                if way == directions.OPAQUE
            ]
        if remote == "async":
            problems += [
                f"{symbol}: {p.name} ({way}) comes back to the caller, so the remote class cannot be async"
                for p, way in zip(k.function.parameters, ways, strict=True)
                if directions.returns_data(way)
            ]
        rows.append(Row(k.function, k.last, interposer, remote, ways))
    if problems:
        raise ClassError(problems)
    return Table(
        headers=tuple(sorted(releases)),
        interposer=tuple(rule.label for rule in classes.interposer),
        remote=tuple(rule.label for rule in classes.remote),
        rows=tuple(rows),
        answers=_answers(rows, classes.answers),
    )


def _answers(rows: list[Row], extra: Iterable[Answer]) -> tuple[Answer, ...]:
    threads = {row.function.symbol: row.function.threads for row in rows}
    answers = [Answer(r.function.name, r.function.version, r.function.symbol) for r in rows]
    for answer in extra:
        if answer.symbol not in threads:
            raise ClassError([f"answers: {answer.symbol} is not a driver function"])
        answers.append(answer)
    return tuple(sorted(answers, key=lambda a: (a.name, threads[a.symbol], a.version)))
