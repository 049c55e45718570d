"""Refusals of nodes, in sentences: the request, what each card has, what would help."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from egpu.api.allocation import ContainerDemand, core_limit_of
from egpu.api.vocabularies import profile_of
from egpu.core.attributes import describe_selection, mismatch
from egpu.core.links import WORDS, best_set
from egpu.core.mig import arrange
from egpu.core.placement.card_usage import CONFLICT, EXCLUSIVE, FREE, CardKey, card_mode, least_bound, mode_name
from egpu.core.placement.cards import Card
from egpu.core.placement.ledger import Ledger
from egpu.core.placement.remote import servers
from egpu.core.placement.requests import Request
from egpu.core.provisioners import Needs, provisioner
from egpu_base.api.quantities import format_mib

MAX_CARDS_IN_TEXT: Final = 8
"""Cards listed in one sentence; a scheduler's event has 1024 characters in all."""
MAX_KINDS_IN_TEXT: Final = 8
MAX_NAMES_IN_TEXT: Final = 3
"""Demands in one sentence, and containers named for each."""


@dataclass(frozen=True)
class CardReason:
    """The reason why one card cannot take the container."""

    uuid: str
    index: int
    reason: str
    selected: bool = True
    """True if the container selects the card at all; a text counts those that are not selected."""


@dataclass(frozen=True)
class Refusal:
    """The reason why a node cannot take the pod. `resolvable`: it might if other pods left, so preemption can help."""

    node: str
    reason: str
    cards: tuple[CardReason, ...] = ()
    resolvable: bool = True

    def text(self) -> str:
        """Return one sentence for an event: the reason, then card by card."""
        selected = [card for card in self.cards if card.selected]
        listed = [f"card {card.index} {card.reason}" for card in selected[:MAX_CARDS_IN_TEXT]]
        if len(selected) > MAX_CARDS_IN_TEXT:
            listed.append(f"and {len(selected) - MAX_CARDS_IN_TEXT} cards more")
        return f"{self.reason}: {'; '.join(listed)}" if listed else self.reason


def describe(demand: ContainerDemand) -> str:
    """Describe a demand in words: "2 whole cards", "20 % and 2560 MiB of a card"."""
    many = f"{demand.cards} cards" if demand.cards > 1 else "a card"
    links = f" {WORDS[demand.links]}" if demand.links else ""
    links += describe_selection(demand.select, demand.prefer)
    if demand.exclusive:
        least = f" of at least {format_mib(demand.memory_mib)}" if demand.memory_mib else ""
        return ("1 whole card" if demand.cards == 1 else f"{demand.cards} whole cards") + least + links
    parts: list[str] = []
    if profile := profile_of(demand.vocabulary):
        return f"an instance {profile}" + links
    if demand.tflops:
        parts.append(f"{demand.tflops} TFLOPS ({demand.precision})")
    if demand.core:
        parts.append(f"{demand.core} %")
    if demand.memory_mib:
        parts.append(format_mib(demand.memory_mib))
    if demand.memory_percent:
        parts.append(f"{demand.memory_percent} % of the memory")
    if demand.resident_percent:
        parts[-1] += f" ({demand.resident_percent} % of it always on the card)"
    return " and ".join(parts) + (f" of each of {many}" if demand.cards > 1 else f" of {many}") + links


def describe_all(demands: Mapping[str, ContainerDemand]) -> str:
    """Describe the demands of a pod's containers, equal ones together."""
    kinds: dict[ContainerDemand, list[str]] = {}
    for name, demand in demands.items():
        kinds.setdefault(demand, []).append(name)
    listed = [f"{_together(kind)} {describe(demand)}" for demand, kind in list(kinds.items())[:MAX_KINDS_IN_TEXT]]
    if len(kinds) > MAX_KINDS_IN_TEXT:
        listed.append(f"and {sum(map(len, list(kinds.values())[MAX_KINDS_IN_TEXT:]))} containers more")
    return "; ".join(listed)


