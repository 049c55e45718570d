"""A quick check, in plain numbers, whether evictions could help on one node. Most sets that a search tries free too
little, and asking the ledger costs a hundred times as much."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

import numpy as np

from egpu.core.placement.card_usage import EXCLUSIVE, Usage, card_mode
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.requests import Request
from egpu.core.provisioners import provisioner

WHOLE: Final = 100


@dataclass(frozen=True)
class _Asked:
    """A container's demand on the cards of a node, by column."""

    cards: int
    mode: int
    core: list[int]
    memory_mib: list[int]
    possible: list[bool]


class Outlook:
    """The outlook for one node and a request for its own cards."""

    def __init__(self, request: Request, ledger: Ledger, node: str) -> None:
        row = ledger.row(node)
        cards = ledger.cards(node)
        self._holders: list[list[tuple[str, Usage]]] = [
            [(holder.id, usage) for holder, usage in ledger.card_holders(node, card.uuid).items()] for card in cards
        ]
        self._memory_mib = [card.memory_mib for card in cards]
        self._asked: list[_Asked] = []
        # No check for cards of claims, nor of init containers, which may reuse their pod's own.
        plain = row is not None and not request.bound and not request.waiting
        for name, demand in request.local.items() if plain else ():
            if name in request.demand.init:
                continue
            needs = provisioner(demand.provisioner).needs(demand, ledger.totals(np.array([row])))
            possible = needs.possible[0] & ledger.healthy[row]
            mode = card_mode(demand)
            core, memory = needs.core[0].tolist(), needs.memory_mib[0].tolist()
            self._asked.append(_Asked(demand.cards, mode, core, memory, possible.tolist()))

    def may_help(self, gone: Container[str]) -> bool:
        """Return False only if there is no room with these holders gone (UIDs). True is no promise."""
        for asked in self._asked:
            found = 0
            for column in range(len(self._holders)):
                found += self._takes(column, asked, gone)
            if found < asked.cards:
                return False
        return True

    def _takes(self, column: int, asked: _Asked, gone: Container[str]) -> bool:
        if not asked.possible[column]:
            return False
        core, memory = asked.core[column], asked.memory_mib[column]
        for uid, usage in self._holders[column]:
            if uid in gone:
                continue
            if asked.mode == EXCLUSIVE or usage.mode != asked.mode:
                return False
            core += usage.core
            memory += usage.memory_mib
        return core <= WHOLE and memory <= self._memory_mib[column]
