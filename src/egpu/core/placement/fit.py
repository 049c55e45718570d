"""The nodes where a pod fits, and the cards that it gets: pure functions of a Ledger and a Request.

There are two ways to place a pod's containers on a node's cards, with the same rules:

- *greedily*, the fullest cards first, for all nodes at once (numpy); cards that a policy prefers go before them;
- *exactly*, by bounded search on one node (`egpu.core.placement.search`), where greedy finds nothing and the pod has
  several GPU containers.

Containers whose cards may be on another node come last, over the whole pool (`egpu.core.placement.remote`).

A node fits if either way finds a place, whatever a policy prefers, and `choose` tries the same two. So a node that
passed the filter can always be bound, unless something changes in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from egpu.api.allocation import ContainerDemand, PodAllocation, Role
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.links import best_set
from egpu.core.placement import instances, search
from egpu.core.placement.candidates import CandidateCards
from egpu.core.placement.card_usage import card_mode
from egpu.core.placement.container_allocation import container_allocation
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.node_names import chosen
from egpu.core.placement.refusal import Refusal, has_host_memory, refusal
from egpu.core.placement.remote import ServerChoice, choose_servers, nearness
from egpu.core.placement.requests import Request
from egpu.core.provisioners import provisioner
from egpu_base.errors import DoesNotFit

_PREFERRED: Final = 2.0
"""Added to the fullness (up to 1) of the cards that the policy prefers."""
_LIKED: Final = 1000.0
"""Factor of the demand's preference for a card: it comes before the policy's."""
_READY: Final = 100.0
"""Factor of a card's readiness for a MIG instance."""
_OWN_CARD: Final = 10_000.0
"""Added where an init container can reuse its pod's own share."""


@dataclass(frozen=True)
class Filtered:
    """The answer to a filter about `nodes`: `ok`, shape (nodes,). Names and reasons are computed on demand."""

    nodes: Sequence[str]
    ok: BoolArray
    _request: Request = field(repr=False)
    _ledger: Ledger = field(repr=False)

    @cached_property
    def fits(self) -> tuple[str, ...]:
        return chosen(self.nodes, self.ok)

    @cached_property
    def refused(self) -> tuple[str, ...]:
        return chosen(self.nodes, ~self.ok)

    def refusal(self, node: str) -> Refusal:
        """Return why a node was refused, from the ledger as it is now."""
        return refusal(self._request, self._ledger, node)

    def refusals(self) -> dict[str, Refusal]:
        """Return why each refused node was refused."""
        return {node: self.refusal(node) for node in self.refused}


@dataclass(frozen=True)
class _Placed:
    """`ok` per candidate row; `columns` per container, shape (candidates, cards asked for), valid where `ok`."""

    ok: BoolArray
    columns: dict[str, IntArray]
    state: CandidateCards
    readiness: FloatArray | None
    """Per candidate row, 0..1: 1 if all requested MIG instances exist; None if none are requested."""


def _greedy(
    request: Request, ledger: Ledger, rows: IntArray, *, preferred: tuple[int, ...] = (), prefer_links: bool = False
) -> _Placed:
    """Place the containers on every candidate row at once, each on the columns `preferred`, then on the fullest cards;
    or, for several cards with `prefer_links`, on those with the fastest links."""
    state = CandidateCards.of(ledger, rows, request.local.values())
    ok = np.ones(len(rows), dtype=np.bool_)
    columns: dict[str, IntArray] = {}
    ready: list[FloatArray] = []
    width = state.usable.shape[1]
    for name, demand in request.local.items():
        role = request.demand.role(name)
        if demand.cards > width:
            return _Placed(np.zeros_like(ok), {}, state, None)
        needs = ledger.needs(demand, rows)
        eligible = state.eligible(demand, needs, role)
        ok &= eligible.sum(axis=1) >= demand.cards
        scores = state.fullness(needs)
        scores[:, list(preferred)] += _PREFERRED
        if needs.instances is not None:
            readiness = state.readiness(needs, eligible)
            scores = scores + _READY * readiness
            ready.append(readiness.max(axis=1))
        if role.init:
            core, memory = state.before_apps(role)
            reusable = (core - state.peak_core >= needs.core) & (memory - state.peak_memory >= needs.memory_mib)
            scores = scores + np.where(reusable, _OWN_CARD, 0)
        scores = np.where(eligible, scores + _LIKED * state.totals.liking(demand), -np.inf)
        # A stable sort gives ties to the lowest index, whatever the candidates are.
        best = np.argsort(-scores, axis=1, kind="stable")[:, : demand.cards]
        if demand.cards > 1 and (demand.links or prefer_links):
            for position in np.flatnonzero(ok).tolist():
                likes: IntArray = np.argsort(-scores[position], kind="stable")[: int(eligible[position].sum())]
                found = _joined(ledger, int(rows[position]), likes.tolist(), demand)
                ok[position] = found is not None
                if found is not None:
                    best[position] = found
        columns[name] = best
        placed = np.flatnonzero(ok)
        at = (np.repeat(placed, demand.cards), best[placed].ravel())
        state.take(demand, needs, at, role)
    return _Placed(ok, columns, state, np.mean(ready, axis=0) if ready else None)


