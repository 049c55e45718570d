"""Where a pod fits, which cards it gets, and how good a node is: pure functions of a Ledger and a Request.

Two ways to place a pod's containers on a node's cards, with the same rules:

- *greedily*, in the order of a policy, for all nodes at once (numpy);
- *exactly*, by bounded search on one node (`egpu.core.placement.search`), where greedy finds nothing and the pod has
  several GPU containers.

Containers whose cards may be another node's come after those, over the whole pool (`egpu.core.placement.remote`).

A node fits when either finds a place, whichever policy is asked about, and `choose` tries the same two. So what a
filter granted can always be bound, unless something else changed in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation, PodDemand
from egpu.api.objects import ClaimAllocation
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.placement import search
from egpu.core.placement.candidates import Board
from egpu.core.placement.ledger import EXCLUSIVE, Ledger, shared_mode
from egpu.core.placement.links import best_set
from egpu.core.placement.preference import Binpack, CardsView, Policies, Policy
from egpu.core.placement.refusal import Refusal, explain_refusal
from egpu.core.placement.remote import Seat, near, seats
from egpu.core.provisioners import CardTotals, provisioner
from egpu.errors import DoesNotFit

_OWN_CARD_BONUS = 1000.0
"""Added to a policy's card score (which is about 1) where an init container can reuse what its pod has there anyway."""


@dataclass(frozen=True)
class Request:
    """What is to be placed. `demand` lists every GPU container; those in `bound` use a claim that has its cards.

    `waiting` is a reason for which no node can take the pod now (a claim that is not bound, a technology not built).
    """

    demand: PodDemand
    bound: Mapping[str, ClaimAllocation] = field(default_factory=dict[str, ClaimAllocation])
    waiting: str = ""
    cpu_milli: int = 0
    ram_mib: int = 0
    """CPU and memory that the pod asks for: scoring looks at them, fitting does not."""
    models: tuple[str, ...] = ()
    """Card models of the nodes that it selects, () for any: scoring looks at them; the scheduler offers no others."""

    def open(self) -> dict[str, ContainerDemand]:
        """The containers that need cards chosen, in the order of placing: apps and sidecars before plain init
        containers (which then reuse their cards), the hardest to place first."""
        todo = {name: demand for name, demand in self.demand.containers.items() if name not in self.bound}
        init = self.demand.init

        def difficulty(name: str) -> tuple[bool, bool, int, int, int, int, str]:
            demand = todo[name]
            size = (-demand.cards, -demand.tflops, -demand.memory_mib, -demand.core)
            return (name in init, not demand.exclusive, *size, name)

        return {name: todo[name] for name in sorted(todo, key=difficulty)}

    def local(self) -> dict[str, ContainerDemand]:
        """Those of `open` whose cards have to be the node's own."""
        return {name: demand for name, demand in self.open().items() if not provisioner(demand.provisioner).anywhere}

    def pooled(self) -> dict[str, ContainerDemand]:
        """Those of `open` whose cards may be another node's."""
        return {name: demand for name, demand in self.open().items() if provisioner(demand.provisioner).anywhere}


@dataclass(frozen=True)
class _Placed:
    """`ok` per candidate row; `columns` per container, shape (candidates, cards asked for), valid where `ok`."""

    ok: BoolArray
    columns: dict[str, IntArray]
    state: Board


def _greedy(request: Request, ledger: Ledger, rows: IntArray, policy: Policy, *, prefer_links: bool = False) -> _Placed:
    """Place the containers on every candidate row at once, each on the cards that `policy` likes best, or, of several
    cards with `prefer_links`, on those that are joined best."""
    state = Board.of(ledger, rows)
    ok = np.ones(len(rows), dtype=np.bool_)
    columns: dict[str, IntArray] = {}
    width = state.usable.shape[1]
    for name, demand in request.local().items():
        init, sidecar = name in request.demand.init, name in request.demand.sidecars
        if demand.cards > width:
            return _Placed(np.zeros_like(ok), {}, state)
        needs = provisioner(demand.provisioner).needs(demand, state.totals)
        eligible = state.eligible(demand, needs, init=init)
        ok &= eligible.sum(axis=1) >= demand.cards
        scores = policy.card_scores(state.view(), needs)
        if init:
            reusable = (state.init_core - state.peak_core >= needs.core) & (
                state.init_memory - state.peak_memory >= needs.memory_mib
            )
            scores = scores + np.where(reusable, _OWN_CARD_BONUS, 0)
        scores = np.where(eligible, scores, -np.inf)
        # Stable, so ties go to the lowest index whatever the candidates are.
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
        state.take(demand, needs, at, init=init, sidecar=sidecar)
    return _Placed(ok, columns, state)


