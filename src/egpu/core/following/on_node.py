"""The stages on a node: kubelet, slot, preparation, container and program."""

from collections.abc import Sequence
from typing import Final

from egpu.api.symptoms import Symptom
from egpu.core.following.evidence import Evidence, Passing, Stage, component_of, told
from egpu.core.view import SliceUsage
from egpu_base.api.kubernetes import ContainerStateTerminated, ContainerStateWaiting, ContainerStatus
from egpu_base.api.quantities import format_mib

KUBELET: Final = "kubelet"
SHIM: Final = "shim"
AGENT: Final = "agent"
PROGRAM: Final = "program"
ALLOCATE: Final = "Allocate failed"
"""kubelet's words for a device plugin that did not give its devices."""
_PREPARING: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "PreStartHookError", "PreCreateHookError"}
)
_IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_STARTING: Final = frozenset({"RunContainerError", "StartError", "ContainerCannotRun"})
_ENDED_BY_US: Final = ("GPUMemoryLimitExceeded", "MPSServerDied", "Preempted")
_KILLED: Final = 128 + 9
_MEMORY_MEND: Final = "give the slice more memory, or let the program ask for less"


def kubelet(evidence: Evidence) -> Stage:
    """Return whether kubelet has taken the pod."""
    pod, status = evidence.pod, evidence.pod.status
    node = pod.spec.node_name
    rejected = status.phase == "Failed" and status.reason and not _any_started(evidence)
    if rejected and ALLOCATE not in status.message:
        mend = "delete the pod, and let its controller make a new one"
        return Stage(KUBELET, Passing.FAILED, f"{status.reason}: {status.message}", mend, Symptom.NOT_STARTED)
    if status.start_time is None:
        said = f"kubelet of node {node} has not taken the pod"
        return Stage(KUBELET, Passing.WAITS, said, f"kubectl describe node {node}", Symptom.NOT_STARTED)
    return Stage(KUBELET, Passing.PASSED, f"took the pod on node {node} ({status.start_time})")


def slot(evidence: Evidence) -> Stage:
    """Return whether the device plugin, which the shim answers, gave kubelet the pod's slots."""
    status = evidence.pod.status
    if status.phase == "Failed" and ALLOCATE in status.message:
        mend = "check shim and agent with `egpu doctor`; delete the pod, and let its controller make a new one"
        return Stage(SHIM, Passing.FAILED, f"{status.reason}: {status.message}", mend, Symptom.NOT_STARTED)
    if evidence.by_resource_claims:
        return Stage(SHIM, Passing.UNSEEN, "the pod has no slots: the agent prepares its ResourceClaims")
    return Stage(SHIM, Passing.PASSED, f"gave {len(evidence.gpu_statuses())} slots to kubelet")


def preparation(evidence: Evidence) -> Stage:
    """Return whether each container's image is there and the agent has prepared its slot."""
    for name, status in evidence.gpu_statuses():
        if status is not None and _started(status):
            continue
        waiting = _waiting(status)
        if waiting.reason in _STARTING:
            continue
        said = f"container {name}: {waiting.reason or 'not created'}"
        said += f": {waiting.message}" if waiting.message else ""
        if waiting.reason in _IMAGE:
            return Stage(KUBELET, Passing.FAILED, said, "correct the image, or its pull secret", Symptom.NOT_STARTED)
        by = AGENT
        if (event := evidence.last_event("WaitingForCard", "Failed", "FailedCreatePodSandBox")) is not None:
            said, by = f"{said}; {told(event)}", component_of(event, AGENT)
        mend = f"read the log of the agent on node {evidence.pod.spec.node_name}"
        state = Passing.FAILED if waiting.reason in _PREPARING else Passing.WAITS
        return Stage(by, state, said, mend, Symptom.NOT_STARTED)
    return Stage(AGENT, Passing.PASSED, "prepared the slot of each container with a GPU")


def container(evidence: Evidence) -> Stage:
    """Return whether each container has started."""
    for name, status in evidence.gpu_statuses():
        if status is None:
            continue
        ended, waiting = _terminated(status), _waiting(status)
        reason = waiting.reason if waiting.reason in _STARTING else ended.reason if ended is not None else ""
        if reason in _STARTING:
            message = waiting.message or (ended.message if ended is not None else "")
            mend = f"kubectl -n {evidence.pod.namespace} describe pod {evidence.pod.name}"
            return Stage(KUBELET, Passing.FAILED, f"container {name}: {reason}: {message}", mend, Symptom.NOT_STARTED)
    started = [f"{name} {_history(status)}" for name, status in evidence.gpu_statuses() if status is not None]
    return Stage(KUBELET, Passing.PASSED, f"started: {'; '.join(started)}")


