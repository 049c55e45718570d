"""Explanations of nodes: the free part of each card, its holders, and why waiting pods do not fit."""

from collections.abc import Iterable
from typing import Final

from egpu.core.explain import Explanation
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.card_usage import FREE, mode_name
from egpu.core.placement.cards import Card
from egpu.core.placement.node_filters import is_ready
from egpu.core.placement.requests import awaits_placement
from egpu.core.thrashing import thrashing_cards
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.quantities import format_mib
from egpu_base.errors import InvalidDemand

MOST_PODS: Final = 8
"""Waiting pods that are told: a node of a full cluster has thousands."""


def explain_node(node: Node, cache: SchedulerCache, pods: Iterable[Pod]) -> Explanation:
    """Explain `node` from the objects that `cache` was shown. `state`: "open" or "closed" to new GPU pods."""
    why = _why_closed(node, cache)
    details = [_card(card, node.name, cache) for card in cache.ledger.cards(node.name)]
    details += _host_memory(node.name, cache)
    details += _thrashing(node, cache)
    waiting = [pod for pod in pods if awaits_placement(pod)]
    details += [f"pod {pod.key} waits: {_fit(pod, node.name, cache)}" for pod in waiting[:MOST_PODS]]
    if len(waiting) > MOST_PODS:
        details.append(f"and {len(waiting) - MOST_PODS} more pods wait")
    summary = f"takes no new GPU pods: {why}" if why else "takes new GPU pods"
    return Explanation(node.name, "closed" if why else "open", summary, tuple(details), kind="node")


def _why_closed(node: Node, cache: SchedulerCache) -> str:
    cards = cache.ledger.cards(node.name)
    if not is_ready(node):
        return "it is not ready"
    if node.spec.unschedulable:
        return f"it is cordoned. Allow new pods with kubectl uncordon {node.name}"
    if not cards:
        return "its agent publishes no cards"
    return "" if any(card.healthy for card in cards) else "none of its cards takes new work"


def _card(card: Card, node: str, cache: SchedulerCache) -> str:
    ledger = cache.ledger
    row = ledger.row(node)
    column = ledger.cards(node).index(card)
    mode = int(ledger.mode[row, column])
    free = f"{int(ledger.core_free[row, column])} % and {format_mib(int(ledger.memory_free[row, column]))} free"
    shared = "" if mode == FREE else f", {mode_name(mode)}"
    state = "" if card.healthy else f", takes no new work: it {card.why_not}"
    holders = sorted(map(cache.holder_name, ledger.card_holders(node, card.uuid)))
    by = f"; held by {', '.join(holders)}" if holders else ""
    return f"card {card.index} {card.model} ({card.uuid}): {free}{shared}{state}{by}"


def _host_memory(node: str, cache: SchedulerCache) -> list[str]:
    total, left = cache.ledger.host_memory(node)
    said = f"the node's own memory for parked slices: {format_mib(max(0, left))} of {format_mib(total)} free"
    return [said] if total else []


def _thrashing(node: Node, cache: SchedulerCache) -> list[str]:
    found = thrashing_cards(node)
    return [
        f"card {card.index} thrashes: slices that share its room wait for each other most of the time. Use a card with "
        "more memory, or fewer slices of classes with parkingResident"
        for card in cache.ledger.cards(node.name)
        if card.uuid in found
    ]


def _fit(pod: Pod, node: str, cache: SchedulerCache) -> str:
    """Return why a waiting pod does not fit on the node, by its cards alone."""
    try:
        request = cache.request(pod)
    except InvalidDemand as error:
        return str(error)
    if request.waiting:
        return request.waiting
    refusal = cache.filter(request, [node]).refusals().get(node)
    return "this node has the cards for it" if refusal is None else refusal.text()
