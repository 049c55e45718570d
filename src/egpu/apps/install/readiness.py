"""Waiting for parts of an installation: definitions, workloads, the authority of the webhook, and deletions."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from egpu.adapters.installation import WORKLOADS, Document
from egpu.apps.install.objects import Kind, Objects, path_of, shown
from egpu_base.errors import Unavailable
from egpu_base.kubernetes import Client

POLL_SECONDS: Final = 0.5
MAX_NAMED: Final = 6
Progress = Callable[[str], None]
"""Reports a step to the user."""


class Deadline:
    """The time that the user gave for all waiting."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._end


async def until_none(missing: Callable[[], Awaitable[Sequence[str]]], deadline: Deadline, *, what: str) -> None:
    """Ask until nothing is missing. Raises Unavailable at the deadline, naming what is."""
    while left := await missing():
        if deadline.passed:
            named = "; ".join(left[:MAX_NAMED])
            raise Unavailable(
                f"{what} after {deadline.seconds:g} s: {named}. The same command continues from here; "
                "--wait SECONDS gives it more time"
            )
        await asyncio.sleep(POLL_SECONDS)


async def unestablished(objects: Objects, documents: Iterable[Document]) -> list[str]:
    """Return the definitions that the API server does not serve yet."""
    left: list[str] = []
    for document in documents:
        if document["kind"] == "CustomResourceDefinition":
            found = await objects.find(document) or {}
            conditions: list[Any] = found.get("status", {}).get("conditions") or []  # null at first
            if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                left.append(f"{shown(document)} is not established")
    return left


async def unready(objects: Objects, documents: Iterable[Document]) -> list[str]:
    """Return the workloads that are not wholly ready, with a reason of their pods."""
    left: list[str] = []
    for document in documents:
        if document["kind"] in WORKLOADS:
            found = await objects.find(document)
            if found is None:
                left.append(f"{shown(document)} is gone")
            elif (said := _unready(found)) is not None:
                left.append(f"{shown(document)} has {said}{await _why(objects, found)}")
    return left


def _unready(workload: Document) -> str | None:
    """Return how much of a workload is ready, or None if all is. A DaemonSet without nodes is ready. Pods of an older
    version count where only their deletion replaces them (the shim)."""
    status: dict[str, Any] = workload.get("status", {})
    current = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    if workload["kind"] == "DaemonSet" or "desiredNumberScheduled" in status:
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        on_delete = workload["spec"].get("updateStrategy", {}).get("type") == "OnDelete"
        updated = wanted if on_delete else status.get("updatedNumberScheduled", 0)
    else:
        wanted, ready = workload["spec"].get("replicas", 1), status.get("readyReplicas", 0)
        updated = status.get("updatedReplicas", 0)
    if current and ready >= wanted and updated >= wanted:
        return None
    return f"{min(ready, updated)} of {wanted} pods ready"


async def _why(objects: Objects, workload: Document) -> str:
    """Return why a pod of the workload is not ready, as " (…)"; empty if nothing says so."""
    labels = ",".join(f"{key}={value}" for key, value in workload["spec"]["selector"]["matchLabels"].items())
    for pod in await objects.all(PODS, labels=labels, namespace=workload["metadata"]["namespace"]):
        for status in pod.get("status", {}).get("containerStatuses", []):
            waiting = status.get("state", {}).get("waiting", {})
            if waiting.get("reason") not in (None, "", "ContainerCreating"):
                return f" ({waiting['reason']}: {waiting.get('message', '')[:120]})"
        for condition in pod.get("status", {}).get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return f" (not scheduled: {condition.get('message', '')[:120]})"
    return ""


PODS: Final = Kind("v1", "pods", 6)
"""The kind of pods, which deploy/ itself does not have."""


async def without_authority(objects: Objects, documents: Iterable[Document]) -> list[str]:
    """Return the webhook configurations into which the controller has not written its authority."""
    left: list[str] = []
    for document in documents:
        if "webhooks" in document:
            found = await objects.find(document) or {}
            hooks = found.get("webhooks", [])
            if not hooks or not all(one["clientConfig"].get("caBundle") for one in hooks):
                left.append(f"{shown(document)} has no certificate: see the log of elastic-gpu-controller")
    return left


async def still_there(client: Client, documents: Iterable[Document]) -> list[str]:
    """Return the objects that are not gone yet."""
    objects = Objects(client)
    return [f"{shown(one)} is there" for one in documents if await objects.get(path_of(one)) is not None]
