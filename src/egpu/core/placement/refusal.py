"""Why a pod does not fit on a node, in sentences: what was asked, what each card has, what would help."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api.allocation import ContainerDemand, PodDemand
from egpu.api.objects import ClaimAllocation
from egpu.api.quantities import format_mib
from egpu.core.placement.ledger import CONFLICT, EXCLUSIVE, FREE, Card, Ledger, mode_name, shared_mode
from egpu.core.placement.links import WORDS, best_set
from egpu.core.placement.remote import servers
from egpu.core.provisioners import CardTotals, provisioner

MAX_CARDS_IN_TEXT: Final = 8
"""Cards listed in one sentence; a scheduler's event has 1024 characters in all."""


@dataclass(frozen=True)
class CardReason:
    """Why one card does not take the container."""

    uuid: str
    index: int
    reason: str


@dataclass(frozen=True)
class Refusal:
    """Why a node does not take the pod. `resolvable`: it might if other pods left, so preemption can help."""

    node: str
    reason: str
    cards: tuple[CardReason, ...] = ()
    resolvable: bool = True

    def text(self) -> str:
        """One sentence for an event: the reason, then card by card."""
        listed = [f"card {card.index} {card.reason}" for card in self.cards[:MAX_CARDS_IN_TEXT]]
        if len(self.cards) > MAX_CARDS_IN_TEXT:
            listed.append(f"and {len(self.cards) - MAX_CARDS_IN_TEXT} cards more")
        return f"{self.reason}: {'; '.join(listed)}" if listed else self.reason


def describe(demand: ContainerDemand) -> str:
    """A demand in words: "2 whole cards", "20 % and 2560 MiB of a card"."""
    many = f"{demand.cards} cards" if demand.cards > 1 else "a card"
    links = f" {WORDS[demand.links]}" if demand.links else ""
    if demand.exclusive:
        least = f" of at least {format_mib(demand.memory_mib)}" if demand.memory_mib else ""
        return ("1 whole card" if demand.cards == 1 else f"{demand.cards} whole cards") + least + links
    parts: list[str] = []
    if demand.tflops:
        parts.append(f"{demand.tflops} TFLOPS ({demand.precision})")
    if demand.core:
        parts.append(f"{demand.core} %")
    if demand.memory_mib:
        parts.append(format_mib(demand.memory_mib))
    return " and ".join(parts) + (f" of each of {many}{links}" if demand.cards > 1 else f" of {many}")


def explain_refusal(
    demand: PodDemand,
    ledger: Ledger,
    node: str,
    *,
    bound: Mapping[str, ClaimAllocation],
    todo: Mapping[str, ContainerDemand],
    pooled: Mapping[str, ContainerDemand],
) -> Refusal:
    """Why `demand` does not fit on `node`, given that it does not. `bound` are its containers whose claims have cards,
    `todo` those that need some of the node's own, `pooled` those that need some of the pool's."""
    anywhere = [name for name, claim in bound.items() if provisioner(claim.container.provisioner).anywhere]
    if (pooled or anywhere) and node not in ledger.pool:
        return Refusal(
            node, "the node takes no part in the pool (its agent has no certificate of it)", resolvable=False
        )
    for container, claim in bound.items():
        name = demand.containers[container].claim
        if container in anywhere:
            if not (claim.node in ledger.pool and ledger.pool[claim.node].serving):
                away = f"claim {name} is bound to node {claim.node}, which does not serve its cards to the pool now"
                return Refusal(node, away, resolvable=False)
        elif claim.node != node:
            return Refusal(
                node, f"claim {name} of container {container} is bound to node {claim.node}", resolvable=False
            )
        healthy = {card.uuid for card in ledger.cards(claim.node) if card.healthy}
        for share in claim.container.cards:
            if share.uuid not in healthy:
                gone = f"claim {name} is bound to card {share.index} ({share.uuid}), which is unhealthy or gone"
                return Refusal(node, gone, resolvable=False)
    for name, wish in pooled.items():
        if (refusal := _pool_refusal(name, wish, ledger, node, init=name in demand.init)) is not None:
            return refusal
    cards = ledger.cards(node)
    if not cards and todo:
        return Refusal(node, "the node has no GPU known to this scheduler", resolvable=False)
    for name, wish in todo.items():
        if (refusal := _own_refusal(name, wish, ledger, node, init=name in demand.init)) is not None:
            return refusal
    asked = ", ".join(f"{name} {describe(wish)}" for name, wish in {**todo, **pooled}.items())
    where = f"the {len(cards)} cards" if not pooled else "the cards of the node and the pool" if todo else "the pool"
    return Refusal(node, f"each container fits alone, but {where} cannot take all at once ({asked})")


