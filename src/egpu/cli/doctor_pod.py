"""`egpu doctor POD`: one pod, followed from its admission to the CUDA calls of its programs.

The rights of the pod's namespace are enough. What they do not show is reported as such.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from egpu.adapters.kubernetes.announced_usage import UsageSources
from egpu.adapters.slices.published import read_usage
from egpu.api.objects import ElasticGPUClaim, ElasticGPUClass
from egpu.api.symptoms import Symptom
from egpu.apps.dashboard.usage_sources import read_token
from egpu.cli.output import Format, Table, fail, note, say, show, show_value
from egpu.core.dra.references import claim_names as device_claim_names
from egpu.core.following import Evidence, Passing, Stage, finding, follow
from egpu.core.following.admitted import WEBHOOK, claim_names
from egpu.core.following.evidence import newest
from egpu.core.view import SliceUsage
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Event, Pod
from egpu_base.errors import ElasticGPUError, NotFound, Refused
from egpu_base.kubernetes import Client

T = TypeVar("T")

LOG_LINES: Final = 200
"""Lines of a container's log in which we look for messages of our libraries."""
LOG_BYTES: Final = 64 << 10
OURS: Final = "egpu: "
"""The begin of each line that our libraries write to a program's stderr."""
PASSING_MESSAGE: Final = "nothing listens yet"
"""The libraries' message that they wait for the agent. No message follows when it answers, so it is no finding."""
MAKERS: Final = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "Job"})
"""The kinds whose controllers create pods, and report refusals as events."""


@dataclass(frozen=True)
class Followed:
    """The stages of a pod by name, and what this user may not read."""

    key: str
    stages: Mapping[str, Stage]
    unread: Mapping[str, str]


async def follow_pod(client: Client, namespace: str, name: str, sources: UsageSources) -> Followed | None:
    """Read what there is about the pod, and follow it. None: no such pod, and no controller failed to create it. Raises
    Refused without the right to read the pod."""
    pod = await client.find(Pod, name, namespace=namespace)
    if pod is None:
        return await _never_created(client, namespace, name)
    evidence = await _read(client, pod, sources)
    return Followed(pod.key, follow(evidence), evidence.unread)


async def _never_created(client: Client, namespace: str, name: str) -> Followed | None:
    """Return the refusal of pods whose controller could not create them, if one of its events is left."""
    events = await client.list(Event, namespace=namespace, fields="reason=FailedCreate")
    event = newest(
        one
        for one in events
        if one.involved_object.kind in MAKERS and f"{name}-".startswith(f"{one.involved_object.name}-")
    )
    if event is None:
        return None
    owner = f"{event.involved_object.kind} {event.involved_object.name}"
    said = f"no pod exists. {owner} could not create one: {event.message}"
    stage = Stage(WEBHOOK, Passing.FAILED, said, "correct the field that the message names", Symptom.REFUSED)
    return Followed(f"{namespace}/{name}", {"admission": stage}, {})


async def _read(client: Client, pod: Pod, sources: UsageSources) -> Evidence:
    """Read each kind of evidence. A refusal is kept as the reason for its absence."""
    unread = dict[str, str]()

    async def allowed(what: str, asked: Awaitable[T], otherwise: T) -> T:
        try:
            return await asked
        except (Refused, NotFound) as error:
            unread[what] = str(error)
            return otherwise

    def events(**of: str) -> Awaitable[Sequence[Event]]:
        fields = ",".join(f"involvedObject.{key}={value}" for key, value in of.items())
        return allowed("events", client.list(Event, namespace=pod.namespace, fields=fields), ())

    wanted = claim_names(pod)
    claims: dict[str, ElasticGPUClaim | None] = {}
    for one in wanted:
        claims[one] = await allowed("claims", client.find(ElasticGPUClaim, one, namespace=pod.namespace), None)
    device_claims: dict[str, ResourceClaim | None] = {}
    for one in filter(None, device_claim_names(pod)):
        asked = client.find(ResourceClaim, one, namespace=pod.namespace)
        device_claims[one] = await allowed("resourceclaims", asked, None)
    return Evidence(
        pod=pod,
        device_claims=device_claims,
        events=await events(uid=pod.uid),
        claims=claims,
        classes=await _classes(client, [one for one in claims.values() if one is not None], allowed),
        claim_events={one: await events(kind="ElasticGPUClaim", name=one) for one in wanted},
        usage=await asyncio.to_thread(_usage, sources, pod, unread),
        lines=await allowed("logs", _lines(client, pod), {}),
        unread=unread,
    )


