"""Where a pod fits, which cards it gets, and how good a node is: pure functions of a Ledger and a Request.

Two ways to place a pod's containers on a node's cards, with the same rules:

- *greedily*, in the order of a policy, for all nodes at once (numpy);
- *exactly*, by bounded search on one node (`egpu.core.search`), where greedy finds nothing and the pod has several GPU
  containers.

A node fits when either finds a place, whichever policy is asked about, and `choose` tries the same two. So what a
filter granted can always be bound, unless something else changed in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation, PodDemand
from egpu.api.objects import ClaimAllocation
from egpu.core import search
from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.ledger import EXCLUSIVE, FREE, Ledger, shared_mode
from egpu.core.policies import Binpack, CardsView, Policies, Policy
from egpu.core.provisioners import CardTotals, Needs, provisioner
from egpu.core.refusal import Refusal, explain_refusal
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


@dataclass
class _State:
    """Cards of the candidate rows while containers are placed on them; arrays of shape (candidates, cards).

    `core_free`, `memory_free` and `mode` change with every app and sidecar; `init_core`, `init_memory` only with
    sidecars, for plain init containers run before the apps. `base_mode` is what other pods made of the card.
    """

    rows: IntArray
    usable: BoolArray
    totals: CardTotals
    core_free: IntArray
    memory_free: IntArray
    mode: IntArray
    base_mode: IntArray
    init_core: IntArray
    init_memory: IntArray
    peak_core: IntArray
    peak_memory: IntArray
    """What is left when the pod uses the most, init containers included."""

    @classmethod
    def of(cls, ledger: Ledger, rows: IntArray) -> "_State":
        core, memory, mode = ledger.core_free[rows], ledger.memory_free[rows], ledger.mode[rows]
        tflops = {precision: figures[rows] for precision, figures in ledger.tflops.items()}
        return cls(
            rows=rows,
            usable=ledger.present[rows] & ledger.healthy[rows],
            totals=CardTotals(ledger.memory_mib[rows], tflops),
            core_free=core,
            memory_free=memory,
            mode=mode,
            base_mode=mode.copy(),
            init_core=core.copy(),
            init_memory=memory.copy(),
            peak_core=core.copy(),
            peak_memory=memory.copy(),
        )

    def view(self) -> CardsView:
        return CardsView(self.usable, self.totals.memory_mib, self.core_free, self.memory_free)

    def eligible(self, demand: ContainerDemand, needs: Needs, *, init: bool) -> BoolArray:
        """Cards that can take `demand` now."""
        core, memory = (self.init_core, self.init_memory) if init else (self.core_free, self.memory_free)
        room = self.usable & needs.possible & (core >= needs.core) & (memory >= needs.memory_mib)
        if demand.exclusive:
            # An init container may own, for a while, a card that only its own pod uses.
            return room & (self.base_mode == FREE if init else self.mode == FREE)
        own = shared_mode(demand.provisioner)
        fits_mode = (self.mode == FREE) | (self.mode == own)
        if init:
            fits_mode |= (self.mode == EXCLUSIVE) & (self.base_mode == FREE)
        return room & fits_mode

    def take(
        self, demand: ContainerDemand, needs: Needs, at: tuple[IntArray, IntArray], *, init: bool, sidecar: bool
    ) -> None:
        """Give the cells `at` to a container."""
        core, memory = needs.core[at], needs.memory_mib[at]
        if init:
            self.peak_core[at] = np.minimum(self.peak_core[at], self.init_core[at] - core)
            self.peak_memory[at] = np.minimum(self.peak_memory[at], self.init_memory[at] - memory)
            # Once exclusive, a card stays so for the pod's life.
            kept = self.mode[at] == EXCLUSIVE
            self.mode[at] = np.where(kept | demand.exclusive, EXCLUSIVE, shared_mode(demand.provisioner))
            return
        self.core_free[at] -= core
        self.memory_free[at] -= memory
        self.peak_core[at] = np.minimum(self.peak_core[at], self.core_free[at])
        self.peak_memory[at] = np.minimum(self.peak_memory[at], self.memory_free[at])
        self.mode[at] = EXCLUSIVE if demand.exclusive else shared_mode(demand.provisioner)
        if sidecar:
            self.init_core[at] -= core
            self.init_memory[at] -= memory


@dataclass(frozen=True)
class _Placed:
    """`ok` per candidate row; `columns` per container, shape (candidates, cards asked for), valid where `ok`."""

    ok: BoolArray
    columns: dict[str, IntArray]
    state: _State


def _greedy(request: Request, ledger: Ledger, rows: IntArray, policy: Policy) -> _Placed:
    """Place the containers on every candidate row at once, each on the cards that `policy` likes best."""
    state = _State.of(ledger, rows)
    ok = np.ones(len(rows), dtype=np.bool_)
    columns: dict[str, IntArray] = {}
    width = state.usable.shape[1]
    for name, demand in request.open().items():
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
        columns[name] = best
        placed = np.flatnonzero(ok)
        at = (np.repeat(placed, demand.cards), best[placed].ravel())
        state.take(demand, needs, at, init=init, sidecar=sidecar)
    return _Placed(ok, columns, state)


def _exact(request: Request, ledger: Ledger, row: int) -> dict[str, tuple[int, ...]] | None:
    """Columns per container on one node, by search; None when there is no place (or none found within bounds)."""
    rows = np.array([row])
    state = _State.of(ledger, rows)
    wishes: list[search.Wish] = []
    for name, demand in request.open().items():
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
            )
        )
    cards = search.Cards(state.core_free[0].tolist(), state.memory_free[0].tolist(), state.base_mode[0].tolist())
    return search.place(wishes, cards)


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
    if not request.open():
        return allowed
    rows, places = _rows_of(ledger, nodes)
    keep = allowed[places]
    rows, places = rows[keep], places[keep]
    ok = _greedy(request, ledger, rows, _ANY).ok
    if len(request.open()) > 1:
        for position in np.flatnonzero(~ok & _each_alone(request, ledger, rows)):
            ok[position] = _exact(request, ledger, int(rows[position])) is not None
    answer[places] = ok
    return answer


def _each_alone(request: Request, ledger: Ledger, rows: IntArray) -> BoolArray:
    """Rows on which every container would fit were it alone: elsewhere no search is needed."""
    state = _State.of(ledger, rows)
    ok = np.ones(len(rows), dtype=np.bool_)
    for name, demand in request.open().items():
        needs = provisioner(demand.provisioner).needs(demand, state.totals)
        ok &= state.eligible(demand, needs, init=name in request.demand.init).sum(axis=1) >= demand.cards
    return ok


def _allowed_by_claims(request: Request, ledger: Ledger, nodes: Sequence[str]) -> BoolArray:
    """Nodes that have, in good health, every card that the pod's bound claims hold."""
    allowed = np.ones(len(nodes), dtype=np.bool_)
    for claim in request.bound.values():
        healthy = {card.uuid for card in ledger.cards(claim.node) if card.healthy}
        alive = all(share.uuid in healthy for share in claim.container.cards)
        allowed &= np.array([alive and node == claim.node for node in nodes], dtype=np.bool_)
    return allowed