def _own_refusal(name: str, wish: ContainerDemand, ledger: Ledger, node: str, *, init: bool) -> Refusal | None:
    """Why the node's own cards do not take one container; None where they do."""
    cards, found = ledger.cards(node), _card_reasons(wish, ledger, node, init=init)
    free = len(cards) - len(found)
    head = f"container {name} asks for {describe(wish)}, {free} of {len(cards)} cards can take it"
    if free < wish.cards:
        hopeless = sum(never for _, never in found)
        return Refusal(node, head, tuple(why for why, _ in found), resolvable=len(cards) - hopeless >= wish.cards)
    if wish.links and not _joined(wish, ledger, node, {why.uuid for why, _ in found}):
        hopeful = _joined(wish, ledger, node, {why.uuid for why, never in found if never})
        return Refusal(node, f"{head}, no {wish.cards} of them are {WORDS[wish.links]}", resolvable=hopeful)
    return None


def _joined(wish: ContainerDemand, ledger: Ledger, node: str, without: set[str]) -> bool:
    """Whether enough of the node's other cards are joined as the container wishes."""
    row = ledger.row(node)
    ranks = ledger.links.get(row) if row is not None else None
    columns = [column for column, card in enumerate(ledger.cards(node)) if card.uuid not in without]
    return ranks is not None and best_set(ranks, columns, wish.cards, wish.links) is not None


def _pool_refusal(name: str, wish: ContainerDemand, ledger: Ledger, node: str, *, init: bool) -> Refusal | None:
    """Why no node of the pool takes one container; None where one does."""
    offered = servers(ledger, node)
    if not offered:
        return Refusal(node, "no node serves cards to the pool now", resolvable=False)
    reasons: list[CardReason] = []
    hopeless = True
    for server in offered:
        found = _card_reasons(wish, ledger, server, init=init)
        if len(ledger.cards(server)) - len(found) >= wish.cards:
            return None
        hopeless = hopeless and len(ledger.cards(server)) - sum(never for _, never in found) < wish.cards
        reasons += [CardReason(why.uuid, why.index, f"of {server} {why.reason}") for why, _ in found]
    asked = f"container {name} asks for {describe(wish)} of the pool"
    nodes = "node" if len(offered) == 1 else "nodes"
    head = f"{asked}; {len(offered)} {nodes} with cards, none can take it"
    return Refusal(node, head, tuple(reasons), resolvable=not hopeless)


def _card_reasons(wish: ContainerDemand, ledger: Ledger, node: str, *, init: bool) -> list[tuple[CardReason, bool]]:
    """Per refusing card why, and whether it would refuse even when empty."""
    row = ledger.row(node)
    totals = CardTotals(ledger.memory_mib[row], {key: figures[row] for key, figures in ledger.tflops.items()})
    needs = provisioner(wish.provisioner).needs(wish, totals)
    reasons: list[tuple[CardReason, bool]] = []
    for column, card in enumerate(ledger.cards(node)):
        cell = (row, column)
        never = not card.healthy or not needs.possible[column]
        if never:
            why = _never(wish, card)
        else:
            why = _now(
                wish,
                card,
                mode=int(ledger.mode[cell]),
                core=(int(ledger.core_free[cell]), int(needs.core[column])),
                memory=(int(ledger.memory_free[cell]), int(needs.memory_mib[column])),
            )
        if why:
            reasons.append((CardReason(card.uuid, card.index, why), never))
    return reasons


def _never(wish: ContainerDemand, card: Card) -> str:
    if not card.healthy:
        return "is unhealthy"
    if wish.tflops:
        figure = card.tflops.get(wish.precision)
        if not figure:
            return f"({card.model}) has no {wish.precision} TFLOPS figure"
        if wish.tflops > figure:
            return f"({card.model}) has {figure:g} TFLOPS ({wish.precision}) in all"
    return f"has {format_mib(card.memory_mib)} in all"


def _now(wish: ContainerDemand, card: Card, *, mode: int, core: tuple[int, int], memory: tuple[int, int]) -> str | None:
    """`core` and `memory`: (free, needed)."""
    if mode == EXCLUSIVE:
        return "is given out whole"
    if mode == CONFLICT:
        return "is over-committed and takes nothing new"
    if wish.exclusive:
        if mode == FREE:
            return None
        taken = f"{100 - core[0]} % and {format_mib(card.memory_mib - memory[0])}"
        return f"is shared ({taken} given out)"
    if mode not in (FREE, shared_mode(wish.provisioner)):
        return f"is shared by {mode_name(mode)}"
    short: list[str] = []
    if core[0] < core[1]:
        short.append(f"{core[0]} % of compute free, {core[1]} % needed")
    if memory[0] < memory[1]:
        short.append(f"{format_mib(memory[0])} of {format_mib(card.memory_mib)} free, {format_mib(memory[1])} needed")
    return "has " + " and ".join(short) if short else None
