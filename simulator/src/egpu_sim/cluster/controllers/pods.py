"""The pods of one owner: claim and end them, and their states.

Each look lists from the server, not from a copy. It sees everything that the controller has just made, so nothing is
made twice.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from egpu_base.api.kubernetes import TERMINAL_PHASES, Pod
from egpu_base.api.objects import Object
from egpu_base.api.wire import seconds_since
from egpu_base.errors import Conflict, NotFound
from egpu_base.kubernetes import Client
from egpu_sim.cluster.controllers.kinds import Workload
from egpu_sim.cluster.controllers.making import MOST_AT_ONCE
from egpu_sim.cluster.trees import as_list, as_object

T = TypeVar("T", bound=Object)


def selector_text(selector: Mapping[str, Any]) -> str:
    """Return a label selector as a query's text."""
    terms = [f"{key}={value}" for key, value in as_object(selector.get("matchLabels")).items()]
    for expression in map(as_object, as_list(selector.get("matchExpressions"))):
        key, values = expression["key"], ",".join(map(str, as_list(expression.get("values"))))
        match expression["operator"]:
            case "In" | "NotIn":
                terms.append(f"{key} {expression['operator'].lower()} ({values})")
            case "Exists":
                terms.append(key)
            case _:
                terms.append(f"!{key}")
    return ",".join(terms)


async def claimed(client: Client, owner: Workload, kind: type[T]) -> list[T]:
    """Return the owner's objects of a kind: its own, and strays that it selects, which it adopts. Release own objects
    that it no longer selects."""
    selector = selector_text(as_object(owner.spec.get("selector")))
    selected = await client.list(kind, namespace=owner.namespace, labels=selector)
    mine: list[T] = []
    for one in selected:
        controller = controller_of(one)
        if controller == owner.uid:
            mine.append(one)
        elif not controller and one.metadata.deletion_timestamp is None and owner.metadata.deletion_timestamp is None:
            try:
                mine.append(await _own(client, one, [owner.owner_reference()]))
            except (Conflict, NotFound):
                continue  # Changed or gone meanwhile: the next look decides.
    known = {one.uid for one in mine}
    for one in await client.list(kind, namespace=owner.namespace):
        if controller_of(one) == owner.uid and one.uid not in known and one.metadata.deletion_timestamp is None:
            await _own(client, one, [])
    return mine


def controller_of(obj: Object) -> str:
    """Return the uid of the owner that controls an object; empty for none."""
    references = obj.metadata.owner_references or []
    return next((reference.uid for reference in references if reference.controller), "")


async def _own(client: Client, obj: T, references: list[dict[str, Any]]) -> T:
    others = [
        {"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid}
        for one in obj.metadata.owner_references or []
        if not one.controller
    ]
    metadata = {"uid": obj.uid, "ownerReferences": [*others, *references] or None}
    return await client.patch(type(obj), obj.name, {"metadata": metadata}, namespace=obj.namespace)


async def end(client: Client, pods: Sequence[Pod]) -> None:
    await asyncio.gather(
        *(client.delete(Pod, pod.name, namespace=pod.namespace, uid=pod.uid) for pod in pods[:MOST_AT_ONCE])
    )


def is_active(pod: Pod) -> bool:
    return pod.status.phase not in TERMINAL_PHASES and pod.metadata.deletion_timestamp is None


def ready_since(pod: Pod) -> float | None:
    """Return the seconds since a pod became ready; None while it is not."""
    for one in pod.status.conditions or []:
        if one.type == "Ready" and one.status == "True":
            return age_seconds(one.last_transition_time)
    return None


def is_available(pod: Pod, min_ready_seconds: int) -> bool:
    since = ready_since(pod)
    return since is not None and is_active(pod) and since >= min_ready_seconds


def age_seconds(timestamp: str | None) -> float:
    """Return the age of an API timestamp; 0 if missing."""
    return seconds_since(timestamp, datetime.now(UTC))


def first_to_go(pods: Sequence[Pod]) -> list[Pod]:
    """Sort pods in the order in which they end: without a node, not running, not ready, the youngest."""

    def worth(pod: Pod) -> tuple[bool, bool, bool, float]:
        running = pod.status.phase == "Running"
        age = age_seconds(pod.metadata.creation_timestamp)
        return bool(pod.spec.node_name), running, ready_since(pod) is not None, age

    return sorted(pods, key=worth)


async def write_status(client: Client, owner: Workload, status: Mapping[str, Any]) -> None:
    """Write the parts of a status that differ. Zero counts are left out, as in Kubernetes."""
    told = {key: value if value not in (0, [], {}) else None for key, value in status.items()}
    told["observedGeneration"] = owner.metadata.generation or None
    changed = {key: value for key, value in told.items() if owner.status.get(key) != value}
    if changed:
        body = {"metadata": {"uid": owner.uid}, "status": changed}
        await client.patch(type(owner), owner.name, body, namespace=owner.namespace, subresource="status")
