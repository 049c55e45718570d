"""Cards of other nodes: which cards of the pool a container gets.

The pod's own node comes first (program and executor share memory there), then the fastest link, then the fullest node
that has room. All cards of a container are on one node. Containers are placed one after the other without retries: a
pod of several may have to wait although a place exists, never the other way round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from egpu.core.arrays import FloatArray, IntArray
from egpu.core.placement.candidates import CandidateCards
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.requests import Request
from egpu.core.provisioners import provisioner

ELSEWHERE: Final = 0.5
"""Score of a node on the pool's fastest link that has no card for the pod itself; its own card is worth 1."""

_LIKED: Final = 1000.0
"""Factor of a demand's preference for a card: it comes before fullness."""


@dataclass(frozen=True)
class ServerChoice:
    """The cards of a container: the node that serves them, and their columns there."""

    server: str
    columns: tuple[int, ...]


def servers(ledger: Ledger, node: str) -> list[str]:
    """Return the serving nodes in the order in which a pod on `node` is offered them."""

    def order(name: str) -> tuple[bool, int, int, str]:
        row = ledger.row(name)
        return (name != node, -ledger.pool[name].link_mbps, int(ledger.core_free[row].sum()), name)

    return sorted(
        (name for name, one in ledger.pool.items() if one.serving and ledger.row(name) is not None), key=order
    )


def choose_servers(
    request: Request,
    ledger: Ledger,
    node: str,
    *,
    taken: tuple[int | None, Mapping[str, tuple[int, ...]]] = (None, {}),
) -> dict[str, ServerChoice] | None:
    """Return a place for each pooled container of a pod on `node` ("" for any node), or None.

    `taken`: the row of the pod's node and the columns that its other containers get there.
    """
    order = servers(ledger, node)
    if not order:
        return None
    rows: IntArray = np.array([ledger.row(name) for name in order], dtype=np.int64)
    cards = CandidateCards.of(ledger, rows, (*request.local.values(), *request.pooled.values()))
    _take_local(request, cards, *taken)
    found: dict[str, ServerChoice] = {}
    for name, demand in request.pooled.items():
        role = request.demand.role(name)
        needs = provisioner(demand.provisioner).needs(demand, cards.totals)
        eligible = cards.eligible(demand, needs, role)
        able = np.flatnonzero(eligible.sum(axis=1) >= demand.cards)
        if not len(able):
            return None
        liking = np.where(eligible, cards.totals.liking(demand), 0)
        at = int(able[liking[able].max(axis=1).argmax()])  # the first of the most preferred
        scores = np.where(eligible[at], cards.fullness(needs)[at] + _LIKED * liking[at], -np.inf)
        best: IntArray = np.argsort(-scores, kind="stable")[: demand.cards]
        cards.take(demand, needs, (np.full(demand.cards, at), best), role)
        found[name] = ServerChoice(order[at], tuple(best.tolist()))
    return found


def _take_local(
    request: Request, cards: CandidateCards, row: int | None, columns: Mapping[str, tuple[int, ...]]
) -> None:
    """Take from the pool's cards what the pod's other containers get of the node's own cards."""
    at = np.flatnonzero(cards.rows == row) if row is not None else np.zeros(0)
    if not len(at):
        return
    for name, demand in request.local.items():
        chosen = np.array(columns[name], dtype=np.int64)
        needs = provisioner(demand.provisioner).needs(demand, cards.totals)
        cards.take(demand, needs, (np.full(len(chosen), int(at[0])), chosen), request.demand.role(name))


def nearness(request: Request, ledger: Ledger, nodes: Sequence[str]) -> FloatArray:
    """Return how near the pool's cards are to each node: 1 if the first container finds its own, less by the link."""
    fastest = max((one.link_mbps for one in ledger.pool.values()), default=0)
    answer = np.array(
        [ELSEWHERE * ledger.pool[node].link_mbps / max(fastest, 1) if node in ledger.pool else 0.0 for node in nodes]
    )
    here = [
        (place, row)
        for place, node in enumerate(nodes)
        if (row := ledger.row(node)) is not None and node in ledger.pool and ledger.pool[node].serving
    ]
    if here:
        name, demand = next(iter(request.pooled.items()))
        cards = CandidateCards.looked_at(ledger, np.array([row for _, row in here], dtype=np.int64))
        needs = provisioner(demand.provisioner).needs(demand, cards.totals)
        own = cards.eligible(demand, needs, request.demand.role(name)).sum(axis=1) >= demand.cards
        answer[np.array([place for place, _ in here])[own]] = 1.0
    return answer