async def _classes(
    client: Client, claims: Sequence[ElasticGPUClaim], allowed: Callable[..., Awaitable[Any]]
) -> dict[str, ElasticGPUClass]:
    found: dict[str, ElasticGPUClass] = {}
    for name in {one.spec.class_name for one in claims if one.spec.class_name}:
        if (klass := await allowed("classes", client.find(ElasticGPUClass, name), None)) is not None:
            found[name] = klass
    return found


async def _lines(client: Client, pod: Pod) -> dict[str, str]:
    """Return the last message of our libraries in the log of each container with cards. Containers that have not
    started have no log, which the API server calls a bad request."""
    found = dict[str, str]()
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
    for name, status in Evidence(pod=pod).gpu_statuses():
        if status is None or not status.container_id:
            continue
        params = {"container": name, "tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES)}
        text = await client.text(path, params=params)
        ours = [one for one in text.splitlines() if one.startswith(OURS) and PASSING_MESSAGE not in one]
        if ours:
            found[name] = ours[-1]
    return found


def _usage(sources: UsageSources, pod: Pod, unread: dict[str, str]) -> Mapping[str, Sequence[SliceUsage]] | None:
    """Return what the sources report about this pod, by container; None without an answer of any source."""
    if not sources.urls:
        unread["usage"] = "no source of usage is given. Name one with --usage"
        return None
    found: dict[str, list[SliceUsage]] | None = None
    for url in sources.urls:
        try:
            used = read_usage([url], token=read_token(sources.token_file))
        except (ElasticGPUError, OSError) as error:
            unread["usage"] = f"use of slices is unknown: {error}"
            continue
        found = {} if found is None else found
        for key, use in used.items():
            if (key.namespace, key.pod) == (pod.namespace, pod.name):
                found.setdefault(key.container, []).append(use)
    return found


def show_pod(followed: Followed, output: Format) -> bool:
    """Print the stages and the finding. Return whether there is no finding."""
    found = finding(followed.stages)
    if not output.for_people:
        stages = [_record(name, stage) for name, stage in followed.stages.items()]
        value = {"pod": followed.key, "stages": stages, "finding": None if found is None else _record(*found)}
        show_value(value | {"unread": dict(followed.unread)}, output)
        return found is None
    table = Table(("stage", "state", "seen by", "said"), sentences=True)
    for name, stage in followed.stages.items():
        table.add((name, stage.state.value, stage.component, stage.said), _record(name, stage))
    show(table, output)
    for what, why in followed.unread.items():
        note(f"{what}: {why}", label="not seen:", style="yellow")
    if found is None:
        say(f"pod {followed.key} has passed each stage that can be seen", style="green")
        return True
    name, stage = found
    say(f"finding: pod {followed.key} has not passed {name}: {stage.said}", style="red")
    say(f"  to fix: {stage.mend}" + (f"\n  see: {stage.symptom.link}" if stage.symptom is not None else ""))
    return False


def _record(name: str, stage: Stage) -> dict[str, str]:
    return {
        "stage": name,
        "state": stage.state.value,
        "component": stage.component,
        "said": stage.said,
        "mend": stage.mend,
        "see": "" if stage.symptom is None else stage.symptom.link,
    }


def doctor_pod(
    kubeconfig: Path | None, namespace: str | None, name: str, *, sources: UsageSources, output: Format
) -> bool:
    """Follow a pod (NAME or NAMESPACE/NAME) and show it. Return whether there is no finding. Raises Unavailable."""
    if "/" in name:
        namespace, _, name = name.partition("/")

    async def work() -> tuple[str, Followed | None]:
        async with Client.from_kubeconfig(kubeconfig) as client:
            where = namespace or client.namespace
            return where, await follow_pod(client, where, name, sources)

    where, followed = asyncio.run(work())
    if followed is None:
        fail(f"namespace {where} has no pod {name}. `egpu get pods -n {where}` lists what there is")
    return show_pod(followed, output)
