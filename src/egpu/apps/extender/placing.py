"""Filter, prioritize and preempt: requests that read the ledger and change nothing."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from egpu.apps.extender.filter_results import FilterResults
from egpu.apps.extender.sole_answers import has_wishes, is_avoided
from egpu.apps.extender.view import View
from egpu.core.arrays import BoolArray, IntArray
from egpu.core.gangs.alike import native_group
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.placement.ledger import Holder
from egpu.core.placement.node_names import NodeNames
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.victims import has_cards
from egpu.core.rests import Rests
from egpu_base.api.extender import (
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MetaPod,
    MetaVictims,
)
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, DoesNotFit, InvalidInput, MissingExtra

MAX_SCORE = 10
MAX_REASON_CHARACTERS = 512
MAX_EXPLAINED = 8
"""Nodes with cards for which one filter call works out reasons (0.05 ms each); an event shows fewer than ten. A pod
that fits elsewhere gets no such event: then it is one node, and none if more nodes than this refuse."""
NOT_EXPLAINED = "its cards cannot take the pod now; run `egpu explain pod` for the reason"
FULL = "its cards cannot take the pod now"
"""A shorter reason for hundreds of nodes, which nobody reads."""
RESTING = "the last look at a gang of this namespace took long, and found no room; the next one is in {} s"
Listener = Callable[[str, NodeNames, BoolArray], None]


class Refused(NamedTuple):
    """Nodes that refuse for one reason: `which` of the nodes in the request, shape (nodes,). `resolvable`: evicting
    pods may help."""

    which: BoolArray
    reason: str
    resolvable: bool


class Verdict(NamedTuple):
    """The nodes that the pod may go to, shape (nodes,), and the reasons of those that do not fit."""

    ok: BoolArray
    refused: tuple[Refused, ...] = ()


class Placing:
    """Answers kube-scheduler's requests from the view. `filtered` gets the answer of each filter, and so does each
    listener: the pod's UID and the nodes that it may go to."""

    def __init__(self, view: View, policies: Policies, filtered: FilterResults, *listeners: Listener) -> None:
        self.rests = Rests(clock=time.monotonic, work=time.thread_time)
        """After long looks at gangs."""
        self._view = view
        self._policies = policies
        self._filtered = filtered
        self._listeners = (filtered.note, *listeners)
        self.clock = time.monotonic
        """Seconds, for promises."""

    def filter(self, pod: Pod, nodes: NodeNames) -> Verdict:
        """Return the nodes that have room for the pod, or the best of them (`egpu.apps.extender.sole_answers`). A pod
        without a GPU demand fits everywhere."""
        group = native_group(pod)
        if group:
            self._view.cache.promises.ask(group, pod.uid, self.clock())
        with self._view.cache.reservations.lifted(pod):
            verdict = self._verdict(pod, nodes)
            if group:
                verdict = self._promise(group, pod, nodes, verdict)
            elif np.count_nonzero(verdict.ok) > 1 and not has_wishes(pod) and not self._filtered.named_one(pod.uid):
                verdict = verdict._replace(ok=self._best(pod, nodes, verdict.ok))
        for answered in self._listeners:
            answered(pod.uid, nodes, verdict.ok)
        return verdict

    def _promise(self, group: str, pod: Pod, nodes: NodeNames, verdict: Verdict) -> Verdict:
        """Name one node for the member of a group that is placed as a whole, and keep its cards there. kube-scheduler
        asks about the next member before it binds this one."""
        cache = self._view.cache
        if cache.pod_allocation(pod.uid) is not None or not verdict.ok.any():
            return verdict  # just bound, or refused
        request = cache.request(pod)
        if not request.demand.containers:
            return verdict
        fits = nodes.subset(verdict.ok)
        try:
            best = int(self._view.cache.ranking.rated(request, fits, self._policies, all_fit=True).argmax())
            allocation = cache.ranking.choose(request, fits[best], self._policies)
        except (MissingExtra, DoesNotFit):
            return verdict  # the bind reports it
        cache.promises.give(group, pod.uid, allocation, cache.held_by_pod(pod.namespace, allocation), asked=True)
        return verdict._replace(ok=_at(nodes, int(verdict.ok.nonzero()[0][best])))

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
        """Give reasons for as many nodes as an event shows. All nodes without cards share one reason."""
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

    def _best(self, pod: Pod, nodes: NodeNames, fits: BoolArray) -> BoolArray:
        """Return the best of the nodes that fit, if one is, and no node is to be preferred to it; else all of them."""
        request = self._view.cache.request(pod)
        if not request.demand.containers:
            return fits
        places = fits.nonzero()[0]
        try:
            rated = self._view.cache.ranking.rated(request, nodes.subset(fits), self._policies, all_fit=True)
        except MissingExtra:
            return fits  # the bind reports it
        best = (rated == 1).nonzero()[0]
        if len(best) != 1 or is_avoided(self._view.nodes.get(nodes[int(places[best[0]])])):
            return fits
        return _at(nodes, int(places[best[0]]))

    def _filter_gang(self, gang: Gang, pod: Pod, nodes: NodeNames) -> Verdict:
        """Return the one node that the gang's placement chooses for the pod, if all of the gang fits now.

        No refusal is resolvable: preemption for one member would evict pods for a gang that may still not fit."""
        cache = self._view.cache
        if (held := cache.ledger.holding(Holder("pod", pod.uid))) is not None:
            # Just bound with another member. The bind that follows reports it as well.
            return Verdict(_only(nodes, held.node))
        known = cache.ledger
        cache.gangs.offer(pod, [node for node in nodes if known.row(node) is not None or node in known.pool])
        if rest := self.rests.seconds(pod.namespace):
            return _nowhere(nodes, f"gang {gang.terms.name}: {RESTING.format(math.ceil(rest))}")
        with self.rests.look(pod.namespace) as look:
            verdict = place_gang(cache, gang, self._policies, pod=pod, nodes=nodes)
            look.found = bool(verdict.allocations)
        allocation = verdict.allocations.get(pod.uid)
        if allocation is not None and (group := native_group(pod)):
            for uid, kept in verdict.allocations.items():
                cache.promises.give(group, uid, kept, cache.held_by_pod(pod.namespace, kept), asked=False)
            cache.promises.release(pod.uid)  # it gets its own in a moment
        if allocation is None:
            return _nowhere(nodes, verdict.text()[:MAX_REASON_CHARACTERS])
        ok = _only(nodes, allocation.node)
        elsewhere = f"gang {gang.terms.name} is placed all at once, with this pod on {allocation.node}"
        return Verdict(ok, (Refused(~ok, elsewhere, resolvable=True),))

    def prioritize(self, pod: Pod, nodes: NodeNames) -> IntArray:
        """Return a score from 0 to 10 for each node, shape (nodes,); 0 for a pod without a GPU demand."""
        scores = np.zeros(len(nodes))
        with contextlib.suppress(InvalidInput, CorruptData):
            request = self._view.cache.request(pod)
            if request.demand.containers:
                # The bind reports what is missing.
                with contextlib.suppress(MissingExtra), self._view.cache.reservations.lifted(pod):
                    scores = self._view.cache.ranking.rated(request, nodes, self._policies)
        return np.rint(MAX_SCORE * scores).astype(np.int64)

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """Return the candidate nodes whose victims have no cards, and on which the pod's cards are free; victims
        unchanged.

        There, CPU or memory was short. Only the extender evicts pods with cards, because it respects budgets and gangs
        (`egpu.apps.extender.preemptor`). kube-scheduler would choose them by the totals of a node."""
        cache = self._view.cache
        try:
            request, gang = cache.request(args.pod), cache.gangs.of(args.pod)
        except (InvalidInput, CorruptData):
            return ExtenderPreemptionResult()
        if gang is not None:
            return ExtenderPreemptionResult()  # room for one member is not room for all
        cardless = {node: doomed for node, doomed in _meta_victims(args).items() if not self._have_cards(doomed)}
        with cache.reservations.lifted(args.pod):
            fits = cache.filter(request, list(cardless)).fits
        return ExtenderPreemptionResult(node_name_to_meta_victims={node: cardless[node] for node in fits})

    def _have_cards(self, victims: MetaVictims) -> bool:
        known = [self._view.pods.by_uid(victim.uid) for victim in victims.pods or []]
        return any(pod is not None and has_cards(pod, self._view.cache) for pod in known)

    def explain(self, name: str, namespace: str) -> Any | None:
        """Explain why the pod waits, card by card, and whom it would evict; or why it is on its node. None: no such
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
    """Return the victims by UID, whichever form the request has."""
    if args.node_name_to_meta_victims is not None:
        return args.node_name_to_meta_victims
    return {
        node: MetaVictims(
            pods=[MetaPod(uid=pod.uid) for pod in victims.pods or []], num_pdb_violations=victims.num_pdb_violations
        )
        for node, victims in (args.node_name_to_victims or {}).items()
    }
