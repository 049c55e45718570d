"""Explanations of where a pod is or why it waits, card by card, from objects only: for the command line and events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, decode_allocation
from egpu.core.gangs.membership import Gang
from egpu.core.gangs.placing import place_gang
from egpu.core.growth import Growth
from egpu.core.links import slowest
from egpu.core.mig import what_it_takes
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.ledger import Holder
from egpu.core.placement.refusal import Refusal, describe, describe_all
from egpu.core.policies.registry import Policies, prefers
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES, format_mib
from egpu_base.errors import CorruptData, InvalidDemand

MOST_CONTAINERS: Final = 16
"""Containers described one by one; those of a larger pod are described by kind."""


@dataclass(frozen=True)
class Explanation:
    """An explanation of a pod, or of an object of another `kind`.

    `state` of a pod: "no-gpu", "invalid", "waiting", "can-be-placed", "placed", "finished". `refusals`: by node, if it
    waits. `scores`: by node, best first, if it can be placed or is placed (as if placed now). `preemption`: the
    victims, or why there are none. `objections`: by node, why the scheduler rejects it, apart from cards. `scheduler`:
    its last report. `growth`: which new nodes would help, if that was asked."""

    name: str
    state: str
    summary: str
    details: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    scores: tuple[tuple[str, float], ...] = ()
    preemption: str = ""
    objections: tuple[tuple[str, str], ...] = ()
    scheduler: str = ""
    kind: str = "pod"
    growth: Growth | None = None

    def lines(self) -> list[str]:
        """Return plain text, most important lines first."""
        text = [f"{self.kind} {self.name}: {self.summary}", *(f"  {detail}" for detail in self.details)]
        text += [f"  preemption: {self.preemption}"] if self.preemption else []
        text += [f"  {line}" for line in (self.growth.lines() if self.growth is not None else ())]
        text += [f"  node {node}: {reason}" for node, reason in self.objections]
        for refusal in self.refusals:
            text.append(f"  node {refusal.node}: {refusal.reason}")
            text += [f"    card {card.index} ({card.uuid}) {card.reason}" for card in refusal.cards]
        text += [f"  node {node}: fits, score {score:.2f}" for node, score in self.scores]
        return [*text, f"  {self.scheduler}"] if self.scheduler else text


def explain_pod(pod: Pod, cache: SchedulerCache, nodes: Sequence[str], policies: Policies) -> Explanation:
    """Explain `pod` from the objects that `cache` was shown, against `nodes` (names of the cluster's nodes)."""
    text = pod.annotations.get(names.ALLOCATION)
    if text is not None:
        try:
            return _explain_placed(pod, decode_allocation(text), cache, nodes=nodes, policies=policies)
        except CorruptData as error:
            return Explanation(pod.key, "invalid", f"its allocation cannot be read ({error})")
    try:
        request, gang = cache.request(pod), cache.gangs.of(pod)
    except InvalidDemand as error:
        return Explanation(pod.key, "invalid", f"its GPU request is not valid: {error}")
    demands = request.demand.containers
    if not demands:
        return Explanation(pod.key, "no-gpu", "asks for no GPU; the scheduler alone places it")
    asked = tuple(f"container {name} asks for {describe(demand)}" for name, demand in demands.items())
    if len(asked) > MOST_CONTAINERS:
        asked = (f"{len(asked)} containers ask for GPUs: {describe_all(demands)}",)
    if request.waiting:
        return Explanation(pod.key, "waiting", f"waits: {request.waiting}", asked)
    if pod.spec.node_name:
        summary = f"is on node {pod.spec.node_name} without an allocation: another scheduler put it there"
        return Explanation(pod.key, "invalid", summary, asked)
    if gang is not None:
        return _explain_gang(pod, gang, cache, nodes=nodes, policies=policies, asked=asked)
    filtered = cache.filter(request, nodes)
    refusals = tuple(filtered.refusals().values())
    if not filtered.fits:
        summary = f"waits: none of {len(nodes)} nodes has room for it" if nodes else "waits: the cluster has no node"
        return Explanation(pod.key, "waiting", summary, asked, refusals)
    scored = ranked(cache.ranking.scores(request, filtered.fits, policies, all_fit=True))
    summary = f"is not placed yet; {len(filtered.fits)} of {len(nodes)} nodes have room for it"
    details = (*asked, *_cuts(cache.ranking.choose(request, scored[0][0], policies), cache))
    return Explanation(pod.key, "can-be-placed", summary, details, refusals, scored)


def _cuts(allocation: PodAllocation, cache: SchedulerCache) -> list[str]:
    """Describe the MIG instances that this placement uses or creates."""
    node = allocation.node
    cards = {card.uuid: card for card in cache.ledger.cards(node)}
    return [
        f"container {name} would get {share.instance} of card {share.index} of node {node}:"
        f" {what_it_takes(mig, share.instance)}"
        for name, container in allocation.containers.items()
        for share in container.cards
        if share.instance is not None and (mig := cards[share.uuid].mig) is not None
    ]


def _explain_gang(
    pod: Pod, gang: Gang, cache: SchedulerCache, *, nodes: Sequence[str], policies: Policies, asked: tuple[str, ...]
) -> Explanation:
    verdict = place_gang(cache, gang, policies, pod=pod, nodes=nodes, default_nodes=nodes, reasons=max(len(nodes), 1))
    details = (*asked, _members(gang))
    if verdict.reason:
        return Explanation(pod.key, "waiting", f"waits: {verdict.reason}", details, verdict.refusals)
    places = tuple(
        f"{member.name} fits on node {verdict.allocations[member.uid].node}"
        for member in gang.waiting
        if member.uid in verdict.allocations
    )
    summary = f"is not placed yet; its gang {gang.terms.name} has room"
    return Explanation(pod.key, "can-be-placed", summary, (*details, *places))


def _members(gang: Gang) -> str:
    """Describe the members of a gang, and which of them run."""
    terms = gang.terms
    bound = ", ".join(pod.name for pod in gang.bound) or "none"
    waiting = ", ".join(pod.name for pod in gang.waiting) or "none"
    return (
        f"gang {terms.name} of {terms.size} (deleted if bound only in part for {terms.timeout_seconds} s):"
        f" bound {bound}; waiting {waiting}"
    )


def _explain_placed(
    pod: Pod, allocation: PodAllocation, cache: SchedulerCache, *, nodes: Sequence[str], policies: Policies
) -> Explanation:
    details = [
        line
        for name, container in allocation.containers.items()
        for line in held(f"container {name}", container, allocation.node, cache)
    ]
    shared = [container.claim for container in allocation.containers.values() if container.shared_claim]
    details += [_sharing(pod, claim, cache) for claim in shared]
    try:
        gang = cache.gangs.of(pod)
    except InvalidDemand:
        gang = None
    if gang is not None:
        details.append(_members(gang))
    if pod.finished:
        return Explanation(
            pod.key, "finished", f"ran on node {allocation.node}; its cards are released", tuple(details)
        )
    refusals, scored, by = _as_if_new(pod, cache, nodes, policies)
    if refusals or scored:
        details.append(_why_there(allocation, scored, by, len(nodes)))
        details.append(f"if it were placed now (policy {by.node} for nodes, {by.card} for cards):")
    return Explanation(pod.key, "placed", f"is on node {allocation.node}", tuple(details), refusals, scored)


def _why_there(allocation: PodAllocation, scored: Sequence[tuple[str, float]], by: Policies, node_count: int) -> str:
    """Return the reason for the node in a sentence, by the cluster as it is now."""
    node, fitting = allocation.node, [name for name, _ in scored]
    if claims := [one.claim for one in allocation.containers.values() if one.claim]:
        return f"why there: its claim {claims[0]} has its cards there"
    if node not in fitting:
        return f"why there: it had room when the pod came. Now node {node} would not take it"
    if fitting == [node]:
        return f"why there: no other of {node_count} nodes has room for it"
    if any(one.server for one in allocation.containers.values()):
        rule = "the cards of the pool that are nearest to the pod come first"
    else:
        rule = f"policy {by.node} prefers the node {prefers(by.node)}"
    if fitting[0] == node:
        return f"why there: of {len(fitting)} nodes with room it is the best; {rule}"
    place = fitting.index(node) + 1
    return f"why there: it was the best then, and is number {place} of {len(fitting)} nodes with room now; {rule}"


def _as_if_new(
    pod: Pod, cache: SchedulerCache, nodes: Sequence[str], policies: Policies
) -> tuple[tuple[Refusal, ...], tuple[tuple[str, float], ...], Policies]:
    """Evaluate all nodes for a placed pod as if it held nothing. Nothing is recorded."""
    holder = Holder("pod", pod.uid)
    held = cache.ledger.holding(holder)
    cache.ledger.release(holder)
    try:
        request = cache.request(pod)
        filtered = cache.filter(request, nodes)
        scored = ranked(cache.ranking.scores(request, filtered.fits, policies, all_fit=True))
        return tuple(filtered.refusals().values()), scored, request.policies(policies)
    except InvalidDemand:
        return (), (), policies
    finally:
        if held is not None:
            cache.ledger.hold(holder, held)


def ranked(scores: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0])))


