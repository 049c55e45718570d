"""The cluster's Prometheus metrics: cards, allocations, claims, waiting pods, and GPU time lost to waiting.

The controller serves them, because it has all objects and blocks nothing else. Each node's agent reports use. A large
cluster has a hundred thousand series, of which few change between two scrapes. So the lines are written here, in
Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats), and kept by node."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from egpu.core.bill import Cause, Line, bill_of
from egpu.core.view import CardView, ClusterView, NodeView, SliceView, Waits
from egpu_base.api.quantities import MIB_BYTES

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_KNOWN_LOSSES: Final = (Cause.PENDING, Cause.UNUSED)
_SECONDS_PER_DAY: Final = 86_400


class Family(NamedTuple):
    """A gauge, with the labels of its series."""

    name: str
    text: str
    labels: tuple[str, ...] = ()

    def head(self) -> str:
        return f"# HELP elasticgpu_{self.name} {self.text}\n# TYPE elasticgpu_{self.name} gauge\n"

    def line(self, labels: str, value: float) -> str:
        """Return a line. `labels` as written by `labelled`."""
        return f"elasticgpu_{self.name}{labels} {float(value)!r}\n"

    def labelled(self, values: Iterable[str]) -> str:
        """Return the labels of one series, in their order."""
        said = (f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(self.labels, values, strict=True))
        return f"{{{','.join(said)}}}"

    def page(self, series: Iterable[tuple[Sequence[str], float]]) -> str:
        """Return the whole metric, from labels and values of its series."""
        return self.head() + "".join(self.line(self.labelled(values), value) for values, value in series)

    def alone(self, value: float) -> str:
        """Return a whole metric without labels."""
        return self.head() + self.line("", value)


_CARD: Final = ("node", "device_index", "device_uuid", "model")
_SLICE: Final = ("namespace", "pod", "container", "claim", "node", "device_index", "device_uuid", "provisioner")
CARD_CORE: Final = Family("card_core_given_ratio", "Allocated or reserved compute of the card; 1 is all.", _CARD)
CARD_MEMORY: Final = Family("card_memory_given_bytes", "Allocated or reserved memory of the card.", _CARD)
CARD_OVER: Final = Family("card_overcommitted", "1 if more is allocated than the card has.", _CARD)
SLICE_CORE: Final = Family("slice_core_given_ratio", "Compute of its card that the slice has; 1 is all.", _SLICE)
SLICE_MEMORY: Final = Family("slice_memory_given_bytes", "Memory of its card that the slice has.", _SLICE)
OF_NODES: Final = (CARD_CORE, CARD_MEMORY, CARD_OVER, SLICE_CORE, SLICE_MEMORY)


class ClusterMetrics:
    """The pages of all series. `page` may be called from several threads: a view never changes. The bill is also
    grouped by the label `team_label` of pods and claims."""

    def __init__(self, *, team_label: str = "team") -> None:
        self._team_label = team_label
        self._known: dict[str, tuple[NodeView, tuple[str, ...]]] = {}
        """The view last shown of each node, and its lines of OF_NODES, by node."""

    def page(self, view: ClusterView) -> bytes:
        """Return all series of the cluster, in Prometheus' text format."""
        before = self._known
        known = {node.name: _kept(node, before.get(node.name)) for node in view.nodes}
        self._known = known
        columns = zip(*(lines for _, lines in known.values()), strict=True) if known else ((),) * len(OF_NODES)
        parts = [part for family, lines in zip(OF_NODES, columns, strict=True) for part in (family.head(), *lines)]
        return "".join([*parts, *_totals(view), *_waiting(view), *_bill(view, self._team_label)]).encode()


def _kept(node: NodeView, known: tuple[NodeView, tuple[str, ...]] | None) -> tuple[NodeView, tuple[str, ...]]:
    return known if known is not None and known[0] is node else (node, _lines(node))


def _lines(node: NodeView) -> tuple[str, ...]:
    """Return the node's lines of OF_NODES."""
    core, memory, over, slice_core, slice_memory = (list[str]() for _ in OF_NODES)
    for card in node.cards:
        labels = CARD_CORE.labelled(_card_labels(card))
        core.append(CARD_CORE.line(labels, card.core_given / 100))
        memory.append(CARD_MEMORY.line(labels, card.memory_given_mib * MIB_BYTES))
        if card.overcommitted:
            over.append(CARD_OVER.line(labels, 1))
        for one in card.slices:
            labels = SLICE_CORE.labelled(_slice_labels(one))
            slice_core.append(SLICE_CORE.line(labels, one.core_percent / 100))
            slice_memory.append(SLICE_MEMORY.line(labels, one.memory_mib * MIB_BYTES))
    return tuple("".join(lines) for lines in (core, memory, over, slice_core, slice_memory))


def _totals(view: ClusterView) -> Iterable[str]:
    totals = view.totals
    for name, text, value in (
        ("cluster_cards", "Cards.", totals.cards),
        ("cluster_free_cards", "Cards without allocations that take new work.", totals.free_cards),
        ("cluster_unhealthy_cards", "Cards that take no new work, without being cordoned.", totals.unhealthy_cards),
        ("cluster_fragmentation_ratio", "Part of the free compute that is not on completely free cards.",
         totals.fragmentation),
        ("cluster_stranded_core_cards", "Free compute, in cards, on cards whose memory is all allocated.",
         totals.stranded_core / 100),
        ("cluster_stranded_memory_bytes", "Free memory of cards whose compute is all allocated.",
         totals.stranded_memory_mib * MIB_BYTES),
    ):  # fmt: skip
        yield Family(name, text).alone(value)
    claims = Family("cluster_claims", "Claims by phase.", ("phase",))
    yield claims.page(([phase], count) for phase, count in view.claims.items())


def _waiting(view: ClusterView) -> Iterable[str]:
    counts = Family("cluster_pending_pods", "Pods that ask for cards and have no node, by the reason for waiting.",
                    ("reason",))  # fmt: skip
    yield counts.page(([reason], sum(pod.reason is reason for pod in view.pending)) for reason in Waits)
    seconds = Family("pending_pod_seconds", "Time since the waiting pod was created.", ("namespace", "pod", "reason"))
    yield seconds.page(([pod.namespace, pod.name, pod.reason], pod.seconds) for pod in view.pending)


def _bill(view: ClusterView, team_label: str) -> Iterable[str]:
    lines: dict[tuple[str, str, str], list[Line]] = {}
    for line in bill_of(view).lines:
        if line.cause in _KNOWN_LOSSES:
            lines.setdefault((line.namespace, line.label(team_label), line.cause), []).append(line)
    by = ("namespace", "team", "cause")
    lost = Family("bill_lost_gpu_seconds", "GPU time lost so far, by causes that still exist.", by)
    yield lost.page((labels, sum(line.lost_gpu_seconds for line in some)) for labels, some in lines.items())
    rate = Family("bill_losing_cards", "Rate of GPU time being lost, in cards.", by)
    yield rate.page(
        (labels, sum(line.lost_gpu_seconds_per_day for line in some) / _SECONDS_PER_DAY)
        for labels, some in lines.items()
    )


def _card_labels(card: CardView) -> tuple[str, ...]:
    return card.node, str(card.card.index), card.card.uuid, card.card.model


def _slice_labels(one: SliceView) -> tuple[str, ...]:
    pod = one.name if one.holder.kind == "pod" else ""
    return (
        one.namespace, pod, one.container, one.claim, one.node, str(one.index), one.uuid, one.provisioner
    )  # fmt: skip
