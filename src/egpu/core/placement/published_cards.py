"""The cards that agents publish, node by node, into the ledger.

An agent may be an attacker's, if its node is. It can publish any number of cards of its own node. Each would cost time
and memory on all nodes, so those beyond a limit are left out, whatever becomes of the others."""

import sys
from collections.abc import Callable

from egpu.api import names
from egpu.api.objects import ElasticGPU
from egpu.core.demand.selection import Selection
from egpu.core.placement.cards import Card, NodeCards
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.published import card_of, is_card


class PublishedCards:
    """The cards that agents publish, copied to ledger and selection; the objects are not kept. `problems`, by
    `gpu/NAME`: cards that are published twice, and nodes with too many. `changed` is called with each node whose cards
    changed."""

    def __init__(
        self, ledger: Ledger, selection: Selection, problems: dict[str, str], changed: Callable[[str], None]
    ) -> None:
        self._ledger = ledger
        self._selection = selection
        self._problems = problems
        self._changed = changed
        self._node_of: dict[str, str] = {}
        """The node of each card, by the name of its object."""
        self._cards: dict[str, dict[str, Card]] = {}
        """The cards of each node, by the names of their objects."""

    def names(self, node: str) -> list[str]:
        """Return the names of the objects of a node's cards."""
        return list(self._cards.get(node, ()))

    def changed(self, *gpus: ElasticGPU) -> None:
        """Record objects, after removing those that left their node or are no card. Counts each node once."""
        nodes: dict[str, None] = {}
        for gpu in gpus:
            node = sys.intern(gpu.spec.node_name)
            if not is_card(gpu) or self._node_of.get(gpu.name, node) != node:
                self.deleted(gpu.name)
            if not is_card(gpu):
                continue
            card, cards = card_of(gpu), self._cards.setdefault(node, {})
            if gpu.name not in cards and len(cards) >= names.MAX_CARDS_PER_NODE:
                most = names.MAX_CARDS_PER_NODE
                self._problems[f"gpu/{node}"] = f"node {node} publishes more than {most} cards; the others are left out"
                continue
            if cards.get(gpu.name) != card:
                cards[gpu.name] = card
                self._node_of[gpu.name] = node
                nodes[node] = None
        for node in [one for one in nodes if one in self._cards]:
            self._recount(node)

    def deleted(self, name: str) -> None:
        """Remove a card; does nothing for another object."""
        node = self._node_of.pop(name, None)
        if node is not None:
            del self._cards[node][name]
            self._problems.pop(f"gpu/{name}", None)
            self._problems.pop(f"gpu/{node}", None)
            self._recount(node)

    def _recount(self, node: str) -> None:
        cards: dict[str, Card] = {}
        for name, card in sorted(self._cards[node].items()):
            if card.uuid in cards:
                self._problems[f"gpu/{name}"] = f"ElasticGPU {name} publishes {card.uuid} a second time"
                continue
            self._problems.pop(f"gpu/{name}", None)
            cards[card.uuid] = card
        if cards:
            self._ledger.set_node(NodeCards(node, tuple(cards.values())))
            self._selection.cards_changed(node, self._ledger.cards(node)[0].model)
        else:
            del self._cards[node]
            self._ledger.remove_node(node)
            self._selection.cards_changed(node, None)
        self._changed(node)
