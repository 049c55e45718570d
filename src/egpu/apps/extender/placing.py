"""Filter, prioritize and preempt: questions to the ledger that change nothing."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from egpu.api.extender import (
    ExtenderArgs,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
    MetaPod,
    MetaVictims,
)
from egpu.api.kubernetes import Pod
from egpu.apps.extender.view import View
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.ledger import Holder
from egpu.core.placement.refusal import refusal
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.victims import is_placed
from egpu.errors import CorruptData, InvalidInput, MissingExtra

MAX_SCORE = 10
MAX_REASON_CHARACTERS = 512
MAX_EXPLAINED = 256
"""Nodes of one filter call whose reasons are worked out (0.1 ms each); an event shows fewer than ten."""
NOT_EXPLAINED = "its cards cannot take the pod now; `egpu explain pod` says why"
_Verdict = tuple[Sequence[str], dict[str, str], dict[str, str]]
"""Nodes that fit, and why others do not: those that might if other pods left, and those that would not."""


class Placing:
    """Answers kube-scheduler's questions from the view. Each listener is told after each filter which nodes have
    room for a pod, by its UID."""

    def __init__(self, view: View, policies: Policies, *listeners: Callable[[str, Sequence[str]], None]) -> None:
        self._view = view
        self._policies = policies
        self._listeners = listeners

    def filter(self, args: ExtenderArgs, full_nodes: Sequence[msgspec.Raw] = ()) -> ExtenderFilterResult:
        """Only names of the input come back. A pod without a GPU demand passes everywhere.

        `full_nodes`: the Node objects as they were sent, for a caller that wants those that fit back, unshortened.
        """
        nodes = args.names()
        with self._view.cache.reservations.lifted(args.pod):
            fits, failed, unresolvable = self._verdict(args.pod, nodes)
        for answered in self._listeners:
            answered(args.pod.uid, fits)
        chosen = set(fits)
        kept = [full for name, full in zip(nodes, full_nodes, strict=False) if name in chosen]
        return ExtenderFilterResult(
            nodes=None if args.nodes is None else {"items": kept},
            node_names=list(fits) if args.nodes is None else None,
            failed_nodes=failed,
            failed_and_unresolvable_nodes=unresolvable,
        )

    def _verdict(self, pod: Pod, nodes: Sequence[str]) -> _Verdict:
        try:
            request = self._view.cache.request(pod)
            gang = self._view.cache.gangs.of(pod)
        except (InvalidInput, CorruptData) as error:
            return (), {}, dict.fromkeys(nodes, str(error))
        self._view.cache.ranking.see(pod.uid, request)
        if gang is not None:
            return self._filter_gang(gang, pod, nodes)
        return self._filter_one(request, nodes)

    def _filter_one(self, request: Request, nodes: Sequence[str]) -> _Verdict:
        filtered = self._view.cache.filter(request, nodes)
        failed = dict.fromkeys(filtered.refused[MAX_EXPLAINED:], NOT_EXPLAINED)
        unresolvable: dict[str, str] = {}
        for node in filtered.refused[:MAX_EXPLAINED]:
            why = refusal(request, self._view.cache.ledger, node)
            (failed if why.resolvable else unresolvable)[node] = why.text()[:MAX_REASON_CHARACTERS]
        return filtered.fits, failed, unresolvable

    def _filter_gang(self, gang: Gang, pod: Pod, nodes: Sequence[str]) -> _Verdict:
        """The one node on which the pod's gang would have it, when all of the gang fits now.

        Nothing here is resolvable: making room for one member by preemption would evict pods for a gang that may still
        not fit.
        """
        cache = self._view.cache
        if (held := cache.ledger.holding(Holder("pod", pod.uid))) is not None:
            # Bound with another member just now: so says the bind that follows, too.
            return [node for node in nodes if node == held.node], {}, {}
        known = cache.ledger
        cache.gangs.offer(pod, [node for node in nodes if known.row(node) is not None or node in known.pool])
        verdict = place_gang(cache, gang, self._policies, pod=pod, nodes=nodes)
        allocation = verdict.allocations.get(pod.uid)
        if allocation is None:
            return (), {}, dict.fromkeys(nodes, verdict.text()[:MAX_REASON_CHARACTERS])
        elsewhere = f"gang {gang.terms.name} is placed all at once, with this pod on {allocation.node}"
        return (allocation.node,), {node: elsewhere for node in nodes if node != allocation.node}, {}

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """0 to 10 for each node of the input; all 0 for a pod without a GPU demand."""
        nodes = args.names()
        try:
            request = self._view.cache.request(args.pod)
        except (InvalidInput, CorruptData):
            return [HostPriority(host=node, score=0) for node in nodes]
        scores: Mapping[str, float] = {}
        if request.demand.containers:
            # The bind says what is missing.
            with contextlib.suppress(MissingExtra), self._view.cache.reservations.lifted(args.pod):
                scores = self._view.cache.ranking.scores(request, nodes, self._policies)
        return [HostPriority(host=node, score=round(MAX_SCORE * scores.get(node, 0.0))) for node in nodes]

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """The candidate nodes whose victims hold no cards (there, it is CPU or memory that was short) and on which the
        pod has its cards; victims unchanged. Pods with cards are evicted by ourselves alone, with regard to budgets
        and gangs (`egpu.apps.extender.preempting`): kube-scheduler would choose them by the sums of a node."""
        cache = self._view.cache
        try:
            request, gang = cache.request(args.pod), cache.gangs.of(args.pod)
        except (InvalidInput, CorruptData):
            return ExtenderPreemptionResult()
        if gang is not None:
            return ExtenderPreemptionResult()  # room for one member would not be room for all
        cardless = {node: doomed for node, doomed in _meta_victims(args).items() if not self._have_cards(doomed)}
        with cache.reservations.lifted(args.pod):
            fits = cache.filter(request, list(cardless)).fits
        return ExtenderPreemptionResult(node_name_to_meta_victims={node: cardless[node] for node in fits})

    def _have_cards(self, victims: MetaVictims) -> bool:
        known = [self._view.pods.by_uid(victim.uid) for victim in victims.pods or []]
        return any(pod is not None and is_placed(pod) for pod in known)

    def explain(self, name: str, namespace: str) -> Any | None:
        """Why the pod waits, card by card, and whom it would evict; or why it is where it is. None: there is no such
        pod."""
        pod: Pod | None = self._view.pods.get(name, namespace)
        if pod is None:
            return None
        return explain_with_preemption(pod, self._view.scene(self._policies))


def _meta_victims(args: ExtenderPreemptionArgs) -> Mapping[str, MetaVictims]:
    """By UID, whichever way they were sent."""
    if args.node_name_to_meta_victims is not None:
        return args.node_name_to_meta_victims
    return {
        node: MetaVictims(
            pods=[MetaPod(uid=pod.uid) for pod in victims.pods or []], num_pdb_violations=victims.num_pdb_violations
        )
        for node, victims in (args.node_name_to_victims or {}).items()
    }