def _joined(ledger: Ledger, row: int, likes: list[int], demand: ContainerDemand) -> tuple[int, ...] | None:
    """Of the columns that can take a container of several cards, liked ones first, those joined best."""
    ranks = ledger.links.get(row)
    if ranks is None:
        return None if demand.links else tuple(likes[: demand.cards])
    return best_set(ranks, likes, demand.cards, demand.links)


def _exact(request: Request, ledger: Ledger, row: int) -> dict[str, tuple[int, ...]] | None:
    """Columns per container on one node, by search; None when there is no place (or none found within bounds)."""
    rows = np.array([row])
    state = Board.of(ledger, rows)
    wishes: list[search.Wish] = []
    for name, demand in request.local().items():
        needs = provisioner(demand.provisioner).needs(demand, state.totals)
        wishes.append(
            search.Wish(
                name=name,
                cards=demand.cards,
                core=needs.core[0].tolist(),
                memory=needs.memory_mib[0].tolist(),
                possible=(state.usable & needs.possible)[0].tolist(),
                mode=EXCLUSIVE if demand.exclusive else shared_mode(demand.provisioner),
                init=name in request.demand.init,
                sidecar=name in request.demand.sidecars,
                links=demand.links,
            )
        )
    cards = search.Cards(state.core_free[0].tolist(), state.memory_free[0].tolist(), state.base_mode[0].tolist())
    return search.place(wishes, cards, ledger.links.get(row))