def _together(containers: Sequence[str]) -> str:
    """Return some names of containers that ask for the same."""
    named = ", ".join(containers[:MAX_NAMES_IN_TEXT])
    rest = len(containers) - MAX_NAMES_IN_TEXT
    many = f" and {rest} more" if rest > 0 else ""
    return named if len(containers) == 1 else f"{named}{many} each"


def refusal(request: Request, ledger: Ledger, node: str) -> Refusal:
    """Return why the request does not fit on `node`, card by card: expensive, only for nodes where it does not."""
    if request.waiting:
        return Refusal(node, request.waiting, resolvable=False)
    demand, todo, pooled = request.demand, request.local, request.pooled
    if (why := _claims_refusal(request, ledger, node)) is not None:
        return why
    for name, one in pooled.items():
        if (why := _pool_refusal(name, one, ledger, node, init=name in demand.init)) is not None:
            return why
    cards = ledger.cards(node)
    if not cards and todo:
        return Refusal(node, "the node has no GPU known to this scheduler", resolvable=False)
    if not has_host_memory(request, ledger, node):
        return Refusal(node, _host_refusal(request, ledger, node), resolvable=False)
    tried: set[tuple[ContainerDemand, bool]] = set()
    for name, one in todo.items():
        kind = one, name in demand.init
        if kind not in tried and (why := _own_refusal(name, one, ledger, node, init=kind[1])) is not None:
            return why
        tried.add(kind)
    asked = describe_all({**todo, **pooled})
    where = f"the {len(cards)} cards" if not pooled else "the cards of the node and the pool" if todo else "the pool"
    return Refusal(node, f"each container fits alone, but {where} cannot take all at once ({asked})")


def has_host_memory(request: Request, ledger: Ledger, node: str) -> bool:
    """Return whether the node's own memory has room for all slices of the request that may be parked for others."""
    needed = _host_needed(request, ledger, node)
    return not needed or needed <= ledger.host_memory(node)[1]


def _host_needed(request: Request, ledger: Ledger, node: str) -> int:
    demands = [one for one in request.local.values() if one.resident_percent]
    row = ledger.row(node)
    if row is None or not demands:
        return 0
    present = ledger.present[row]
    return sum(int(np.where(present, ledger.whole_needs(one, row).memory_mib, 0).max()) for one in demands)


def _host_refusal(request: Request, ledger: Ledger, node: str) -> str:
    total, left = ledger.host_memory(node)
    asked = f"asks for {format_mib(_host_needed(request, ledger, node))} of the host's memory for parked slices"
    if not total:
        return f"{asked}; the node offers none (--parking-memory)"
    return f"{asked}; {format_mib(max(0, left))} of {format_mib(total)} are left"


def _claims_refusal(request: Request, ledger: Ledger, node: str) -> Refusal | None:
    """Return why the node does not reach the pool, or the cards of the bound claims; None if it does."""
    anywhere = [name for name, claim in request.bound.items() if provisioner(claim.container.provisioner).anywhere]
    if (request.pooled or anywhere) and node not in ledger.pool:
        return Refusal(
            node, "the node is not part of the pool (its agent has no certificate of the pool)", resolvable=False
        )
    for container, claim in request.bound.items():
        name = request.demand.containers[container].claim
        if container in anywhere:
            if not (claim.node in ledger.pool and ledger.pool[claim.node].serving):
                away = f"claim {name} is bound to node {claim.node}, which does not serve its cards to the pool now"
                return Refusal(node, away, resolvable=False)
        elif claim.node != node:
            return Refusal(
                node, f"claim {name} of container {container} is bound to node {claim.node}", resolvable=False
            )
        cards = {card.uuid: card for card in ledger.cards(claim.node)}
        for share in claim.container.cards:
            card = cards.get(share.uuid)
            if card is None or not card.healthy:
                why = "is gone" if card is None else card.why_not or "is unhealthy"
                return Refusal(
                    node, f"claim {name} is bound to card {share.index} ({share.uuid}), which {why}", resolvable=False
                )
    return None