def _sharing(pod: Pod, claim: str, cache: SchedulerCache) -> str:
    """Describe which pods share the pod's claim."""
    users = {uid for uid, _ in cache.claim_users(f"{pod.namespace}/{claim}")} - {pod.uid}
    others = ", ".join(sorted(cache.holder_name(Holder("pod", uid)) for uid in users)) or "none"
    return f"claim {claim} is shared by several pods; other pods that use it: {others}"


def held(subject: str, container: ContainerAllocation, pod_node: str, cache: SchedulerCache) -> list[str]:
    """Describe the cards of a container, or of a claim. `pod_node` is the node of its pod."""
    lines: list[str] = []
    source = f" from claim {container.claim}" if container.claim else ""
    node = container.cards_node(pod_node)
    if container.server:
        source = (" of its own node" if node == pod_node else f" of node {node}") + source
    for share in container.cards:
        card = f"card {share.index} {share.model} ({share.uuid})".replace("  ", " ")
        if container.exclusive:
            lines.append(f"{subject} has the whole {card}{source}, by {container.provisioner} ({container.qos})")
            continue
        more = f" (up to {container.core_limit} % while others are idle)" if share.core < container.core_limit else ""
        amounts = ([f"{share.core} %{more}"] if share.core else []) + [format_mib(share.memory_mib)]
        if container.latency:
            amounts[0] += " for latency work"
        if container.memory_limit_percent:
            most = format_mib(container.memory_limit_bytes(share) // MIB_BYTES)
            amounts[-1] += f" (it may allocate {most}, the rest in managed memory)"
        others = len(cache.ledger.card_holders(node, share.uuid)) - 1
        if share.instance is not None:
            amounts[0] = f"{share.instance}, {amounts[0]}"
        company = f"; {others} more share{'s' if others == 1 else ''} it" if others > 0 else ""
        by = f"by {container.provisioner} ({container.qos})"
        lines.append(f"{subject} has {' and '.join(amounts)} of {card}{source}, {by}{company}")
    if text := _links(container, node, cache):
        lines.append(f"{subject}'s {len(container.cards)} cards are {text}")
    return lines


def _links(container: ContainerAllocation, node: str, cache: SchedulerCache) -> str:
    """Describe the slowest link between a container's cards; "" if it is unknown."""
    granted = {share.uuid for share in container.cards}
    kind = slowest([card for card in cache.ledger.cards(node) if card.uuid in granted])
    return f"joined by {kind}" if kind else ""
