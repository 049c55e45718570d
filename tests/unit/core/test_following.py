"""A pod is followed from stage to stage. The first one that it has not passed is the finding."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import ContainerDemand, PodDemand, encode
from egpu.api.objects import ElasticGPUClaimStatus
from egpu.api.symptoms import PAGE, Symptom
from egpu.core.following import Evidence, Passing, finding, follow
from egpu.core.view import SliceUsage
from egpu_base.api.devices import AllocatedDevice, DeviceAllocation, ResourceClaim, ResourceClaimStatus
from egpu_base.api.devices import ClaimAllocation as DeviceClaimAllocation
from egpu_base.api.kubernetes import (
    Condition,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Event,
    Pod,
    PodStatus,
)
from egpu_base.api.objects import ObjectMeta
from support import repository
from support.objects import BINPACK, claim, claim_pod, cluster, container, gpu_class, placed, pod, slice_pod

DEMAND = {
    names.DEMAND: encode(
        PodDemand(containers={"app": ContainerDemand(provisioner=names.VCUDA, core=20, memory_mib=2560)})
    )
}
RUNS = ContainerState(running=ContainerStateRunning(started_at="2026-01-01T00:00:05Z"))


def asking(**status: Any) -> Pod:
    """A pod that the webhook has admitted."""
    one = slice_pod("p")
    one = replace(one, metadata=replace(one.metadata, annotations=DEMAND))
    return replace(one, status=PodStatus(phase="Pending", **status))


def on_node(state: ContainerState | None = None, *, last: ContainerState | None = None, **status: Any) -> Pod:
    """The pod on a node, with its cards."""
    cache = cluster()
    one = asking()
    given = placed(one, cache.ranking.choose(cache.request(one), "n0", BINPACK))
    has = ContainerStatus(name="app", state=state, last_state=last, restart_count=int(last is not None))
    return replace(
        given,
        status=PodStatus(
            phase=status.pop("phase", "Pending"),
            start_time=status.pop("start_time", "2026-01-01T00:00:00Z"),
            container_statuses=[has] if state is not None else None,
            **status,
        ),
    )


def event(reason: str, message: str, component: str, *, second: int = 0, kind: Any = "Warning") -> Event:
    stamp = f"2026-01-01T00:00:{second:02}Z"
    return Event(reason=reason, message=message, type=kind, reporting_component=component, last_timestamp=stamp)


def waits(reason: str, message: str = "") -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))


def ended(code: int, reason: str = "Error") -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=code, reason=reason))


def usage(**figures: Any) -> dict[str, Sequence[SliceUsage]]:
    return {"app": [SliceUsage(age_seconds=60, **figures)]}


UNSCHEDULED = [Condition(type="PodScheduled", status="False", message="0/3 nodes are available")]
CASES: Mapping[str, tuple[Evidence, str, str, str, Symptom]] = {
    "no GPU": (Evidence(pod=pod("p", container("app"))), "admission", "webhook", "no GPU", Symptom.WITHOUT_GPU),
    "no webhook": (Evidence(pod=slice_pod("p")), "admission", "webhook", "without the webhook", Symptom.WITHOUT_GPU),
    "forged": (
        Evidence(pod=pod("p", container("app"), annotations={names.DEMAND: "{"})),
        "admission", "webhook", "only the webhook may write it", Symptom.REFUSED,
    ),
    "no room": (
        Evidence(
            pod=asking(conditions=UNSCHEDULED),
            events=[event("PreemptionEnded", "a card is sick", "elastic-gpu-extender")],
        ),
        "scheduling", "default-scheduler", "0/3 nodes are available; elastic-gpu-extender: PreemptionEnded: a card",
        Symptom.PENDING,
    ),
    "another scheduler": (
        Evidence(pod=replace(asking(), spec=replace(asking().spec, node_name="n0"))),
        "allocation", "extender", "did not ask the extender", Symptom.PENDING,
    ),
    "rejected": (
        Evidence(pod=on_node(phase="Failed", reason="NodeAffinity", message="no match")),
        "kubelet", "kubelet", "NodeAffinity: no match", Symptom.NOT_STARTED,
    ),
    "no kubelet": (Evidence(pod=on_node(start_time=None)), "kubelet", "kubelet", "has not taken", Symptom.NOT_STARTED),
    "no shim": (
        Evidence(
            pod=on_node(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate failed due to rpc error")
        ),
        "slot", "shim", "Allocate failed due to rpc error", Symptom.NOT_STARTED,
    ),
    "no slot directory": (
        Evidence(
            pod=on_node(waits("CreateContainerConfigError", "PreStartContainer failed: card GPU-1 is unhealthy")),
        ),
        "preparation", "agent", "card GPU-1 is unhealthy", Symptom.NOT_STARTED,
    ),
    "an earlier user": (
        Evidence(
            pod=on_node(waits("ContainerCreating")),
            events=[event("WaitingForCard", "waits until card 0 is left", "elastic-gpu-agent", second=9),
                    event("Failed", "older", "kubelet", second=3)],
        ),
        "preparation", "elastic-gpu-agent", "waits until card 0 is left", Symptom.NOT_STARTED,
    ),
    "no image": (
        Evidence(pod=on_node(waits("ImagePullBackOff"))), "preparation", "kubelet", "ImagePull", Symptom.NOT_STARTED,
    ),
    "no command": (
        Evidence(pod=on_node(waits("RunContainerError", "exec: not found"))),
        "container", "kubelet", "exec: not found", Symptom.NOT_STARTED,
    ),
    "an exit code": (
        Evidence(
            pod=on_node(waits("CrashLoopBackOff"), last=ended(1)),
            lines={"app": "egpu: this process may not use the GPU: no page"},
        ),
        "program", "program", "exit code 1; its last message of ours is: egpu: this process may", Symptom.GETS_ERROR,
    ),
    "killed": (Evidence(pod=on_node(ended(137))), "program", "program", "exit code 137", Symptom.KILLED),
    "over its limit": (
        Evidence(
            pod=on_node(ended(137)),
            events=[event("GPUMemoryLimitExceeded", "has 9 GiB", "elastic-gpu-agent"),
                    event("Pulled", "later", "kubelet", second=30, kind="Normal")],
        ),
        "program", "elastic-gpu-agent", "has 9 GiB", Symptom.KILLED,
    ),
    "a message": (
        Evidence(pod=on_node(RUNS), lines={"app": "egpu: cuX is not supported on a remote GPU"}),
        "program", "program", "cuX is not supported", Symptom.GETS_ERROR,
    ),
    "refusals": (
        Evidence(pod=on_node(RUNS), usage=usage(peak_bytes=1 << 20, refusals=3)),
        "program", "agent", "3 allocations were refused", Symptom.GETS_ERROR,
    ),
    "no CUDA call": (
        Evidence(pod=on_node(RUNS), usage=usage()), "program", "agent", "no CUDA call", Symptom.GETS_ERROR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_first_stage_that_is_not_passed_is_the_finding(case: str) -> None:
    evidence, stage, component, said, symptom = CASES[case]
    stages = follow(evidence)
    found = finding(stages)
    assert found is not None
    assert found[0] == stage, found
    assert found[1].component == component
    assert said in found[1].said
    assert found[1].mend
    assert found[1].symptom is symptom
    before, after = list(stages)[: list(stages).index(stage)], list(stages)[list(stages).index(stage) + 1 :]
    assert {stages[one].state for one in before} <= {Passing.PASSED}
    assert {stages[one].state for one in after} <= {Passing.AHEAD}


def test_a_pod_whose_program_uses_its_card_has_passed_all_stages() -> None:
    scheduled = event("Scheduled", "assigned default/p to n0", "my-scheduler", kind="Normal")
    restarted = on_node(RUNS, last=ended(1))
    use = usage(peak_bytes=3 << 30, gpu_seconds=12.34, idle_seconds=2)
    stages = follow(Evidence(pod=restarted, events=[scheduled], usage=use))
    assert finding(stages) is None
    assert {one.state for one in stages.values()} == {Passing.PASSED}
    assert stages["admission"].said == "added the demand: app 20 % and 2560 MiB of a card"
    assert stages["scheduling"].component == "my-scheduler"
    assert "12.3 s of GPU time, at most 3072 MiB; last CUDA call 2 s ago" in stages["program"].said
    assert "1 restarts" in stages["container"].said


def test_without_figures_the_program_is_unseen_and_no_finding() -> None:
    stages = follow(Evidence(pod=on_node(RUNS), unread={"usage": "no source of usage is given"}))
    assert (stages["program"].state, finding(stages)) == (Passing.UNSEEN, None)


def test_a_pod_with_resource_claims_is_followed_on_its_node() -> None:
    status = ContainerStatus(name="app", state=waits("CreateContainerError", "unresolvable CDI devices"))
    one = pod("p", container("app"))
    spec = replace(one.spec, node_name="n0", resource_claims=[{"name": "gpu"}])
    now = PodStatus(phase="Pending", start_time="2026-01-01T00:00:00Z", container_statuses=[status])
    here = AllocatedDevice(request="gpu", driver=names.DRIVER, pool="n0", device="gpu-0")
    held = ResourceClaimStatus(allocation=DeviceClaimAllocation(devices=DeviceAllocation(results=[here])))
    device_claim = ResourceClaim(metadata=ObjectMeta(name="c"), status=held)
    pod_now = replace(one, spec=spec, status=now)
    stages = follow(Evidence(pod=pod_now, device_claims={"c": device_claim}))
    assert [name for name, stage in stages.items() if stage.state is Passing.UNSEEN] == ["admission", "slot"]
    assert stages["allocation"].said == "ResourceClaim c has gpu-0 of node n0"
    found = finding(stages)
    assert found is not None
    assert (found[0], "unresolvable CDI" in found[1].said) == ("preparation", True)
    taken = replace(device_claim, status=ResourceClaimStatus())
    lost = finding(follow(Evidence(pod=pod_now, device_claims={"c": taken})))
    assert lost is not None
    assert (lost[0], lost[1].mend) == ("allocation", "delete the pod and create it again")
    assert "ResourceClaim c has no devices any more" in lost[1].said
    unread = follow(Evidence(pod=pod_now, unread={"resourceclaims": "you may not"}))
    assert unread["allocation"].said == "you may not"


def test_the_extenders_reason_for_claims_without_cards_is_shown() -> None:
    one = pod("p", container("app"))
    waiting = replace(one, spec=replace(one.spec, resource_claims=[{"name": "gpu"}]))
    said = event("DoesNotFit", "n0: card 0 has 10 % of compute free", "elastic-gpu-extender")
    found = finding(follow(Evidence(pod=waiting, events=[said])))
    assert found is not None
    assert found[0] == "scheduling"
    assert "card 0 has 10 % of compute free" in found[1].said


CLAIMS: Mapping[str, tuple[dict[str, Any], Passing, str]] = {
    "missing": ({"claims": {"c": None}}, Passing.FAILED, "claim c does not exist"),
    "lost": (
        {"claims": {"c": replace(claim("c"), status=ElasticGPUClaimStatus(phase="Lost"))}}, Passing.FAILED, "is Lost",
    ),
    "no room": (
        {"claims": {"c": claim("c")}, "classes": {"shared": gpu_class()},
         "claim_events": {"c": [event("CannotBeBound", "no card fits", "elastic-gpu-extender")]}},
        Passing.WAITS, "CannotBeBound: no card fits",
    ),
    "pending": ({"claims": {"c": claim("c")}, "classes": {"shared": gpu_class()}}, Passing.WAITS, "is Pending"),
    "with its pod": (
        {"claims": {"c": claim("c")}, "classes": {"shared": gpu_class(wait=True)}}, Passing.PASSED, "together with",
    ),
    "forbidden": ({"unread": {"claims": "you may not list claims"}}, Passing.UNSEEN, "may not list"),
}  # fmt: skip


@pytest.mark.parametrize("case", CLAIMS)
def test_a_claim_without_cards_is_named_with_what_its_controller_said(case: str) -> None:
    known, state, said = CLAIMS[case]
    one = claim_pod("p", "c")
    one = replace(one, metadata=replace(one.metadata, annotations={**one.annotations, **DEMAND}))
    found = follow(Evidence(pod=one, **known))["claim"]
    assert (found.state, said in found.said) == (state, True), found


def test_each_symptom_is_a_heading_of_the_page() -> None:
    lines = [line.lstrip("# ") for line in repository.text(PAGE).splitlines() if line.startswith("#")]
    anchors = {"".join(c for c in line.lower().replace(" ", "-") if c.isalnum() or c in "-_") for line in lines}
    assert {one.value for one in Symptom} <= anchors