def _joined(ledger: Ledger, row: int, likes: list[int], demand: ContainerDemand) -> tuple[int, ...] | None:
    """Return the columns with the fastest links, of those that can take a container, liked ones first."""
    ranks = ledger.links.get(row)
    if ranks is None:
        return None if demand.links else tuple(likes[: demand.cards])
    return best_set(ranks, likes, demand.cards, demand.links)


def _exact(
    request: Request, ledger: Ledger, row: int, searches: search.Searches | None = None
) -> dict[str, tuple[int, ...]] | None:
    """Return columns per container on one node, by search; None if no place was found within bounds. `searches`: those
    for the request on other nodes."""
    rows = np.array([row])
    state = CandidateCards.of(ledger, rows, request.local.values())
    containers: list[search.ContainerNeeds] = []
    width = state.usable.shape[1]
    for name, demand in request.local.items():
        needs = ledger.needs(demand, rows)
        containers.append(
            search.ContainerNeeds(
                name=name,
                cards=demand.cards,
                core=needs.core[0].tolist(),
                memory=needs.memory_mib[0].tolist(),
                possible=(state.usable & needs.possible)[0].tolist(),
                mode=card_mode(demand),
                role=request.demand.role(name),
                instances=instances.wanted(needs, ledger, row, width),
                links=demand.links,
            )
        )
    free = state.core_free[0].tolist(), state.memory_free[0].tolist()
    allowed = partial(_within_limits, request, ledger, row) if state.bounded else None
    cards = search.Cards(*free, state.base_mode[0].tolist(), instances.cut_cards(ledger, row, width), allowed)
    return (searches or search.Searches()).place(containers, cards, ledger.links.get(row))


def _within_limits(request: Request, ledger: Ledger, row: int, places: search.Places) -> bool:
    """Return whether limits of compute add up to no more than the classes allow on any card."""
    rows = np.array([row])
    sums = CandidateCards.of(ledger, rows, request.local.values()).limit_sums
    before, bounds = sums.limits.copy(), sums.most.copy()
    for name, demand in request.local.items():
        if demand.exclusive:
            continue
        needs, role, columns = ledger.needs(demand, rows), request.demand.role(name), np.array(places[name])
        sums.take(demand, needs, (np.zeros_like(columns), columns), role)
    same = (sums.limits == before) & (sums.most == bounds)
    return bool((same | (sums.most == 0) | (sums.limits <= sums.most)).all())


def fits(request: Request, ledger: Ledger, nodes: Sequence[str]) -> BoolArray:
    """Return for each of `nodes` whether the request fits there now, shape (nodes,). Changes nothing."""
    answer = np.zeros(len(nodes), dtype=np.bool_)
    if not request.demand.containers:
        answer[:] = True
        return answer
    if request.waiting:
        return answer
    allowed = _allowed_by_claims(request, ledger, nodes)
    if request.local:
        rows, places = ledger.rows_of(nodes)
        if request.bound:
            keep = allowed[places]
            rows, places = rows[keep], places[keep]
        answer[places] = _fits_locally(request, ledger, rows)
        if any(demand.resident_percent for demand in request.local.values()):
            for place in np.flatnonzero(answer).tolist():
                answer[place] = has_host_memory(request, ledger, nodes[place])
    else:
        answer = allowed
    return answer & _fits_pool(request, ledger, nodes, answer) if request.pooled else answer


