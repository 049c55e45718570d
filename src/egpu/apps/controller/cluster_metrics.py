"""The cluster as Prometheus sees it: cards and what is given of them, who waits, claims, what is lost to waiting.

The controller serves it, for it has all objects and keeps nobody waiting: built when asked for, from copies that its
watches keep. What is used, each node's agent tells of its own.
"""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from egpu.api.quantities import MIB_BYTES
from egpu.core.bill import Cause, bill_of, summed
from egpu.core.view import CardView, ClusterView, SliceView, Waits

CARD_LABELS: Final = ("node", "device_index", "device_uuid", "model")
SLICE_LABELS: Final = ("namespace", "pod", "container", "claim", "node", "device_index", "device_uuid", "provisioner")


class ClusterMetrics(Collector):
    """`view` is the cluster now; None from a replica that waits for its turn, which knows nothing."""

    def __init__(self, view: Callable[[], ClusterView | None]) -> None:
        self._view = view

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        view = self._view()
        if view is None:
            return
        yield from _cards(view)
        yield from _slices(view)
        yield from _totals(view)
        yield from _waiting(view)


def _cards(view: ClusterView) -> Iterable[GaugeMetricFamily]:
    core = _family("card_core_given_ratio", "Compute of the card that is given out or kept; 1 is all.", CARD_LABELS)
    memory = _family("card_memory_given_bytes", "Memory of the card that is given out or kept.", CARD_LABELS)
    over = _family("card_overcommitted", "1 where more is given out than the card has.", CARD_LABELS)
    for card in view.cards():
        labels = _card_labels(card)
        core.add_metric(labels, card.core_given / 100)
        memory.add_metric(labels, card.memory_given_mib * MIB_BYTES)
        if card.overcommitted:
            over.add_metric(labels, 1)
    return core, memory, over


def _slices(view: ClusterView) -> Iterable[GaugeMetricFamily]:
    core = _family("slice_core_given_ratio", "Compute of its card that the slice has; 1 is all.", SLICE_LABELS)
    memory = _family("slice_memory_given_bytes", "Memory of its card that the slice has.", SLICE_LABELS)
    for one in view.slices():
        labels = _slice_labels(one)
        core.add_metric(labels, one.core_percent / 100)
        memory.add_metric(labels, one.memory_mib * MIB_BYTES)
    return core, memory


def _totals(view: ClusterView) -> Iterable[GaugeMetricFamily]:
    totals = view.totals
    for name, text, value in (
        ("cluster_cards", "Cards.", totals.cards),
        ("cluster_free_cards", "Cards that nobody has any of and that take new work.", totals.free_cards),
        ("cluster_unhealthy_cards", "Cards that take no work, and not because people say so.", totals.unhealthy_cards),
        ("cluster_fragmentation_ratio", "Part of the free compute that is not on wholly free cards.",
         totals.fragmentation),
        ("cluster_stranded_core_cards", "Free compute, in cards, on cards whose memory is all given out.",
         totals.stranded_core / 100),
        ("cluster_stranded_memory_bytes", "Free memory of cards whose compute is all given out.",
         totals.stranded_memory_mib * MIB_BYTES),
    ):  # fmt: skip
        family = _family(name, text, ())
        family.add_metric([], value)
        yield family
    claims = _family("cluster_claims", "Claims by phase.", ("phase",))
    for phase, count in view.claims.items():
        claims.add_metric([phase], count)
    yield claims


def _waiting(view: ClusterView) -> Iterable[GaugeMetricFamily]:
    counts = _family("cluster_pending_pods", "Pods that ask for cards and have no node, by what they wait for.",
                     ("reason",))  # fmt: skip
    for reason in Waits:
        counts.add_metric([reason], sum(pod.reason is reason for pod in view.pending))
    seconds = _family("pending_pod_seconds", "Since the waiting pod was made.", ("namespace", "pod", "reason"))
    for pod in view.pending:
        seconds.add_metric([pod.namespace, pod.name, pod.reason], pod.seconds)
    lost = _family("bill_lost_gpu_seconds", "GPU time lost so far by what loses some now.", ("namespace", "cause"))
    rate = _family("bill_losing_cards", "Cards' worth of GPU time that is being lost.", ("namespace", "cause"))
    known = [cause for cause in Cause if cause in (Cause.PENDING, Cause.UNUSED)]
    for namespace, bill in summed(bill_of(view), lambda line: line.namespace).items():
        for cause in known:
            lines = [line for line in bill.lines if line.cause is cause]
            lost.add_metric([namespace, cause], sum(line.lost_gpu_seconds for line in lines))
            rate.add_metric([namespace, cause], sum(line.lost_gpu_seconds_per_day for line in lines) / 86_400)
    return counts, seconds, lost, rate


def _family(name: str, text: str, labels: Iterable[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"elasticgpu_{name}", text, labels=list(labels))


def _card_labels(card: CardView) -> list[str]:
    return [card.node, str(card.card.index), card.card.uuid, card.card.model]


def _slice_labels(one: SliceView) -> list[str]:
    pod = one.name if one.holder.kind == "pod" else ""
    return [one.namespace, pod, one.container, one.claim, one.node, str(one.index), one.uuid, one.provisioner]
