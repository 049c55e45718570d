"""Hand-written knowledge (native/driver/classes.yaml) applied to the functions of the headers.

Nothing falls into a default. A function that no rule claims, that two claim, or that looks like memory or work and is
claimed only by a pattern is reported by name; so is a rule that no longer matches anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from driver_table.headers import Function


class ClassError(Exception):
    """classes.yaml and the functions do not agree; `problems` has one sentence per function or rule."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Rule:
    """Which functions belong to one class: exact names first, then whole-name patterns."""

    label: str
    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]


@dataclass(frozen=True)
class Answer:
    """One answer of cuGetProcAddress: asked for `name` at `version` or later, it gives `symbol`."""

    name: str
    version: int
    symbol: str


@dataclass(frozen=True)
class Classes:
    """The parsed classes.yaml."""

    interposer: tuple[Rule, ...]
    remote: tuple[Rule, ...]
    guarded_names: tuple[re.Pattern[str], ...]
    guarded_outputs: frozenset[str]
    answers: tuple[Answer, ...]
    parameters: tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]  # functions, and parameter name -> direction


def read(path: Path) -> Classes:
    """Parse classes.yaml; a malformed one raises KeyError, TypeError or re.error naming the key or pattern."""
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    directions: dict[str, dict[str, str]] = data.get("parameters") or {}
    return Classes(
        interposer=_rules(data["interposer"]),
        remote=_rules(data["remote"]),
        guarded_names=tuple(re.compile(p) for p in data["guarded"]["names"]),
        guarded_outputs=frozenset(data["guarded"]["outputs"]),
        answers=tuple(Answer(**a) for a in data.get("answers", [])),
        parameters=tuple((re.compile(p), ways) for p, ways in directions.items()),
    )


def _rules(data: Mapping[str, Mapping[str, list[str]]]) -> tuple[Rule, ...]:
    return tuple(
        Rule(label, frozenset(rule.get("names", [])), tuple(re.compile(p) for p in rule.get("patterns", [])))
        for label, rule in data.items()
    )


def classify(functions: Iterable[Function], classes: Classes) -> dict[str, tuple[str, str]]:
    """Return classes by function name: (interposer class, remote class). Raises ClassError with all problems."""
    by_name: dict[str, list[Function]] = {}
    for function in functions:
        by_name.setdefault(function.name, []).append(function)
    problems: list[str] = []
    found: dict[str, tuple[str, str]] = {}
    for name, abis in sorted(by_name.items()):
        guard = _guard(name, abis, classes)
        interposer = _class(name, classes.interposer, "interposer", guard, problems)
        remote = _class(name, classes.remote, "remote", guard, problems)
        found[name] = (interposer, remote)
    problems += _stale_parameters(by_name, classes)
    for part, rules in (("interposer", classes.interposer), ("remote", classes.remote)):
        problems += _stale(part, rules, by_name)
    if problems:
        raise ClassError(problems)
    return found


def directions_of(name: str, classes: Classes) -> dict[str, str]:
    """Return hand-written directions of a function's parameters, by parameter name."""
    return {p: way for pattern, ways in classes.parameters if pattern.fullmatch(name) for p, way in ways.items()}


def _class(name: str, rules: tuple[Rule, ...], part: str, guard: str | None, problems: list[str]) -> str:
    exact = [rule.label for rule in rules if name in rule.names]
    labels = exact or [rule.label for rule in rules if any(p.fullmatch(name) for p in rule.patterns)]
    if not labels:
        looks = f"; it {guard}: list it by name" if guard else ""
        problems.append(f"{name}: no {part} class{looks}")
    elif len(labels) > 1:
        problems.append(f"{name}: {part} classes {' and '.join(labels)} both claim it")
    elif guard and not exact:
        problems.append(f"{name}: {guard}, and only a pattern of {part} class {labels[0]} claims it: list it by name")
    return labels[0] if labels else ""


def _guard(name: str, abis: list[Function], classes: Classes) -> str | None:
    """Return why a function must be listed by name, or None."""
    for pattern in classes.guarded_names:
        if pattern.fullmatch(name):
            return f"has a name like {pattern.pattern}"
    for function in abis:
        for parameter in function.parameters:
            base, star, _ = parameter.type.partition(" *")
            if star and re.sub(r"_v\d+$", "", base) in classes.guarded_outputs:
                return f"may hand out a {base} through {parameter.name}"
    return None


def _stale(part: str, rules: tuple[Rule, ...], names: Iterable[str]) -> list[str]:
    names = set(names)
    problems: list[str] = []
    for rule in rules:
        problems += [f"{part} class {rule.label} lists {n}, which no header declares" for n in rule.names - names]
        problems += [
            f"{part} class {rule.label}: pattern {p.pattern} matches nothing"
            for p in rule.patterns
            if not any(p.fullmatch(n) for n in names)
        ]
    return problems


def _stale_parameters(by_name: Mapping[str, list[Function]], classes: Classes) -> list[str]:
    problems: list[str] = []
    for pattern, ways in classes.parameters:
        found = {p.name for n, abis in by_name.items() if pattern.fullmatch(n) for f in abis for p in f.parameters}
        problems += [f"parameters of {pattern.pattern}: none is called {name}" for name in ways if name not in found]
    return problems