def program(evidence: Evidence) -> Stage:
    """Return whether the programs use their cards, or the last refusal or error."""
    if (event := evidence.last_event(*_ENDED_BY_US)) is not None:
        mend = _MEMORY_MEND if event.reason == "GPUMemoryLimitExceeded" else "start the program again"
        return Stage(component_of(event, AGENT), Passing.FAILED, told(event), mend, Symptom.KILLED)
    for name, status in evidence.gpu_statuses():
        ended = _terminated(status) if status is not None else None
        if ended is not None and ended.exit_code != 0:
            return _ended(name, ended, evidence.lines.get(name, ""))
    for name, line in evidence.lines.items():
        mend = "follow the message, and start the container again"
        return Stage(PROGRAM, Passing.FAILED, f"container {name}: {line}", mend, Symptom.GETS_ERROR)
    return _use(evidence)


def _ended(name: str, ended: ContainerStateTerminated, line: str) -> Stage:
    said = f"container {name} ended with exit code {ended.exit_code}"
    said += f" ({ended.reason})" if ended.reason and ended.reason != "Error" else ""
    said += f"; its last message of ours is: {line}" if line else ""
    killed = ended.exit_code == _KILLED or ended.reason == "OOMKilled"
    mend = "read the container's log (kubectl logs --previous)"
    return Stage(PROGRAM, Passing.FAILED, said, mend, Symptom.KILLED if killed else Symptom.GETS_ERROR)


def _use(evidence: Evidence) -> Stage:
    if evidence.usage is None:
        return Stage(AGENT, Passing.UNSEEN, evidence.unread.get("usage", "no source of usage is given"))
    used = {name: use for name, use in evidence.usage.items() if use}
    if not used:
        return Stage(AGENT, Passing.UNSEEN, "the given sources of usage do not report this pod")
    for name, use in used.items():
        if refused := sum(one.refusals for one in use):
            said = f"container {name}: {refused} allocations were refused at the slice's limit"
            return Stage(AGENT, Passing.FAILED, said, _MEMORY_MEND, Symptom.GETS_ERROR)
    for name, use in used.items():
        if not any(map(_called, use)):
            age = max(one.age_seconds for one in use)
            said = f"container {name} has made no CUDA call that used its card in {age:.0f} s"
            mend = "check that the program uses the GPU: run nvidia-smi in the container"
            return Stage(AGENT, Passing.WAITS, said, mend, Symptom.GETS_ERROR)
    return Stage(AGENT, Passing.PASSED, "; ".join(f"container {name}: {_figures(use)}" for name, use in used.items()))


def _called(use: SliceUsage) -> bool:
    return bool(use.peak_bytes or use.memory_bytes or use.gpu_seconds)


def _figures(use: Sequence[SliceUsage]) -> str:
    seconds, peak = sum(one.gpu_seconds for one in use), sum(one.peak_bytes for one in use)
    idle = min(one.idle_seconds for one in use)
    return f"{seconds:.1f} s of GPU time, at most {format_mib(peak >> 20)}; last CUDA call {idle:.0f} s ago"


def _any_started(evidence: Evidence) -> bool:
    return any(status is not None and _started(status) for _, status in evidence.gpu_statuses())


def _started(status: ContainerStatus) -> bool:
    """Return whether the container has been created at least once."""
    if status.restart_count:
        return True
    states = [one for one in (status.state, status.last_state) if one is not None]
    return any(one.running is not None or one.terminated is not None for one in states)


def _terminated(status: ContainerStatus) -> ContainerStateTerminated | None:
    """Return how the container ended, unless it runs again."""
    for state in (status.state, status.last_state):
        if state is not None and state.running is not None:
            return None
        if state is not None and state.terminated is not None:
            return state.terminated
    return None


def _waiting(status: ContainerStatus | None) -> ContainerStateWaiting:
    state = status.state if status is not None else None
    return (state.waiting if state is not None else None) or ContainerStateWaiting()


def _history(status: ContainerStatus) -> str:
    state = status.state
    if state is not None and state.running is not None:
        text = f"runs since {state.running.started_at or 'an unknown time'}"
    elif state is not None and state.terminated is not None:
        text = f"ended with exit code {state.terminated.exit_code}"
    else:
        text = f"waits: {_waiting(status).reason or 'not created'}"
    return text + (f", {status.restart_count} restarts" if status.restart_count else "")