def scores(request: Request, ledger: Ledger, nodes: Sequence[str], policies: Policies) -> FloatArray:
    """How good each node is by the node policy, 0..1, shape (nodes,); 0 where the request does not fit greedily."""
    answer = np.zeros(len(nodes))
    rows, places = _rows_of(ledger, nodes)
    if not len(rows) or request.waiting:
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
    row = ledger.row(node)
    if row is not None and request.open():
        placed = _greedy(request, ledger, np.array([row]), policies.card)
        if placed.ok[0]:
            columns = {name: tuple(chosen[0].tolist()) for name, chosen in placed.columns.items()}
        else:
            columns = _columns_of_fit(request, ledger, row)
        containers |= {
            name: _allocation(demand, ledger, node, row, columns[name]) for name, demand in request.open().items()
        }
    demand = request.demand
    ordered = {name: containers[name] for name in demand.containers}
    return PodAllocation(node=node, containers=ordered, init=demand.init, sidecars=demand.sidecars)


def _columns_of_fit(request: Request, ledger: Ledger, row: int) -> dict[str, tuple[int, ...]]:
    """Where `fits` found the place, when the asked policy's own greedy order does not."""
    placed = _greedy(request, ledger, np.array([row]), _ANY)
    if placed.ok[0]:
        return {name: tuple(chosen[0].tolist()) for name, chosen in placed.columns.items()}
    found = _exact(request, ledger, row)
    if found is None:  # fits() said yes of the very same ledger
        raise AssertionError(f"row {row}: fit and choice disagree")
    return found


def _allocation(
    demand: ContainerDemand, ledger: Ledger, node: str, row: int, columns: tuple[int, ...]
) -> ContainerAllocation:
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
    return explain_refusal(request.demand, ledger, node, bound=request.bound, todo=request.open())


_ANY: Policy = Binpack()
"""The card order that `fits` tries first. Which one does not matter, as the exact search comes after it."""
