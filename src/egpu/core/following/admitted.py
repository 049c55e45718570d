"""The stages up to the binding: webhook, claim, scheduler and allocation."""

from typing import Final

from egpu.api import names
from egpu.api.allocation import decode_allocation, decode_demand
from egpu.api.objects import ElasticGPUClaim
from egpu.api.symptoms import Symptom
from egpu.core.demand.amounts import gpu_names
from egpu.core.demand.pods import claims_by_container
from egpu.core.following.evidence import Evidence, Passing, Stage, component_of, newest, told
from egpu.core.placement.refusal import describe_all
from egpu.core.preemption.objections import last_word
from egpu.core.schedulers import DEFAULT_SCHEDULER
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, InvalidDemand

WEBHOOK: Final = "webhook"
CONTROLLER: Final = "controller"
EXTENDER: Final = "extender"
_AGAIN: Final = "delete the pod and create it again"
_OF_EXTENDER: Final = (
    "PreemptionEnded", "Preempting", "GangUndone", "DoesNotFit", "QuotaExceeded", "ClaimNotServed",
)  # fmt: skip


def webhook(evidence: Evidence) -> Stage:
    """Return whether the webhook has admitted the pod: then it has a demand."""
    pod = evidence.pod
    text = pod.annotations.get(names.DEMAND)
    if evidence.by_resource_claims:
        return Stage(WEBHOOK, Passing.UNSEEN, "the pod asks by ResourceClaims, for which the webhook adds no demand")
    if text is None:
        return _not_admitted(pod)
    try:
        demand = decode_demand(text)
    except CorruptData as error:
        return Stage(WEBHOOK, Passing.FAILED, str(error), _AGAIN, Symptom.REFUSED)
    return Stage(WEBHOOK, Passing.PASSED, f"added the demand: {describe_all(demand.containers)}")


def _not_admitted(pod: Pod) -> Stage:
    asked = sorted({name for one in pod.all_containers for name in gpu_names(one)} | set(claim_names(pod)))
    if not asked:
        found = "the pod asks for no GPU by a name that Elastic GPU serves, and names no claim"
        mend = "add a resource of docs/reference/resource-names.md to the limits of a container"
        return Stage(WEBHOOK, Passing.FAILED, found, mend, Symptom.WITHOUT_GPU)
    found = f"the pod asks for {', '.join(asked)} and has no demand: the API server created it without the webhook"
    mend = f"check the webhook with `egpu doctor`, then {_AGAIN}"
    return Stage(WEBHOOK, Passing.FAILED, found, mend, Symptom.WITHOUT_GPU)


def claim_names(pod: Pod) -> list[str]:
    """Return the claims that a pod names; none if its annotations are wrong, which the webhook reports."""
    try:
        return sorted(claims_by_container(pod).values())
    except InvalidDemand:
        return []


def claim(evidence: Evidence) -> Stage:
    """Return whether the pod's claims exist and have cards, or get them together with the pod."""
    wanted = claim_names(evidence.pod)
    if not wanted:
        return Stage(CONTROLLER, Passing.PASSED, "the pod uses no claim")
    if (why := evidence.unread.get("claims")) is not None:
        return Stage(CONTROLLER, Passing.UNSEEN, why)
    stages = [_one_claim(evidence, name) for name in wanted]
    stopped = next((one for one in stages if one.state is not Passing.PASSED), None)
    return stopped or Stage(stages[0].component, Passing.PASSED, "; ".join(one.said for one in stages))