def filter_nodes(request: Request, ledger: Ledger, nodes: Sequence[str]) -> Filtered:
    """Return which of `nodes` can take the request now. Changes nothing."""
    return Filtered(nodes, fits(request, ledger, nodes), request, ledger)


def _fits_pool(request: Request, ledger: Ledger, nodes: Sequence[str], local: BoolArray) -> BoolArray:
    """Return the nodes on which the pool serves the request, of those whose own cards do their part (`local`)."""
    answer = np.array([node in ledger.pool for node in nodes], dtype=np.bool_)
    if not answer.any() or choose_servers(request, ledger, "") is None:
        return np.zeros_like(answer)
    if request.local:
        # Only serving nodes are affected by the pod's other containers.
        for position in np.flatnonzero(answer & local).tolist():
            node = nodes[position]
            row = ledger.row(node)
            if row is not None and ledger.pool[node].serving:
                columns = _columns_of_fit(request, ledger, row) or {}
                answer[position] = choose_servers(request, ledger, "", taken=(row, columns)) is not None
    return answer


def _fits_locally(request: Request, ledger: Ledger, rows: IntArray) -> BoolArray:
    """Return the rows whose own cards can take the containers that need them, all at once."""
    ok = _each_alone(request, ledger, rows)
    demands = list(request.local.values())
    if len(demands) == 1 and not demands[0].links:
        return ok
    for_all = np.flatnonzero(ok)
    placed = _greedy(request, ledger, rows[for_all]).ok
    ok[for_all] = placed
    if len(demands) > 1:
        searches = search.Searches()
        for position in for_all[~placed].tolist():
            ok[position] = _exact(request, ledger, int(rows[position]), searches) is not None
    return ok


def _each_alone(request: Request, ledger: Ledger, rows: IntArray) -> BoolArray:
    """Return the rows on which every container would fit alone."""
    each = [
        _alone(demand, ledger, init=name in request.demand.init).take(rows) for name, demand in request.local.items()
    ]
    return each[0] if len(each) == 1 else np.logical_and.reduce(each)


def _alone(demand: ContainerDemand, ledger: Ledger, *, init: bool) -> BoolArray:
    """Return, of all rows, those on which the container would fit alone."""

    def answer(rows: IntArray) -> BoolArray:
        state = CandidateCards.looked_at(ledger, rows)
        needs = ledger.needs(demand, rows)
        found: BoolArray = state.eligible(demand, needs, Role(init=init)).sum(axis=1) >= demand.cards
        return found

    return ledger.verdicts.of((demand, init), answer)


def _allowed_by_claims(request: Request, ledger: Ledger, nodes: Sequence[str]) -> BoolArray:
    """Return the nodes that have every card of the pod's bound claims, healthy, or reach it through the pool."""
    allowed = np.ones(len(nodes), dtype=np.bool_)
    for claim in request.bound.values():
        healthy = {card.uuid for card in ledger.cards(claim.node) if card.healthy}
        alive = all(share.uuid in healthy for share in claim.container.cards)
        if provisioner(claim.container.provisioner).anywhere:
            served = alive and claim.node in ledger.pool and ledger.pool[claim.node].serving
            allowed &= np.array([served and node in ledger.pool for node in nodes], dtype=np.bool_)
        else:
            allowed &= np.array([alive and node == claim.node for node in nodes], dtype=np.bool_)
    return allowed


def fullness(request: Request, ledger: Ledger, nodes: Sequence[str]) -> FloatArray:
    """Return how good each node is without a policy, 0..1, shape (nodes,). For MIG instances existing ones come first,
    then fuller cards; for the pool nearer cards; 0 if the request does not fit greedily."""
    answer = np.zeros(len(nodes))
    if request.waiting:
        return answer
    if not request.local and request.pooled:
        return np.where(fits(request, ledger, nodes), nearness(request, ledger, nodes), 0)
    rows, places = ledger.rows_of(nodes)
    if len(rows):
        placed = _greedy(request, ledger, rows)
        good = instances.ready_first(placed.readiness, placed.state.mean_fullness())
        answer[places] = np.where(placed.ok, good, 0)
    return answer


