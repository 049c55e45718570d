"""The best of the places that fit: how a policy is asked about a ledger.

The policies are those of simulations (`egpu.core.policies`), on the same arrays: the ledger as a fleet
(`egpu.core.placement.mirror`), the request as a shape. The ledger decides what fits (`egpu.core.placement.fit`). Where
policies do not apply (a claim that has its cards, cards of the pool, MIG instances, too little CPU by our records), the
fullest place is best.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from egpu.api.allocation import ContainerDemand, PodAllocation
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.placement import fit
from egpu.core.placement.hosts import Hosts
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.mirror import MILLI_PER_PERCENT, Mirror
from egpu.core.placement.requests import Request
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.placer import Placer
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.registry import Policies, Setting, make_policy
from egpu.core.policies.shapes import WHOLE_CARD, Mix, Shape
from egpu.core.provisioners import provisioner

SEEN_LIMIT: Final = 16_384
"""Pods remembered as counted in the mix: kube-scheduler asks about a waiting pod again and again."""
AMOUNTS_LIMIT: Final = 1024
"""Demands whose amounts per card are cached."""
_NO_ROWS: Final[IntArray] = np.zeros(0, dtype=np.int64)
_LIKED: Final = 0.8
_SECOND_LIKED: Final = 0.3
"""The least score of a place with the preferred cards, and the best score of one without: kube-scheduler's other
weights must not win."""
SECOND_BEST: Final = 0.9
"""The best score but one: kube-scheduler gets whole steps of 0.1, and only the best place may have the last."""

Compute = Callable[[Mix, Fleet], None]
"""Runs `compute_prices` elsewhere, and passes the result to `Ranking.use_prices` later."""


class Ranking:
    """Scores of nodes and choices of cards. `learned` is the job mix; `background` computes prices elsewhere."""

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self.learned = LearnedMix()
        self.background: Compute | None = None
        self._ledger = ledger
        self._mirror = Mirror(ledger, hosts)
        self._placers: dict[str, Placer] = {}
        self._prices: Prices | None = None
        self._priced = Mix()
        """The mix of the latest prices."""
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._known_amounts: OrderedDict[ContainerDemand, tuple[list[tuple[int, int]], IntArray]] = OrderedDict()
        self._cards_version = ledger.cards_version

    # --- questions --------------------------------------------------------------------------------------------------

    def scores(
        self, request: Request, nodes: Sequence[str], policies: Policies, *, all_fit: bool = False
    ) -> dict[str, float]:
        """Return `rated` by name. Raises MissingExtra."""
        return dict(zip(nodes, self.rated(request, nodes, policies, all_fit=all_fit).tolist(), strict=True))

    def rated(self, request: Request, nodes: Sequence[str], policies: Policies, *, all_fit: bool = False) -> FloatArray:
        """Return how good each node is, 0..1, shape (nodes,): 1 for one best place (all nearest ones for cards of the
        pool), at most 0.9 for the others, 0 if it does not fit. `all_fit`: a filter has just accepted all of them.
        Raises MissingExtra."""
        found: FloatArray | None = None
        if request.open and not request.pooled:
            found = self._scores(request.policies(policies).node, request, nodes, all_fit)
        if found is None:
            found = fit.fullness(request, self._ledger, nodes)
            if not request.pooled:  # kube-scheduler chooses among equally near nodes
                found = _one_best(found)
        if any(demand.prefer for demand in request.local.values()):
            fitting = np.ones(len(nodes), dtype=np.bool_) if all_fit else fit.fits(request, self._ledger, nodes)
            found = _liked_first(found, fit.liking(request, self._ledger, nodes), fitting)
        return found

    def likeliest(self, request: Request, nodes: Sequence[str], policies: Policies) -> str | None:
        """Return the node that would be `rated` 1 if all of them fitted; None if the policy names none. So if the
        request fits there, no other node is better. Raises MissingExtra."""
        if not request.local or request.pooled or any(demand.prefer for demand in request.local.values()):
            return None
        rows, places = self._ledger.rows_of(nodes)
        found = self._raw_scores(request.policies(policies).node, request, rows)
        high = found.max(initial=-np.inf)
        if not np.isfinite(high):
            return None
        ties = (found == high).nonzero()[0]
        return nodes[int(places[ties[rows[ties].argmin()]])]

    def choose(self, request: Request, node: str, policies: Policies) -> PodAllocation:
        """Return the cards for the request on `node`. Changes nothing. Raises DoesNotFit, with why, and
        MissingExtra."""
        preferred = self._columns(request.policies(policies).card, request, node)
        return fit.choose(request, self._ledger, node, preferred)

    def _columns(self, policy: str, request: Request, node: str) -> tuple[int, ...]:
        """Return the columns that the policy prefers for the first GPU container; () if the policy does not apply."""
        row = self._ledger.row(node)
        if row is None or request.pooled:
            return ()
        fleet = self.fleet()
        shapes, group = self._shapes(request)
        if not shapes or group[row] < 0:
            return ()
        shape = shapes[int(group[row])]
        if len(fleet.eligible_cards(shape, row)) < shape.cards:
            return ()
        return self._placer(policy).policy.rank_cards(fleet, shape, row)

    def _scores(self, policy: str, request: Request, nodes: Sequence[str], all_fit: bool) -> FloatArray | None:
        """Return scores by the policy; None if it sees no place, as with too little CPU by our records."""
        rows, places = self._ledger.rows_of(nodes)
        if not all_fit:
            keep = fit.fits(request, self._ledger, nodes)[places]
            rows, places = rows[keep], places[keep]
        answer = np.zeros(len(nodes))
        if not len(rows):
            return answer
        found = self._raw_scores(policy, request, rows)
        finite = np.isfinite(found)
        if not finite.any():
            return None
        low, high = found[finite].min(), found[finite].max()
        scaled = (found - low) / (high - low) if high > low else np.ones(len(found))
        answer[places] = np.where(finite, SECOND_BEST * np.clip(scaled, 0, 1), 0)
        ties = np.flatnonzero(found == high)
        answer[places[ties[rows[ties].argmin()]]] = 1.0
        return answer

    def _raw_scores(self, policy: str, request: Request, rows: IntArray) -> FloatArray:
        placer = self._placer(policy)
        shapes, group = self._shapes(request)
        found = np.full(len(rows), -np.inf)
        for code, shape in enumerate(shapes):
            own = group[rows] == code
            if own.any():
                found[own] = placer.scores(shape)[rows[own]]
        return found

    def fleet(self) -> Fleet:
        """Return the ledger as a fleet, as of now."""
        return self._mirror.fleet()

    def catch_up(self) -> bool:
        """Update from the ledger ahead of the next question, and recompute the scores of one kind of pod that new
        prices made invalid. Return whether there may be more to do."""
        fleet = self.fleet()
        return any(placer.freshen() for placer in self._placers.values() if placer.fleet is fleet)

    @contextmanager
    def supposing(self) -> Generator[None]:
        """Exclude holds and releases within the context from the turnover: they are tentative."""
        before = self.fleet().departures
        try:
            yield
        finally:
            self.fleet().departures = before

    def _placer(self, name: str) -> Placer:
        fleet = self.fleet()
        placer = self._placers.get(name)
        if placer is None or placer.fleet is not fleet:
            if self._prices is not None and not self._prices.fits_fleet(fleet):
                self._prices = None
            policy = make_policy(name, Setting(fleet, self.learned.mix(), prices=self._prices))
            placer = self._placers[name] = Placer(fleet, policy)
            if policy.priced and self._prices is None and self.learned.enough:
                self._compute_prices()
        return placer

    # --- the mix ----------------------------------------------------------------------------------------------------

    def see(self, uid: str, request: Request) -> None:
        """Count a pod (or lease) in the job mix, once."""
        if not request.local or uid in self._seen:
            return
        self._seen[uid] = None
        if len(self._seen) > SEEN_LIMIT:
            self._seen.popitem(last=False)
        shapes, _ = self._shapes(request)
        if shapes and self.learned.see(shapes[0]):
            mix = self.learned.mix()
            for placer in self._placers.values():
                placer.policy.mix_changed(mix)
            known = self._prices is not None and mix.is_like(self._priced)
            if any(placer.policy.priced for placer in self._placers.values()) and not known:
                self._compute_prices()

    def use_mix(self, learned: LearnedMix) -> None:
        """Continue with a stored mix."""
        self.learned = learned
        self._placers.clear()
        self._prices = None

    def prepare(self, policies: Policies) -> None:
        """Compute the prices that these policies need. Raises MissingExtra."""
        for name in {policies.node, policies.card}:
            self._placer(name)

    def use_prices(self, prices: Prices) -> None:
        """Use prices that were computed elsewhere. Prices for other cards than the present ones are computed again."""
        fleet = self.fleet()
        if not prices.fits_fleet(fleet):
            self._compute_prices()
            return
        self._prices = prices
        for placer in self._placers.values():
            if placer.fleet is fleet:
                placer.policy.use_prices(fleet, prices)

    def _compute_prices(self) -> None:
        """Compute prices from the present mix, in the background if there is one."""
        mix, fleet = self.learned.mix(), self.fleet()
        self._priced = mix
        if self.background is not None:
            self.background(mix, fleet)
        else:
            self.use_prices(compute_prices(mix, fleet))

    # --- shapes -----------------------------------------------------------------------------------------------------

    def _shapes(self, request: Request) -> tuple[list[Shape], IntArray]:
        """Return the pod as shapes, the most common first, as a demand may differ by model (TFLOPS), and per row the
        index of its shape, -1 if no card can ever serve. The hardest of several GPU containers counts; none if that is
        a MIG instance."""
        demand = next(iter(request.local.values()), None)
        if demand is None:
            return [], _NO_ROWS
        amounts, group = self._amounts(demand)
        shapes = [
            Shape(request.cpu_milli, request.ram_mib, demand.cards, core_milli, memory_mib, request.models)
            for core_milli, memory_mib in amounts
        ]
        return shapes, group

    def _amounts(self, demand: ContainerDemand) -> tuple[list[tuple[int, int]], IntArray]:
        """Return the different amounts, thousandths of compute and MiB, of a demand on one card, the most common first,
        and per row the index of its amount. Cached while the cards are the same."""
        if self._cards_version != self._ledger.cards_version:
            self._cards_version = self._ledger.cards_version
            self._known_amounts.clear()
        known = self._known_amounts.get(demand)
        if known is None:
            known = self._known_amounts[demand] = self._amounts_of(demand)
            if len(self._known_amounts) > AMOUNTS_LIMIT:
                self._known_amounts.popitem(last=False)
        return known

    def _amounts_of(self, demand: ContainerDemand) -> tuple[list[tuple[int, int]], IntArray]:
        rows = np.arange(len(self._ledger.changes))
        group: IntArray = np.full(len(rows), -1, dtype=np.int64)
        needs = provisioner(demand.provisioner).needs(demand, self._ledger.totals(rows))
        usable: BoolArray = needs.possible & self._ledger.present
        able = usable.any(axis=1)
        if needs.instances is not None or not able.any():
            return [], group
        at = (rows[able], usable[able].argmax(axis=1))
        asked = np.stack([needs.core[at], needs.memory_mib[at]], axis=1)
        kinds, which, counts = np.unique(asked, axis=0, return_inverse=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        group[able] = rank[which.reshape(-1)]
        listed: list[list[int]] = kinds[order].tolist()
        if demand.exclusive:
            return [(WHOLE_CARD, 0) for _ in listed], group
        return [(min(core * MILLI_PER_PERCENT, WHOLE_CARD), memory) for core, memory in listed], group


def _liked_first(scores: FloatArray, liking: FloatArray, fitting: BoolArray) -> FloatArray:
    """Raise places with the most preferred cards above the others: from 0.7 there, at most 0.3 elsewhere, 0 if it does
    not fit. The order among equals stays."""
    if not fitting.any():
        return scores
    best = liking[fitting].max()
    others = _SECOND_LIKED * np.where(best > 0, liking / max(best, 1e-9), 0) * (0.9 + 0.1 * scores)
    return _one_best(np.where(fitting, np.where(liking == best, _LIKED + (1 - _LIKED) * scores, others), 0))


def _one_best(scores: FloatArray) -> FloatArray:
    """Return 1 for the first of the highest scores, and at most 0.9 for the others, in their order; 0 stays."""
    answer = SECOND_BEST * scores
    if scores.any():
        answer[scores.argmax()] = 1.0
    return answer