def _rows_of(ledger: Ledger, nodes: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Rows of the nodes that have cards, and their positions in `nodes`."""
    found = [(row, place) for place, node in enumerate(nodes) if (row := ledger.row(node)) is not None]
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def fits(request: Request, ledger: Ledger, nodes: Sequence[str]) -> BoolArray:
    """For each of `nodes` whether the request fits there now, shape (nodes,). Changes nothing."""
    answer = np.zeros(len(nodes), dtype=np.bool_)
    if not request.demand.containers:
        answer[:] = True
        return answer
    if request.waiting:
        return answer
    allowed = _allowed_by_claims(request, ledger, nodes)
    if request.local():
        rows, places = _rows_of(ledger, nodes)
        keep = allowed[places]
        rows, places = rows[keep], places[keep]
        ok = _greedy(request, ledger, rows, _ANY).ok
        if len(request.local()) > 1:
            for position in np.flatnonzero(~ok & _each_alone(request, ledger, rows)):
                ok[position] = _exact(request, ledger, int(rows[position])) is not None
        answer[places] = ok
    else:
        answer = allowed
    return answer & _fits_pool(request, ledger, nodes, answer) if request.pooled() else answer


def _fits_pool(request: Request, ledger: Ledger, nodes: Sequence[str], local: BoolArray) -> BoolArray:
    """Nodes on which the pool serves the request, of those whose own cards do their part (`local`)."""
    answer = np.array([node in ledger.pool for node in nodes], dtype=np.bool_)
    if not answer.any() or seats(request, ledger, "", _ANY) is None:
        return np.zeros_like(answer)
    if request.local():
        # Only there does it matter what the pod's other containers take.
        for position in np.flatnonzero(answer & local).tolist():
            node = nodes[position]
            row = ledger.row(node)
            if row is not None and ledger.pool[node].serving:
                columns = _columns_of_fit(request, ledger, row)
                answer[position] = seats(request, ledger, "", _ANY, taken=(row, columns)) is not None
    return answer


def _each_alone(request: Request, ledger: Ledger, rows: IntArray) -> BoolArray:
    """Rows on which every container would fit were it alone: elsewhere no search is needed."""
    state = Board.of(ledger, rows)
    ok = np.ones(len(rows), dtype=np.bool_)
    for name, demand in request.local().items():
        needs = provisioner(demand.provisioner).needs(demand, state.totals)
        ok &= state.eligible(demand, needs, init=name in request.demand.init).sum(axis=1) >= demand.cards
    return ok


def _allowed_by_claims(request: Request, ledger: Ledger, nodes: Sequence[str]) -> BoolArray:
    """Nodes that have, in good health, every card that the pod's bound claims hold, or reach it in the pool."""
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


def scores(request: Request, ledger: Ledger, nodes: Sequence[str], policies: Policies) -> FloatArray:
    """How good each node is by the node policy, 0..1, shape (nodes,); 0 where the request does not fit greedily."""
    answer = np.zeros(len(nodes))
    if request.waiting:
        return answer
    if not request.local() and request.pooled():
        return np.where(fits(request, ledger, nodes), near(request, ledger, nodes), 0)
    rows, places = _rows_of(ledger, nodes)
    if not len(rows):
        return answer
    placed = _greedy(request, ledger, rows, policies.card)
    state = placed.state
    after = CardsView(state.usable, state.totals.memory_mib, state.peak_core, state.peak_memory)
    answer[places] = np.where(placed.ok, np.clip(policies.node.node_scores(after), 0, 1), 0)
    return answer


def choose(request: Request, ledger: Ledger, node: str, policies: Policies) -> PodAllocation:
    """The cards for the request on `node`, by the card policy. Changes nothing: the caller records it.

    Raises DoesNotFit with the whole explanation. Never raises where `fits` said yes of the same ledger.
    """
    if not fits(request, ledger, [node])[0]:
        raise DoesNotFit(refusal(request, ledger, node).text())
    containers = {
        name: replace(claim.container, claim=request.demand.containers[name].claim)
        for name, claim in request.bound.items()
    }
    columns, pooled = _chosen(request, ledger, node, policies.card)
    demands = request.open()
    containers |= {name: _allocation(demands[name], ledger, node, placed) for name, placed in columns.items()} | {
        name: replace(_allocation(demands[name], ledger, seat.server, seat.columns), server=seat.server)
        for name, seat in pooled.items()
    }
    demand = request.demand
    ordered = {name: containers[name] for name in demand.containers}
    return PodAllocation(node=node, containers=ordered, init=demand.init, sidecars=demand.sidecars)


def _chosen(
    request: Request, ledger: Ledger, node: str, policy: Policy
) -> tuple[dict[str, tuple[int, ...]], dict[str, Seat]]:
    """Columns of the node's own cards, and seats in the pool: as the policy likes it, or else as `fits` found it."""
    row = ledger.row(node)
    columns: dict[str, tuple[int, ...]] = {}
    if row is not None and request.local():
        placed = _greedy(request, ledger, np.array([row]), policy, prefer_links=True)
        columns = _columns(placed) if placed.ok[0] else _columns_of_fit(request, ledger, row)
    if not request.pooled():
        return columns, {}
    found = seats(request, ledger, node, policy, taken=(row, columns))
    if found is None:
        columns = _columns_of_fit(request, ledger, row) if row is not None and request.local() else {}
        found = seats(request, ledger, "", _ANY, taken=(row, columns))
    if found is None:  # fits() said yes of the very same ledger
        raise AssertionError(f"{node}: fit and choice disagree about the pool")
    return columns, found


def _columns(placed: _Placed) -> dict[str, tuple[int, ...]]:
    return {name: tuple(chosen[0].tolist()) for name, chosen in placed.columns.items()}


def _columns_of_fit(request: Request, ledger: Ledger, row: int) -> dict[str, tuple[int, ...]]:
    """Where `fits` found the place, when the asked policy's own greedy order does not."""
    placed = _greedy(request, ledger, np.array([row]), _ANY)
    if placed.ok[0]:
        return _columns(placed)
    found = _exact(request, ledger, row)
    if found is None:  # fits() said yes of the very same ledger
        raise AssertionError(f"row {row}: fit and choice disagree")
    return found


def _allocation(demand: ContainerDemand, ledger: Ledger, node: str, columns: tuple[int, ...]) -> ContainerAllocation:
    row = ledger.row(node)
    totals = CardTotals(ledger.memory_mib[row], {key: figures[row] for key, figures in ledger.tflops.items()})
    needs = provisioner(demand.provisioner).needs(demand, totals)
    cards = ledger.cards(node)
    return ContainerAllocation(
        provisioner=provisioner(demand.provisioner).name,
        mode="exclusive" if demand.exclusive else "shared",
        class_name=demand.class_name,
        claim=demand.claim,
        core_limit=demand.core_limit,
        memory_limit_percent=demand.memory_limit_percent,
        vocabulary=demand.vocabulary,
        cards=tuple(
            CardShare(
                uuid=cards[column].uuid,
                index=cards[column].index,
                minor=cards[column].minor,
                core=int(needs.core[column]),
                memory_mib=int(needs.memory_mib[column]),
                model=cards[column].model,
                card_memory_mib=cards[column].memory_mib,
            )
            for column in sorted(columns)
        ),
    )


def refusal(request: Request, ledger: Ledger, node: str) -> Refusal:
    """Why the request does not fit on `node`, card by card. For nodes where it does not: reasons are dear."""
    if request.waiting:
        return Refusal(node, request.waiting, resolvable=False)
    return explain_refusal(
        request.demand, ledger, node, bound=request.bound, todo=request.local(), pooled=request.pooled()
    )


_ANY: Policy = Binpack()
"""The card order that `fits` tries first. Which one does not matter, as the exact search comes after it."""
