"""What `egpu top` lists: nodes, their cards, and whose slices are on them; then the pods that wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.api.quantities import MIB_BYTES
from egpu.core.view import CardView, ClusterView, NodeView, PendingPod, SliceView
from egpu.core.view.records import WHOLE

WAITING: Final = "waiting"


@dataclass(frozen=True)
class Gauge:
    """Of compute or memory: percent of what there is that was given, and that is used (None: nobody says)."""

    given: float
    used: float | None


@dataclass(frozen=True)
class Row:
    """One line. `depth`: 0 a node, 1 a card or a pod that waits, 2 a slice. `pod` is what can be explained of it,
    `note` what there is to say beside its gauges, or in their place."""

    depth: int
    name: str
    core: Gauge | None = None
    memory: Gauge | None = None
    note: str = ""
    pod: tuple[str, str] | None = None


def _part(part: float, total: float) -> float:
    return 100 * part / total if total else 0.0


def _used(cards: Sequence[CardView]) -> tuple[float | None, int | None]:
    """Percent of one card's compute, and bytes."""
    core = [one.core_used_ratio for one in cards if one.core_used_ratio is not None]
    memory = [one.memory_used_bytes for one in cards if one.memory_used_bytes is not None]
    return (100 * sum(core) if core else None, sum(memory) if memory else None)


def _node_gauges(node: NodeView) -> tuple[Gauge, Gauge]:
    totals, (core, memory) = node.totals, _used(node.cards)
    total = totals.memory_mib
    return (
        Gauge(_part(totals.core_given, totals.core_percent), None if core is None else core / max(1, totals.cards)),
        Gauge(_part(totals.memory_given_mib, total), None if memory is None else _part(memory, total * MIB_BYTES)),
    )


Order = Callable[[NodeView], tuple[float, str]]
ORDERS: Final[Mapping[str, Order]] = {
    "name": lambda node: (0.0, node.name),
    "compute given": lambda node: (-_node_gauges(node)[0].given, node.name),
    "memory given": lambda node: (-_node_gauges(node)[1].given, node.name),
    "compute used": lambda node: (-(_node_gauges(node)[0].used or 0.0), node.name),
    "memory used": lambda node: (-(_node_gauges(node)[1].used or 0.0), node.name),
}
"""How nodes can be sorted; the fullest first."""


def rows(view: ClusterView, *, order: str = "name", search: str = "", tree: bool = True) -> list[Row]:
    """All lines, in order. `search`: only what has it in its name, with what is above and below; `tree`: with
    slices."""
    found = list[Row]()
    for node in sorted(view.nodes, key=ORDERS[order]):
        below = [row for card in node.cards for row in _card_rows(card, search, tree, whole=_has(search, node.name))]
        if below or _has(search, node.name):
            found += [_node_row(node), *below]
    waiting = [_pending_row(pod) for pod in view.pending if _has(search, f"{pod.namespace}/{pod.name} {WAITING}")]
    return found + ([Row(0, f"{WAITING} ({len(waiting)})"), *waiting] if waiting else [])


def _node_row(node: NodeView) -> Row:
    state = "" if node.ready else "not ready"
    core, memory = _node_gauges(node) if node.cards else (None, None)
    return Row(0, node.name, core, memory, state or ("unschedulable" if node.unschedulable else ""))


def _card_rows(card: CardView, search: str, tree: bool, *, whole: bool) -> list[Row]:
    name = f"{card.card.index} {card.card.model}"
    whole = whole or _has(search, name)
    slices = [row for row in map(_slice_row, card.slices) if whole or _has(search, row.name)]
    if not whole and not slices:
        return []
    core, memory = _used([card])
    total = card.card.memory_mib
    state = "" if card.card.healthy else "cordoned" if card.card.cordoned else "sick"
    row = Row(
        1, name,
        Gauge(float(card.core_given), core),
        Gauge(_part(card.memory_given_mib, total), None if memory is None else _part(memory, total * MIB_BYTES)),
        state or ("over-committed" if card.overcommitted else card.mode.partition("/")[2]),
    )  # fmt: skip
    return [row, *(slices if tree else ())]


def _slice_row(one: SliceView) -> Row:
    total = one.card_memory_mib * MIB_BYTES
    used = one.used
    name = f"{one.namespace}/{one.name} {one.container}".strip("/ ")
    pod = next(((user.namespace, user.pod) for user in one.users), None)
    return Row(
        2, name,
        Gauge(float(WHOLE if one.exclusive else one.core_percent), None if used is None else 100 * used.core_ratio),
        Gauge(
            100.0 if one.exclusive else _part(one.memory_mib, one.card_memory_mib),
            None if used is None else _part(used.memory_bytes, total),
        ),
        "claim" if one.holder.kind == "claim" else "",
        pod,
    )  # fmt: skip


def _pending_row(pod: PendingPod) -> Row:
    return Row(1, f"{pod.namespace}/{pod.name}", note=f"{pod.reason}: {pod.message}", pod=(pod.namespace, pod.name))


def _has(search: str, text: str) -> bool:
    return search.lower() in text.lower()
