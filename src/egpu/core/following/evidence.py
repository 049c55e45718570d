"""What is known about a pod, and the result of one stage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from egpu.api.allocation import PodAllocation, decode_allocation
from egpu.api.names import ALLOCATION, DEMAND
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClass
from egpu.api.symptoms import Symptom
from egpu.core.view import SliceUsage
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import ContainerStatus, Event, Pod
from egpu_base.errors import CorruptData


class Passing(StrEnum):
    """The result of a stage. Unseen: nothing that we may read shows it. Ahead: an earlier stage is not passed."""

    PASSED = "passed"
    FAILED = "failed"
    WAITS = "waits"
    UNSEEN = "unseen"
    AHEAD = "ahead"


@dataclass(frozen=True)
class Stage:
    """The result of one stage. `component` saw the pod there, and `said` is what it reported. `mend` says what to do,
    and `symptom` where to read on, if the stage is not passed."""

    component: str
    state: Passing
    said: str
    mend: str = ""
    symptom: Symptom | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The pod, and what other objects say about it."""

    pod: Pod
    events: Sequence[Event] = ()
    """Events of the pod."""
    claims: Mapping[str, ElasticGPUClaim | None] = field(default_factory=dict[str, ElasticGPUClaim | None])
    """The pod's claims by name. None: the claim does not exist."""
    classes: Mapping[str, ElasticGPUClass] = field(default_factory=dict[str, ElasticGPUClass])
    claim_events: Mapping[str, Sequence[Event]] = field(default_factory=dict[str, Sequence[Event]])
    """Events of the claims, by name of the claim."""
    device_claims: Mapping[str, ResourceClaim | None] = field(default_factory=dict[str, ResourceClaim | None])
    """The pod's ResourceClaims by name. None: it does not exist."""
    usage: Mapping[str, Sequence[SliceUsage]] | None = None
    """The use of each container's slices, as their agents publish it. None: it is not known."""
    lines: Mapping[str, str] = field(default_factory=dict[str, str])
    """The last line of each container's log that a library of ours wrote."""
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """What could not be read (claims, resourceclaims, events, logs, usage), and why."""

    @property
    def allocation(self) -> PodAllocation | None:
        """The pod's allocation; None if it has none or a corrupt one."""
        try:
            return decode_allocation(self.pod.annotations.get(ALLOCATION, ""))
        except CorruptData:
            return None

    @property
    def by_resource_claims(self) -> bool:
        """Return whether Kubernetes' own allocation of devices serves the pod, not the extender."""
        return bool(self.pod.spec.resource_claims) and DEMAND not in self.pod.annotations

    def gpu_statuses(self) -> list[tuple[str, ContainerStatus | None]]:
        """Return the containers with cards in the pod's order, and their statuses; all containers of a pod with
        ResourceClaims."""
        given = self.allocation
        status = self.pod.status
        known = {one.name: one for one in [*(status.init_container_statuses or []), *(status.container_statuses or [])]}
        with_cards = given.containers if given is not None else ()
        every = self.by_resource_claims
        names = [one.name for one in self.pod.all_containers if every or one.name in with_cards]
        return [(name, known.get(name)) for name in names]

    def last_event(self, *reasons: str, warning: bool = False) -> Event | None:
        """Return the newest event of the pod with one of the reasons, or any newest one; `warning`: only Warnings."""
        return newest(
            one
            for one in self.events
            if (not reasons or one.reason in reasons) and (not warning or one.type == "Warning")
        )


def newest(events: Iterable[Event]) -> Event | None:
    """Return the newest of some events."""
    return max(events, key=time_of, default=None)


def time_of(event: Event) -> str:
    """Return the time of an event, as Kubernetes writes times; these sort by age."""
    return event.last_timestamp or event.first_timestamp or event.metadata.creation_timestamp or ""


def component_of(event: Event, otherwise: str) -> str:
    """Return the name of the component that wrote an event."""
    return event.reporting_component or (event.source or {}).get("component", "") or otherwise


def told(event: Event) -> str:
    """Return the reason, message and time of an event."""
    when = time_of(event)
    return f"{event.reason}: {event.message}" + (f" ({when})" if when else "")