def _own_refusal(name: str, demand: ContainerDemand, ledger: Ledger, node: str, *, init: bool) -> Refusal | None:
    """Return why the node's own cards cannot take one container; None if they can."""
    cards, found = ledger.cards(node), _card_reasons(demand, ledger, node, init=init)
    free = len(cards) - len(found)
    head = f"container {name} asks for {describe(demand)}, {free} of {len(cards)} cards can take it"
    unfit = Counter(why.reason for why, _ in found if not why.selected)
    head += "".join(f", {count} of {len(cards)} cards: {why}" for why, count in unfit.most_common())
    if free < demand.cards:
        hopeless = sum(never for _, never in found)
        return Refusal(node, head, tuple(why for why, _ in found), resolvable=len(cards) - hopeless >= demand.cards)
    if demand.links and not _joined(demand, ledger, node, {why.uuid for why, _ in found}):
        hopeful = _joined(demand, ledger, node, {why.uuid for why, never in found if never})
        return Refusal(node, f"{head}, no {demand.cards} of them are {WORDS[demand.links]}", resolvable=hopeful)
    return None


def _joined(demand: ContainerDemand, ledger: Ledger, node: str, without: set[str]) -> bool:
    """Return whether enough of the node's other cards are linked as the container requires."""
    row = ledger.row(node)
    ranks = ledger.links.get(row) if row is not None else None
    columns = [column for column, card in enumerate(ledger.cards(node)) if card.uuid not in without]
    return ranks is not None and best_set(ranks, columns, demand.cards, demand.links) is not None


def _pool_refusal(name: str, demand: ContainerDemand, ledger: Ledger, node: str, *, init: bool) -> Refusal | None:
    """Return why no node of the pool takes one container; None if one does."""
    offered = servers(ledger, node)
    if not offered:
        return Refusal(node, "no node serves cards to the pool now", resolvable=False)
    reasons: list[CardReason] = []
    hopeless = True
    for server in offered:
        found = _card_reasons(demand, ledger, server, init=init)
        if len(ledger.cards(server)) - len(found) >= demand.cards:
            return None
        hopeless = hopeless and len(ledger.cards(server)) - sum(never for _, never in found) < demand.cards
        reasons += [replace(why, reason=f"of {server} {why.reason}", selected=True) for why, _ in found]
    asked = f"container {name} asks for {describe(demand)} of the pool"
    nodes = "node" if len(offered) == 1 else "nodes"
    head = f"{asked}; {len(offered)} {nodes} with cards, none can take it"
    return Refusal(node, head, tuple(reasons), resolvable=not hopeless)


def _card_reasons(demand: ContainerDemand, ledger: Ledger, node: str, *, init: bool) -> list[tuple[CardReason, bool]]:
    """Return, per refusing card, why, and whether it would refuse even when empty."""
    row = ledger.row(node)
    assert row is not None
    needs = ledger.needs(demand, row)
    reasons: list[tuple[CardReason, bool]] = []
    for column, card in enumerate(ledger.cards(node)):
        cell = (row, column)
        kind = ledger.kinds[int(ledger.kind[cell])]
        other = mismatch(demand.select, kind)
        never = not card.healthy or not needs.possible[column]
        if other is not None:
            why = other
        elif card.healthy and (unsuited := provisioner(demand.provisioner).unsuited(kind)):
            why = unsuited
        elif never:
            why = _never(demand, card, needs)
        elif int(ledger.mode[cell]) == CONFLICT:
            why = _conflict(ledger, CardKey(node, card.uuid))
        else:
            why = (
                _now(
                    demand,
                    card,
                    mode=int(ledger.mode[cell]),
                    core=(int(ledger.core_free[cell]), int(needs.core[column])),
                    memory=(int(ledger.memory_free[cell]), int(needs.memory_mib[column])),
                )
                or _limited(demand, ledger, cell, int(needs.core[column]))
                or _no_place(needs, ledger, cell)
            )
        if why:
            reasons.append((CardReason(card.uuid, card.index, why, selected=other is None), never))
    return reasons