def liking(request: Request, ledger: Ledger, nodes: Sequence[str]) -> FloatArray:
    """Return how much the request prefers each node's best card, 0..1, shape (nodes,), by its first preference."""
    name, demand = next((name, one) for name, one in request.local.items() if one.prefer)
    answer = np.zeros(len(nodes))
    rows, places = ledger.rows_of(nodes)
    if len(rows):
        state = CandidateCards.looked_at(ledger, rows)
        needs = ledger.needs(demand, rows)
        eligible = state.eligible(demand, needs, request.demand.role(name))
        answer[places] = np.where(eligible, state.totals.liking(demand), 0).max(axis=1)
    return answer


def choose(request: Request, ledger: Ledger, node: str, preferred: tuple[int, ...] = ()) -> PodAllocation:
    """Return the cards for the request on `node`: the fitting ones of the columns `preferred`, then the fullest.
    Changes nothing: the caller records it.

    Raises DoesNotFit with the whole explanation. Never raises if `fits` is true for the same ledger.
    """
    chosen = _chosen(request, ledger, node, preferred)
    if chosen is None:
        raise DoesNotFit(refusal(request, ledger, node).text())
    columns, pooled = chosen
    containers = {
        name: replace(claim.container, claim=request.demand.containers[name].claim)
        for name, claim in request.bound.items()
    }
    demands = request.open
    row = ledger.row(node)
    places = instances.placed(demands, ledger, row, columns) if row is not None else {}
    containers |= {
        name: container_allocation(demands[name], ledger, node, placed, places.get(name))
        for name, placed in columns.items()
    } | {
        name: replace(container_allocation(demands[name], ledger, choice.server, choice.columns), server=choice.server)
        for name, choice in pooled.items()
    }
    demand = request.demand
    ordered = {name: containers[name] for name in demand.containers}
    return PodAllocation(node=node, containers=ordered, init=demand.init, sidecars=demand.sidecars)


def _chosen(
    request: Request, ledger: Ledger, node: str, preferred: tuple[int, ...]
) -> tuple[dict[str, tuple[int, ...]], dict[str, ServerChoice]] | None:
    """Return the columns of the node's own cards, and those of the pool: as preferred, or else as `fits` finds them;
    None if it finds none."""
    if request.waiting or not _allowed_by_claims(request, ledger, [node])[0]:
        return None
    if not has_host_memory(request, ledger, node):
        return None
    row = ledger.row(node)
    columns: dict[str, tuple[int, ...]] | None = {}
    if request.local:
        if row is None:
            return None
        columns = _as_preferred(request, ledger, row, preferred)
        if columns is None:
            placed = _greedy(request, ledger, np.array([row]), preferred=preferred, prefer_links=True)
            columns = _columns(placed) if placed.ok[0] else _columns_of_fit(request, ledger, row)
    if columns is None or not request.pooled:
        return None if columns is None else (columns, {})
    if node not in ledger.pool:
        return None
    found = choose_servers(request, ledger, node, taken=(row, columns))
    if found is None:
        if request.local and row is not None:
            columns = _columns_of_fit(request, ledger, row) or columns
        found = choose_servers(request, ledger, "", taken=(row, columns))
    return None if found is None else (columns, found)


def _as_preferred(
    request: Request, ledger: Ledger, row: int, preferred: tuple[int, ...]
) -> dict[str, tuple[int, ...]] | None:
    """Return `_greedy`'s result where the preferred columns only have to be checked; None elsewhere."""
    if len(request.local) != 1:
        return None
    ((name, demand),) = request.local.items()
    if len(preferred) != demand.cards or demand.prefer or (demand.cards > 1 and row in ledger.links):
        return None
    needs = ledger.needs(demand, np.array([row]))
    if demand.links or needs.instances is not None or name in request.demand.init:
        return None
    state = CandidateCards.looked_at(ledger, np.array([row]))
    return {name: preferred} if state.eligible(demand, needs, Role())[0, list(preferred)].all() else None


def _columns(placed: _Placed) -> dict[str, tuple[int, ...]]:
    return {name: tuple(chosen[0].tolist()) for name, chosen in placed.columns.items()}


def _columns_of_fit(request: Request, ledger: Ledger, row: int) -> dict[str, tuple[int, ...]] | None:
    """Return the place that `fits` finds, without preferences, which may get in the way."""
    placed = _greedy(request, ledger, np.array([row]))
    return _columns(placed) if placed.ok[0] else _exact(request, ledger, row)
