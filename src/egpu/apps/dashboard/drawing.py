"""Cards as bars, and the colours of namespaces: numbers for SVG in templates."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.core.view import CardView, SliceView
from egpu_base.api.quantities import MIB_BYTES

COLOURS: Final = 8
"""Hues in the style sheet, `ns-0` to `ns-7`; `ns-none` is for slices whose namespace the user may not see."""


@dataclass(frozen=True)
class Bar:
    """A slice on a card's bar, in percent of the card: its start, its allocation, its use (None: unknown), and whether
    the use is far below."""

    start: float
    given: float
    used: float | None
    wasted: bool
    colour: str
    label: str


def colours(namespaces: Iterable[str]) -> Mapping[str, str]:
    """Return a class of the style sheet for each namespace: a different one while there are enough hues, and mostly the
    same, whatever other namespaces there are."""
    found: dict[str, str] = {"": "ns-none"}
    taken = set[int]()
    for name in sorted({one for one in namespaces if one}):
        wanted = zlib.crc32(name.encode()) % COLOURS
        hue = next((hue for step in range(COLOURS) if (hue := (wanted + step) % COLOURS) not in taken), wanted)
        taken.add(hue)
        found[name] = f"ns-{hue}"
    return found


def core_bars(card: CardView, hues: Mapping[str, str]) -> list[Bar]:
    """Return the bars of compute."""
    return list(_bars(card, hues, memory=False))


def memory_bars(card: CardView, hues: Mapping[str, str]) -> list[Bar]:
    """Return the bars of memory."""
    return list(_bars(card, hues, memory=True))


def _bars(card: CardView, hues: Mapping[str, str], *, memory: bool) -> Iterator[Bar]:
    start = 0.0
    for one in card.slices:
        if one.init:
            continue  # the pod's other containers use the same share after it
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
    """Return `namespace/pod container` or `namespace/claim`, or that the slice belongs to another user."""
    if not one.name:
        return "another user"
    named = f"{one.namespace}/{one.name}" if one.namespace else one.name
    return f"{named} {one.container}".rstrip()


def in_words(card: CardView) -> str:
    """Describe a card's bars for users who cannot see them."""
    total = card.card.memory_mib
    memory = round(100 * card.memory_given_mib / total) if total else 0
    parts = [
        f"card {card.card.index} of {card.node}: {card.core_given} % of compute and {memory} % of memory allocated"
    ]
    if card.core_used_ratio is not None:
        parts.append(f"{100 * card.core_used_ratio:.0f} % of compute used")
    parts += [slice_name(one) + (", far below its allocation" if one.wasted else "") for one in card.slices]
    if not card.card.healthy:
        parts.append("cordoned" if card.card.cordoned else f"takes no new work: {card.card.why_not}")
    return "; ".join(parts)