def _one_claim(evidence: Evidence, name: str) -> Stage:
    found = evidence.claims.get(name)
    if found is None:
        event = evidence.last_event("ClaimNotMade")
        said = f"claim {name} does not exist" + (f". {told(event)}" if event is not None else "")
        mend = f"create the claim {name} in namespace {evidence.pod.namespace}"
        return Stage(CONTROLLER, Passing.FAILED, said, mend, Symptom.PENDING if event is not None else Symptom.CLAIM)
    mend = f"kubectl -n {found.namespace} describe egpuc {name}"
    if found.status.phase == "Lost":
        condition = found.status.condition("CardsPresent")
        why = f": {condition.reason}: {condition.message}" if condition is not None else ""
        return Stage(CONTROLLER, Passing.FAILED, f"claim {name} is Lost{why}", mend, Symptom.CLAIM)
    if found.status.allocation is not None:
        return Stage(EXTENDER, Passing.PASSED, f"claim {name} has cards of node {found.status.allocation.node}")
    event = newest(one for one in evidence.claim_events.get(name, ()) if one.type == "Warning")
    if event is not None:
        return Stage(component_of(event, EXTENDER), Passing.WAITS, f"claim {name}: {told(event)}", mend, Symptom.CLAIM)
    if _waits_for_pod(evidence, found):
        return Stage(EXTENDER, Passing.PASSED, f"claim {name} gets its cards together with the pod")
    return Stage(EXTENDER, Passing.WAITS, f"claim {name} is Pending", mend, Symptom.CLAIM)


def _waits_for_pod(evidence: Evidence, found: ElasticGPUClaim) -> bool:
    known = evidence.classes.get(found.spec.class_name)
    return known is None or known.binding_mode != "Immediate"


def scheduler(evidence: Evidence) -> Stage:
    """Return whether a scheduler has chosen the node."""
    pod = evidence.pod
    name = pod.spec.scheduler_name or DEFAULT_SCHEDULER
    if pod.spec.node_name:
        event = evidence.last_event("Scheduled")
        by = name if event is None else component_of(event, name)
        return Stage(by, Passing.PASSED, f"chose node {pod.spec.node_name}" if event is None else told(event))
    parts = [last_word(pod)]
    if (event := evidence.last_event(*_OF_EXTENDER)) is not None:
        parts.append(f"{component_of(event, EXTENDER)}: {told(event)}")
    mend = f"egpu explain pod {pod.name} -n {pod.namespace}"
    said = "; ".join(part for part in parts if part) or f"{name} has not placed the pod"
    return Stage(name, Passing.WAITS, said, mend, Symptom.PENDING)


def _device_claims(evidence: Evidence) -> Stage:
    """Return whether the pod's ResourceClaims have devices. If some were taken back after the pod got its node, it
    never starts."""
    by = evidence.pod.spec.scheduler_name or DEFAULT_SCHEDULER
    if (why := evidence.unread.get("resourceclaims")) is not None:
        return Stage(by, Passing.UNSEEN, why)
    said: list[str] = []
    for name, claim in evidence.device_claims.items():
        given = claim.status.allocation if claim is not None else None
        if claim is None or given is None:
            lost = f"ResourceClaim {name} {'does not exist' if claim is None else 'has no devices any more'}"
            return Stage(by, Passing.FAILED, f"the pod has a node, and {lost}", _AGAIN, Symptom.PENDING)
        results = given.devices.results or []
        devices = ", ".join(f"{one.device} of node {one.pool}" for one in results if one.driver == names.DRIVER)
        others = sum(one.driver != names.DRIVER for one in results)
        also = [f"{others} devices of other drivers"] if others else []
        said.append(f"ResourceClaim {name} has {' and '.join([*([devices] if devices else []), *also])}")
    return Stage(by, Passing.PASSED, "; ".join(said) or "the pod's ResourceClaims are not needed")


def allocation(evidence: Evidence) -> Stage:
    """Return whether the binding gave the pod cards."""
    pod = evidence.pod
    text = pod.annotations.get(names.ALLOCATION)
    if evidence.by_resource_claims:
        return _device_claims(evidence)
    if text is None:
        said = f"the pod is on node {pod.spec.node_name} without an allocation: its scheduler did not ask the extender"
        mend = f"check kube-scheduler's configuration with `egpu doctor`, then {_AGAIN}"
        return Stage(EXTENDER, Passing.FAILED, said, mend, Symptom.PENDING)
    try:
        given = decode_allocation(text)
    except CorruptData as error:
        return Stage(EXTENDER, Passing.FAILED, str(error), _AGAIN, Symptom.PENDING)
    cards = [f"{name} has {len(one.cards)} of node {one.cards_node(given.node)}, by {one.provisioner}"
             for name, one in given.containers.items()]  # fmt: skip
    return Stage(EXTENDER, Passing.PASSED, f"bound with cards: {'; '.join(cards)}")
