"""The rows of `egpu top`: nodes, their cards, the slices on these and their processes; then waiting pods. Users who
may not list all of these see the pods of one namespace."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.cli.views import allocation_of, asks_for_cards, gpu_containers, shares
from egpu.core.preemption.objections import last_word
from egpu.core.view import CardView, ClusterView, NodeView, PendingPod, SliceView
from egpu.core.view.records import WHOLE
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES, format_mib

WAITING: Final = "waiting"


@dataclass(frozen=True)
class Gauge:
    """Allocated and used percent of compute or memory. `used` is None if no agent reports it."""

    given: float
    used: float | None


@dataclass(frozen=True)
class Row:
    """One line. `depth`: 0 a node, 1 a card or a waiting pod, 2 a slice, 3 a process. `pod`: the pod that `explain`
    explains. `note`: text beside or instead of the gauges."""

    depth: int
    name: str
    core: Gauge | None = None
    memory: Gauge | None = None
    note: str = ""
    pod: tuple[str, str] | None = None


def _part(part: float, total: float) -> float:
    return 100 * part / total if total else 0.0


def _used(cards: Sequence[CardView]) -> tuple[float | None, int | None]:
    """Return the used compute in percent of one card, and the used bytes."""
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
    "compute allocated": lambda node: (-_node_gauges(node)[0].given, node.name),
    "memory allocated": lambda node: (-_node_gauges(node)[1].given, node.name),
    "compute used": lambda node: (-(_node_gauges(node)[0].used or 0.0), node.name),
    "memory used": lambda node: (-(_node_gauges(node)[1].used or 0.0), node.name),
}
"""The sort orders of nodes; the fullest first."""


def rows(view: ClusterView, *, order: str = "name", search: str = "", tree: bool = True) -> list[Row]:
    """Return all lines in order. `search`: only lines with this text, and the lines above and below; `tree`: with
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
    slices = [
        row
        for rows_of_one in map(_slice_rows, card.slices)
        if whole or _has(search, rows_of_one[0].name)
        for row in rows_of_one
    ]
    if not whole and not slices:
        return []
    core, memory = _used([card])
    total = card.card.memory_mib
    state = "" if card.card.healthy else card.card.kept_off or "sick"
    row = Row(
        1, name,
        Gauge(float(card.core_given), core),
        Gauge(_part(card.memory_given_mib, total), None if memory is None else _part(memory, total * MIB_BYTES)),
        state or ("over-committed" if card.overcommitted else card.mode.partition("/")[2]),
    )  # fmt: skip
    return [row, *(slices if tree else ())]


def _slice_rows(one: SliceView) -> list[Row]:
    """Return the slice and its known processes."""
    slice_ = _slice_row(one)
    known = () if one.used is None else one.used.processes
    return [
        slice_,
        *(Row(3, f"process {each.pid}", note=format_mib(each.memory_bytes >> 20), pod=slice_.pod) for each in known),
    ]


def _slice_row(one: SliceView) -> Row:
    total = one.card_memory_mib * MIB_BYTES
    used = one.used
    name = f"{one.namespace}/{one.name} {one.container}".strip("/ ")
    pod = next(((user.namespace, user.pod) for user in one.users), None)
    parked = f"{format_mib(used.parked_bytes >> 20)} parked" if used is not None and used.parked_bytes else ""
    latency = "latency" if one.work == "latency" else ""
    claim = "claim" if one.holder.kind in ("claim", "resourceclaim") else ""
    return Row(
        2, name,
        Gauge(float(WHOLE if one.exclusive else one.core_percent), None if used is None else 100 * used.core_ratio),
        Gauge(
            100.0 if one.exclusive else _part(one.memory_mib, one.card_memory_mib),
            None if used is None else _part(used.memory_bytes, total),
        ),
        ", ".join(filter(None, (one.qos, latency, claim, parked))),
        pod,
    )  # fmt: skip


def _pending_row(pod: PendingPod) -> Row:
    return Row(1, f"{pod.namespace}/{pod.name}", note=f"{pod.reason}: {pod.message}", pod=(pod.namespace, pod.name))


def own_rows(pods: Iterable[Pod], *, search: str = "", tree: bool = True) -> list[Row]:
    """Return the rows of pods from their own objects: node and allocations, or the scheduler's last message about
    them."""
    found = list[Row]()
    for pod in sorted(filter(asks_for_cards, pods), key=lambda pod: pod.key):
        if not _has(search, pod.key):
            continue
        key, given = (pod.namespace, pod.name), allocation_of(pod)
        phase = pod.status.phase or "Pending"
        where = f"on {given.node}" if given is not None else last_word(pod)
        found.append(Row(0, pod.key, note=f"{phase}, {where}", pod=key))
        if given is not None and tree:
            containers = gpu_containers(pod, given)
            found += [Row(1, name, note=shares(given.containers[name]), pod=key) for name in containers]
    return found


def _has(search: str, text: str) -> bool:
    return search.lower() in text.lower()
