"""Cards as bars, and the colours of namespaces: numbers for templates to put into SVG."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api.quantities import MIB_BYTES
from egpu.core.view import CardView, SliceView

COLOURS: Final = 8
"""Hues in the style sheet, `ns-0` to `ns-7`; one more, `ns-none`, is of those whose namespace one may not know."""


@dataclass(frozen=True)
class Bar:
    """A slice on a card's bar, in percent of the card: where it begins, what was given, what is used of it (None:
    nobody says), and whether that is far below."""

    start: float
    given: float
    used: float | None
    wasted: bool
    colour: str
    label: str


def colours(namespaces: Iterable[str]) -> Mapping[str, str]:
    """A class of the style sheet for each namespace: its own as long as there are no more than hues, and mostly the
    same whoever else is there."""
    found: dict[str, str] = {"": "ns-none"}
    taken = set[int]()
    for name in sorted({one for one in namespaces if one}):
        wanted = zlib.crc32(name.encode()) % COLOURS
        hue = next((hue for step in range(COLOURS) if (hue := (wanted + step) % COLOURS) not in taken), wanted)
        taken.add(hue)
        found[name] = f"ns-{hue}"
    return found


def core_bars(card: CardView, hues: Mapping[str, str]) -> list[Bar]:
    """Of compute."""
    return list(_bars(card, hues, memory=False))


def memory_bars(card: CardView, hues: Mapping[str, str]) -> list[Bar]:
    """Of memory."""
    return list(_bars(card, hues, memory=True))


def _bars(card: CardView, hues: Mapping[str, str], *, memory: bool) -> Iterator[Bar]:
    start = 0.0
    for one in card.slices:
        if one.init:
            continue  # it may have what the others of its pod have after it
        if memory:
            total = card.card.memory_mib
            given = 100.0 if one.exclusive else 100 * one.memory_mib / total if total else 0.0
            used = None if one.used is None or not total else 100 * one.used.memory_bytes / (total * MIB_BYTES)
        else:
            given = 100.0 if one.exclusive else float(one.core_percent)
            used = None if one.used is None else 100 * one.used.core_ratio
        given = min(given, max(0.0, 100 - start))
        if given:
            used = None if used is None else min(used, given)
            yield Bar(start, given, used, one.wasted, hues.get(one.namespace, "ns-none"), slice_name(one))
        start += given


def slice_name(one: SliceView) -> str:
    """`namespace/pod container`, `namespace/claim`, or that it is somebody else's."""
    if not one.name:
        return "somebody else"
    named = f"{one.namespace}/{one.name}" if one.namespace else one.name
    return f"{named} {one.container}".rstrip()


def in_words(card: CardView) -> str:
    """What the bars of a card show, for who does not see them."""
    total = card.card.memory_mib
    memory = round(100 * card.memory_given_mib / total) if total else 0
    parts = [f"card {card.card.index} of {card.node}: {card.core_given} % of compute and {memory} % of memory given"]
    if card.core_used_ratio is not None:
        parts.append(f"{100 * card.core_used_ratio:.0f} % of compute used")
    parts += [slice_name(one) + (", far below what it was given" if one.wasted else "") for one in card.slices]
    if not card.card.healthy:
        parts.append("cordoned" if card.card.cordoned else f"takes no new work: {card.card.why_not}")
    return "; ".join(parts)