def _limited(demand: ContainerDemand, ledger: Ledger, cell: tuple[int, int], core: int) -> str | None:
    """Return which bound of limits the container would exceed; None if it would not."""
    held, most = int(ledger.core_limits[cell]), int(ledger.max_core_limits[cell])
    limit, bound = core_limit_of(core, demand.core_limit), least_bound((most, demand.max_core_limits))
    if demand.exclusive or not bound or held + limit <= bound:
        return None
    which = f"class {demand.class_name}" if bound == demand.max_core_limits else "the class of one of them"
    return f"has slices with limits of {held} % of compute, {limit} % more are above the {bound} % that {which} allows"


def _no_place(needs: Needs, ledger: Ledger, cell: tuple[int, int]) -> str | None:
    """Return which instances leave no place for a MIG instance; None if there is a place, or none is requested."""
    if needs.instances is None:
        return None
    wanted = needs.instances[int(ledger.kind[cell])]
    mig, held = ledger.instances(*cell)
    if arrange(mig, held, (wanted,)) is not None:
        return None
    there = ", ".join(f"{place} in use" for place in held) or "nothing in use"
    there += "".join(f", {place} in use by other programs" for place in mig.used if place not in held)
    foreign = [place for place in mig.others if place not in (*held, *mig.used)]
    there += "".join(f", {place} not created by this agent" for place in foreign)
    what = wanted.profile + (" or larger" if wanted.larger else "")
    return f"has no place for {what} ({there})" + ("" if wanted.cut else "; its class forbids repartitioning")


def _never(demand: ContainerDemand, card: Card, needs: Needs) -> str:
    if not card.healthy:
        return card.why_not or "is unhealthy"
    if needs.instances is None and card.mig is not None:
        return "is in MIG mode: only its instances can be used"
    if needs.instances is not None:
        if card.mig is None:
            return "is not in MIG mode"
        return "can only be cut into " + ", ".join(one.name for one in card.mig.profiles)
    if demand.tflops:
        figure = card.tflops.get(demand.precision)
        if not figure:
            return f"({card.model}) has no {demand.precision} TFLOPS figure"
        if demand.tflops > figure:
            return f"({card.model}) has {figure:g} TFLOPS ({demand.precision}) in all"
    return f"has {format_mib(card.memory_mib)} in all"


def _conflict(ledger: Ledger, key: CardKey) -> str:
    """Return why a card with holders of several modes has no room: one of them may be a reservation."""
    if ledger.overcommit(key):
        return "is over-committed and takes no new work"
    return "is reserved for another pod, and the pods that have it have not ended yet"


def _now(
    demand: ContainerDemand, card: Card, *, mode: int, core: tuple[int, int], memory: tuple[int, int]
) -> str | None:
    """Return why the card has no room now; None if it has. `core` and `memory`: (free, needed)."""
    if mode == EXCLUSIVE:
        return "is allocated whole"
    if demand.exclusive:
        if mode == FREE:
            return None
        taken = f"{100 - core[0]} % and {format_mib(card.memory_mib - memory[0])}"
        return f"is shared ({taken} allocated)"
    if mode not in (FREE, card_mode(demand)):
        return f"has slices of {mode_name(mode)}"
    short: list[str] = []
    if core[0] < core[1]:
        short.append(f"{core[0]} % of compute free, {core[1]} % needed")
    if memory[0] < memory[1]:
        short.append(f"{format_mib(memory[0])} of {format_mib(card.memory_mib)} free, {format_mib(memory[1])} needed")
    return "has " + " and ".join(short) if short else None
