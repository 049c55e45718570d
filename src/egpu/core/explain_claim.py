"""Explanations of claims: where a claim has its cards, or why it waits."""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from egpu.api.objects import ElasticGPUClaim
from egpu.core.explain import Explanation, held, ranked
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.refusal import describe
from egpu.core.policies.registry import Policies
from egpu_base.errors import InvalidDemand

FIRST_POD = "waits for the first pod that uses it; its cards are chosen for that pod"


def explain_claim(
    claim: ElasticGPUClaim, cache: SchedulerCache, nodes: Sequence[str], policies: Policies
) -> Explanation:
    """Explain `claim` from the objects that `cache` was shown, against `nodes`. `state` is the claim's phase in lower
    case, or "invalid"."""
    phase = claim.status.phase or "Pending"
    found = Explanation(claim.key, phase.lower(), "", (*_class(claim, cache), *_facts(claim)), kind="claim")
    allocation = cache.claim_allocation(claim.uid)
    if phase == "Lost":
        return replace(found, summary="is Lost: its node or its cards are gone. Delete it and create it again")
    if allocation is not None:
        own = structs.replace(allocation.container, claim="")  # it is this claim's
        cards = held("it", own, allocation.node, cache)
        return replace(found, summary=f"has its cards on node {allocation.node}", details=(*cards, *found.details))
    try:
        request = cache.claim_request(claim)
    except InvalidDemand as error:
        return replace(found, state="invalid", summary=f"cannot be bound: {error}")
    asked = tuple(f"it asks for {describe(demand)}" for demand in request.demand.containers.values())
    found = replace(found, details=(*asked, *found.details))
    if request.waiting:
        return replace(found, summary=f"waits: {request.waiting}")
    filtered = cache.filter(request, nodes)
    found = replace(found, refusals=tuple(filtered.refusals().values()))
    if not filtered.fits:
        where = f"none of {len(nodes)} nodes has room for it" if nodes else "the cluster has no node"
        return replace(found, summary=f"waits: {where}")
    scores = ranked(cache.ranking.scores(request, filtered.fits, policies, all_fit=True))
    immediate = cache.classes[claim.spec.class_name].binding_mode == "Immediate"
    summary = f"{'is not bound yet' if immediate else FIRST_POD}; {len(scores)} of {len(nodes)} nodes have room for it"
    return replace(found, summary=summary, scores=scores)


def _class(claim: ElasticGPUClaim, cache: SchedulerCache) -> list[str]:
    name = claim.spec.class_name
    klass = cache.classes.get(name)
    if klass is None:
        return [f"its class {name} does not exist" if name else "it names no class"]
    return [f"class {name}: {klass.provisioner}, {klass.binding_mode}, {klass.reclaim_policy}"]


def _facts(claim: ElasticGPUClaim) -> list[str]:
    """Describe the users of a claim, its deletion, and conditions that do not hold."""
    users = ", ".join(claim.status.used_by)
    facts = [f"used by {users}" if users else "no pod uses it"]
    if claim.metadata.deletion_timestamp:
        facts.append("it is being deleted" + (", and stays until no pod uses it" if users else ""))
    return facts + [f"{one.type}: {one.message}" for one in claim.status.conditions if one.status != "True"]
