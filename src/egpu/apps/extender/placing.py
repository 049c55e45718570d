"""Filter, prioritize and preempt: questions to the ledger that change nothing."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from egpu.api.extender import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
)
from egpu.api.kubernetes import Pod
from egpu.apps.extender.view import View
from egpu.core.arrays import BoolArray, IntArray
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.ledger import Holder
from egpu.core.placement.node_names import NodeNames
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.victims import is_placed
from egpu.errors import CorruptData, InvalidInput, MissingExtra

MAX_SCORE = 10
MAX_REASON_CHARACTERS = 512
MAX_EXPLAINED = 8
"""Nodes with cards whose reasons one filter call works out (0.05 ms each): an event shows fewer than ten. Of a pod that
has room elsewhere no event shows any: then it is one, and none where more than so many are refused."""
NOT_EXPLAINED = "its cards cannot take the pod now; `egpu explain pod` says why"
FULL = "its cards cannot take the pod now"
"""In place of that, where hundreds of nodes say it and nobody reads it."""
Listener = Callable[[str, NodeNames, BoolArray], None]


class Refused(NamedTuple):
    """Nodes that do not fit for one reason: `which` of those asked about, shape (nodes,). `resolvable`: they might if
    other pods left."""

    which: BoolArray
    reason: str
    resolvable: bool


class Verdict(NamedTuple):
    """Which of the nodes fit, shape (nodes,), and why others do not."""

    ok: BoolArray
    refused: tuple[Refused, ...] = ()


class Placing:
    """Answers kube-scheduler's questions from the view. Each listener is told after each filter which of the nodes
    asked about have room for a pod, by its UID."""

    def __init__(self, view: View, policies: Policies, *listeners: Listener) -> None:
        self._view = view
        self._policies = policies
        self._listeners = listeners

    def filter(self, pod: Pod, nodes: NodeNames) -> Verdict:
        """Which nodes have room for the pod; one without a GPU demand passes everywhere."""
        with self._view.cache.reservations.lifted(pod):
            verdict = self._verdict(pod, nodes)
        for answered in self._listeners:
            answered(pod.uid, nodes, verdict.ok)
        return verdict

    def _verdict(self, pod: Pod, nodes: NodeNames) -> Verdict:
        try:
            request = self._view.cache.request(pod)
            gang = self._view.cache.gangs.of(pod)
        except (InvalidInput, CorruptData) as error:
            return _nowhere(nodes, str(error))
        self._view.cache.ranking.see(pod.uid, request)
        if gang is not None:
            return self._filter_gang(gang, pod, nodes)
        return self._filter_one(request, nodes)

    def _filter_one(self, request: Request, nodes: NodeNames) -> Verdict:
        """Reasons for as many as an event shows, and one for all nodes without cards, which is the same."""
        filtered = self._view.cache.filter(request, nodes)
        if filtered.ok.all():
            return Verdict(filtered.ok)
        known, fits_somewhere = self._view.cache.ledger.known(nodes), bool(filtered.ok.any())
        having, bare = ~filtered.ok & known, ~filtered.ok & ~known
        places: list[int] = having.nonzero()[0].tolist()
        explained = int(len(places) <= MAX_EXPLAINED) if fits_somewhere else MAX_EXPLAINED
        each = [_at(nodes, place) for place in places[:explained]]
        refused: list[Refused] = []
        for alike in (*each, bare):
            if alike.any():
                why = filtered.refusal(nodes[int(alike.argmax())])
                refused.append(Refused(alike, why.text()[:MAX_REASON_CHARACTERS], why.resolvable))
            having &= ~alike
        if having.any():
            refused.append(Refused(having, FULL if fits_somewhere else NOT_EXPLAINED, resolvable=True))
        return Verdict(filtered.ok, tuple(refused))

    def _filter_gang(self, gang: Gang, pod: Pod, nodes: NodeNames) -> Verdict:
        """The one node on which the pod's gang would have it, when all of the gang fits now.

        Nothing here is resolvable: making room for one member by preemption would evict pods for a gang that may still
        not fit.
        """
        cache = self._view.cache
        if (held := cache.ledger.holding(Holder("pod", pod.uid))) is not None:
            # Bound with another member just now: so says the bind that follows, too.
            return Verdict(_only(nodes, held.node))
        known = cache.ledger
        cache.gangs.offer(pod, [node for node in nodes if known.row(node) is not None or node in known.pool])
        verdict = place_gang(cache, gang, self._policies, pod=pod, nodes=nodes)
        allocation = verdict.allocations.get(pod.uid)
        if allocation is None:
            return _nowhere(nodes, verdict.text()[:MAX_REASON_CHARACTERS])
        ok = _only(nodes, allocation.node)
        elsewhere = f"gang {gang.terms.name} is placed all at once, with this pod on {allocation.node}"
        return Verdict(ok, (Refused(~ok, elsewhere, resolvable=True),))

    def prioritize(self, pod: Pod, nodes: NodeNames) -> IntArray:
        """0 to 10 for each of the nodes, shape (nodes,); all 0 for a pod without a GPU demand."""
        scores = np.zeros(len(nodes))
        with contextlib.suppress(InvalidInput, CorruptData):
            request = self._view.cache.request(pod)
            if request.demand.containers:
                # The bind says what is missing.
                with contextlib.suppress(MissingExtra), self._view.cache.reservations.lifted(pod):
                    scores = self._view.cache.ranking.rated(request, nodes, self._policies)
        return np.rint(MAX_SCORE * scores).astype(np.int64)

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


def _only(nodes: NodeNames, name: str) -> BoolArray:
    return np.array([node == name for node in nodes], dtype=np.bool_)


def _at(nodes: NodeNames, place: int) -> BoolArray:
    which = np.zeros(len(nodes), dtype=np.bool_)
    which[place] = True
    return which


def _nowhere(nodes: NodeNames, reason: str) -> Verdict:
    nowhere = np.zeros(len(nodes), dtype=np.bool_)
    return Verdict(nowhere, (Refused(~nowhere, reason, resolvable=False),))


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
