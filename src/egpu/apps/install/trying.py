"""Try an installation: a pod with a slice on each kind of card. It computes, is checked, and is removed."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from egpu.api import names
from egpu.api.objects import ElasticGPU
from egpu.apps.install.readiness import PODS, POLL_SECONDS, Deadline, Progress
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError, NotFound
from egpu_base.kubernetes import Client

PREFIX: Final = "egpu-install-try-"
PROGRAM: Final = """\
import os
from egpu.adapters import native
program = str(native.path("samples/egpu-sample-vectoradd"))
os.execv(program, [program])
"""
"""Runs our sample, which adds vectors on the slice and compares the sums."""
CARD_SECONDS: Final = 20.0
"""Time for the first card after the agents are ready; a driver that has just been installed may need it."""
COMMAND: Final = ("python", "-c", PROGRAM)
"""Runs it in our image."""
SLICE: Final = {names.GPU_CORE: 10, names.GPU_MEMORY: 256}


@dataclass(frozen=True)
class Shape:
    """What the pods have beside a slice. `pull_secrets` are references to Secrets of the namespace."""

    image: str
    command: Sequence[str] = COMMAND
    runtime_class: str = ""
    pull_secrets: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True)
class Trial:
    """The result on one node. `said`: the program's last line, or why it did not run."""

    node: str
    model: str
    works: bool
    said: str


async def trials(
    client: Client,
    namespace: str,
    shape: Shape,
    *,
    deadline: Deadline,
    progress: Progress,
) -> tuple[Trial, ...]:
    """Run a pod on one node of each model, one after the other; none if no agent publishes a card for a while. Raises
    the API server's errors."""
    done: list[Trial] = []
    cards = Deadline(min(CARD_SECONDS, deadline.seconds))
    while not (models := await _by_model(client)):
        if cards.passed:
            return ()
        await asyncio.sleep(POLL_SECONDS)
    for model, node in sorted(models.items()):
        progress(f"running a pod with a slice of {model} on {node}")
        works, said = await _tried(client, namespace, pod(node, shape), deadline)
        done.append(Trial(node, model, works, said))
    return tuple(done)


async def _by_model(client: Client) -> Mapping[str, str]:
    """Return a node for each model of healthy cards."""
    found: dict[str, str] = {}
    for gpu in await client.list(ElasticGPU):
        card = gpu.spec.physical_gpu
        if card is not None and gpu.healthy and not gpu.spec.unschedulable and card.mig is None:
            found.setdefault(card.model, gpu.spec.node_name)
    return found


def pod(node: str, shape: Shape) -> dict[str, Any]:
    """Return the pod. It is bound to the node by an affinity, so that it is scheduled as every other one."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    container = {
        "name": "try",
        "image": shape.image,
        "command": list(shape.command),
        "resources": {"limits": SLICE},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "affinity": affinity,
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    if shape.runtime_class:
        spec["runtimeClassName"] = shape.runtime_class
    if shape.pull_secrets:
        spec["imagePullSecrets"] = list(shape.pull_secrets)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": PREFIX}, "spec": spec}


async def _tried(client: Client, namespace: str, body: Mapping[str, Any], deadline: Deadline) -> tuple[bool, str]:
    """Run one pod. Return whether it succeeded, and what it said, or why it did not run."""
    made = await client.raw("POST", PODS.path(namespace), body=body)
    name = str(made["metadata"]["name"])
    try:
        found = await _ended(client, name, namespace, deadline)
        said = await _said(client, found) if found.finished else _waits(found)
        return found.status.phase == "Succeeded", said
    finally:
        await client.delete(Pod, name, namespace=namespace, grace_period_seconds=0)


async def _ended(client: Client, name: str, namespace: str, deadline: Deadline) -> Pod:
    """Return the pod when it has ended, or as it is at the deadline."""
    while True:
        found = await client.get(Pod, name, namespace=namespace)
        if found.finished or deadline.passed:
            return found
        await asyncio.sleep(POLL_SECONDS)


async def _said(client: Client, ended: Pod) -> str:
    """Return the last line of the pod's log; without one, the reason of its end."""
    try:
        lines = (await client.text(f"{PODS.path(ended.namespace, ended.name)}/log")).strip().splitlines()
    except (ElasticGPUError, NotFound) as error:
        return ended.status.message or str(error)
    return lines[-1] if lines else ended.status.message or ended.status.phase


def _waits(found: Pod) -> str:
    """Return why a pod has not run."""
    for condition in found.status.conditions or []:
        if condition.status == "False" and condition.message:
            return condition.message
    return f"it is {found.status.phase or 'not scheduled'}"
