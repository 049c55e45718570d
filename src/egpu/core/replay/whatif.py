"""Changes of a trace's cluster: other nodes, or nodes of another size."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from egpu.core.policies.shapes import Machine
from egpu_base.errors import InvalidInput

MOST_KINDS: Final = 16
"""Kinds of nodes of which one more is tried, the most frequent ones: each is a run of its own."""
_FIELDS = ("cards", "model", "cpu_milli", "ram_mib", "card_memory_mib")


def add(machines: Sequence[Machine], text: str) -> list[Machine]:
    """Add `COUNT:MODEL:CARDS:CPU_MILLI:RAM_MIB[:CARD_MEMORY_MIB]` nodes. Raises InvalidInput."""
    parts = text.split(":")
    try:
        count, cards, cpu, ram, *memory = (int(part) for part in (parts[0], *parts[2:]))
        model = parts[1]
    except (ValueError, IndexError):
        raise InvalidInput("add", f"{text!r} is not COUNT:MODEL:CARDS:CPU_MILLI:RAM_MIB[:CARD_MEMORY_MIB]") from None
    if min(count, cards, cpu, ram, *memory, 0) < 0 or len(memory) > 1:
        raise InvalidInput("add", f"{text!r}: give at most six amounts, none of them negative")
    start = sum(machine.name.startswith("added-") for machine in machines)
    size = memory[0] if memory else 0
    more = [Machine(f"added-{start + place}", cpu, ram, cards, model, size) for place in range(count)]
    return [*machines, *more]


def one_more(machines: Sequence[Machine]) -> dict[str, Machine]:
    """Return one further node of each kind with cards, the most frequent first, by the first node of its kind."""
    kinds = [replace(machine, name="") for machine in machines if machine.cards]
    firsts: dict[Machine, str] = {}
    for machine in machines:
        firsts.setdefault(replace(machine, name=""), machine.name)
    often = [kind for kind, _ in Counter(kinds).most_common(MOST_KINDS)]
    return {firsts[kind]: replace(kind, name=f"one-more-{firsts[kind]}") for kind in often}


def remove(machines: Sequence[Machine], text: str) -> list[Machine]:
    """Remove one node, or nodes of a model: `NAME`, `MODEL` or `MODEL:COUNT`. Raises InvalidInput."""
    name, _, count = text.partition(":")
    matching = [place for place, machine in enumerate(machines) if machine.name == text]
    matching = matching or [place for place, machine in enumerate(machines) if machine.model == name]
    if not matching or (count and not count.isdigit()):
        raise InvalidInput("remove", f"{text!r} is neither a node nor MODEL[:COUNT] of nodes that are there")
    if count and int(count) > len(matching):
        raise InvalidInput("remove", f"{text!r}: there are only {len(matching)} such nodes")
    gone = set(matching[: int(count)] if count else matching)
    return [machine for place, machine in enumerate(machines) if place not in gone]


def change(machines: Sequence[Machine], text: str) -> list[Machine]:
    """Change nodes by `NAME_OR_MODEL:FIELD=VALUE`, FIELD one of cards, model, cpu_milli, ram_mib, card_memory_mib.

    Raises InvalidInput.
    """
    name, _, assignment = text.rpartition(":")
    key, _, value = assignment.partition("=")
    known = any(name in (machine.name, machine.model) for machine in machines)
    if key not in _FIELDS or not value or not known or (key != "model" and not value.isdigit()):
        raise InvalidInput("change", f"{text!r} is not NODE_OR_MODEL:FIELD=VALUE with FIELD of {', '.join(_FIELDS)}")
    new = value if key == "model" else int(value)
    changed: list[Machine] = []
    for machine in machines:
        if name in (machine.name, machine.model):
            machine = replace(machine, **{key: new})  # type: ignore[arg-type]  # noqa: PLW2901
        changed.append(machine)
    return changed
