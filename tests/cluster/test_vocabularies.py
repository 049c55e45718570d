"""Every vocabulary gets the right slice on the right card: by what the API says, and by what the container sees."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, decode_allocation
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.api.vocabularies import VOCABULARIES, Vocabulary
from egpu_base.api.kubernetes import Node, Pod
from egpu_base.errors import NotFound
from support.target import Target
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

PROBE = (Path(__file__).parent / "probe.py").read_text()
CORE = 30
MEMORY_MIB = 4096
WHOLE_CARD_OVERHEAD = 0.9
"""A driver keeps some of a card for itself; a container with the whole card sees at least this much of it."""
SECONDS = 180


def asked(vocabulary: Vocabulary) -> dict[str, str]:
    """A slice of CORE percent and MEMORY_MIB where the vocabulary has both, else what it has."""
    if not vocabulary.core and not vocabulary.memory:
        return {vocabulary.cards: "1"}
    amounts = {vocabulary.core: CORE, vocabulary.memory: MEMORY_MIB // vocabulary.memory_unit_mib}
    return {name: str(amount) for name, amount in amounts.items() if name}


def pod(target: Target, name: str, limits: dict[str, str], *, claim: str = "") -> dict[str, Any]:
    """A pod that says what it sees and then waits to be deleted, or fails."""
    script = f"{PROBE}\nimport time, sys\nsys.stdout.flush()\ntime.sleep(3600)\n"
    container: dict[str, Any] = {
        "name": "app",
        "image": target.image,
        "command": [target.python, "-c", script],
        "resources": {"limits": limits},
    }
    annotations = {f"{names.CLAIM_PREFIXES[0]}app": claim} if claim else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


@pytest_asyncio.fixture(autouse=True, loop_scope="package")
async def no_pod_left(target: Target) -> AsyncIterator[None]:
    """Also after a test that failed, so that the next one finds the cards free."""
    yield
    for each in await target.client.list(Pod, namespace=target.namespace):
        await gone(target, each.name)


async def made(target: Target, body: dict[str, Any]) -> None:
    await target.client.raw("POST", f"/api/v1/namespaces/{target.namespace}/pods", body=body)


async def cards_of(target: Target) -> dict[str, ElasticGPU]:
    return {gpu.spec.physical_gpu.uuid: gpu for gpu in await target.client.list(ElasticGPU) if gpu.spec.physical_gpu}


async def seen_by(target: Target, name: str) -> list[dict[str, Any]]:
    """What the container of a pod says that it sees, once it has said it."""
    said = ""

    async def spoken() -> bool:
        nonlocal said
        found = await target.client.get(Pod, name, namespace=target.namespace)
        if found.status.phase == "Failed":
            raise AssertionError(await log_of(target, name))
        said = await log_of(target, name) if found.status.phase == "Running" else ""
        return said.endswith("]\n")

    await until(spoken, what=lambda: f"{name}: {said}", seconds=SECONDS)
    return json.loads(said.splitlines()[-1])


async def log_of(target: Target, name: str) -> str:
    return await target.client.text(
        f"/api/v1/namespaces/{target.namespace}/pods/{name}/log", params={"container": "app"}
    )


async def allocation_of(target: Target, name: str) -> tuple[Pod, ContainerAllocation]:
    found = await target.client.get(Pod, name, namespace=target.namespace)
    return found, decode_allocation(found.annotations[names.ALLOCATION]).containers["app"]


async def gone(target: Target, name: str) -> None:
    await target.client.delete(Pod, name, namespace=target.namespace, grace_period_seconds=0)

    async def deleted() -> bool:
        try:
            await target.client.get(Pod, name, namespace=target.namespace)
        except NotFound:
            return True
        return False

    await until(deleted, seconds=SECONDS)


async def offered(target: Target, vocabulary: Vocabulary) -> bool:
    """Whether any node publishes what the vocabulary counts in."""
    wanted = vocabulary.core or vocabulary.memory or vocabulary.cards
    nodes = await target.client.list(Node)
    return any((node.status.allocatable or {}).get(wanted, "0") != "0" for node in nodes)


def right(share: CardShare, view: dict[str, Any], card: ElasticGPU, *, exclusive: bool, held: bool = True) -> None:
    """The container sees the very card that it was given, and of its memory no more and no less than that; unless the
    technology holds nobody to it."""
    assert view["uuid"] == share.uuid
    whole = card.spec.physical_gpu
    assert whole is not None
    if not held:
        assert view["total_mib"] >= share.memory_mib
    elif exclusive:
        assert WHOLE_CARD_OVERHEAD * whole.memory_mib <= view["total_mib"] <= whole.memory_mib
    else:
        assert view["total_mib"] == share.memory_mib
        assert view["limit"], "more could be allocated than the slice has, or less"


async def shown_to_hold(target: Target, card: str, holder: str) -> bool:
    """Whether `kubectl get egpu` shows that something of the card is given to the holder."""
    status = (await target.client.get(ElasticGPU, card)).status
    return (
        holder in status.held_by and status.phase == "Bound" and any(str(one) != "0" for one in status.given.values())
    )


async def shown_not_to_hold(target: Target, card: str, holder: str) -> bool:
    return holder not in (await target.client.get(ElasticGPU, card)).status.held_by


UNHELD = {names.GPUSHARE, names.TIMESLICE, names.MPS}
"""Whose programs see all of the card's memory, whether they get it or not (tests/e2e/test_technologies_cluster.py)."""
FOR_PODS = [one for one in VOCABULARIES if not one.profile and not one.takes_over and one.resources()]
"""Not the instances of MIG, which only cards in MIG mode have (tests/e2e/test_mig_cluster.py), nor what gives another
vocabulary's name its own meaning, nor what claims alone ask for."""


@pytest.mark.parametrize("vocabulary", FOR_PODS, ids=lambda one: one.name)
async def test_a_pod_gets_what_it_asks_for(target: Target, vocabulary: Vocabulary):
    if target.real and not await offered(target, vocabulary):
        pytest.skip(f"no node of this cluster offers {vocabulary.name}")
    name = f"pod-{vocabulary.name}"
    await made(target, pod(target, name, asked(vocabulary)))
    (view,) = await seen_by(target, name)
    found, given = await allocation_of(target, name)
    (share,) = given.cards
    assert (given.provisioner, given.vocabulary) == (vocabulary.provisioner, vocabulary.name)
    assert given.exclusive == (not vocabulary.memory and vocabulary.parts <= 1)
    if vocabulary.parts > 1:
        percent = 100 // vocabulary.parts
        assert (share.core, share.memory_mib) == (percent, share.card_memory_mib * percent // 100)
    elif not given.exclusive:
        assert share.memory_mib == MEMORY_MIB
        assert share.core == (CORE if vocabulary.core else 0)
    card = (await cards_of(target))[share.uuid]
    assert card.spec.node_name == given.cards_node(found.spec.node_name)
    right(share, view, card, exclusive=given.exclusive, held=given.provisioner not in UNHELD)
    mine = f"pod {target.namespace}/{name}"
    await until(lambda: shown_to_hold(target, card.name, mine), f"the card shows {mine}", seconds=SECONDS)
    await gone(target, name)
    await until(lambda: shown_not_to_hold(target, card.name, mine), f"the card shows {mine} no more", seconds=SECONDS)


@pytest_asyncio.fixture(loop_scope="package")
async def bound_claim(target: Target) -> AsyncIterator[str]:
    """A claim with a slice of a card."""
    made_class = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClass",
        "metadata": {"name": target.namespace + "-class"},
        "provisioner": names.VCUDA,
        "reclaimPolicy": "Delete",
        "eGPUBindingMode": "Immediate",
    }
    requests = {names.GPU_CORE: CORE, names.GPU_MEMORY: MEMORY_MIB}
    claim = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "claim"},
        "spec": {"elasticGPUClassName": target.namespace + "-class", "resources": {"requests": requests}},
    }
    group = "/apis/elasticgpu.io/v1alpha1"
    await target.client.raw("POST", f"{group}/elasticgpuclasses", body=made_class)
    await target.client.raw("POST", f"{group}/namespaces/{target.namespace}/elasticgpuclaims", body=claim)
    yield "claim"
    await target.client.delete(ElasticGPUClass, target.namespace + "-class")


async def test_a_claim_holds_its_slice_from_pod_to_pod(target: Target, bound_claim: str):
    shares: list[CardShare] = []
    for turn in range(2):
        name = f"user-{turn}"
        await made(target, pod(target, name, {}, claim=bound_claim))
        (view,) = await seen_by(target, name)
        _, given = await allocation_of(target, name)
        (share,) = given.cards
        assert (given.claim, share.core, share.memory_mib) == (bound_claim, CORE, MEMORY_MIB)
        right(share, view, (await cards_of(target))[share.uuid], exclusive=False)
        shares.append(share)
        await gone(target, name)
    assert shares[0] == shares[1]
    await target.client.delete(ElasticGPUClaim, bound_claim, namespace=target.namespace)

    async def released() -> bool:
        return not [gpu for gpu in await target.client.list(ElasticGPU) if refers(gpu, target)]

    await until(released, seconds=SECONDS)


def refers(gpu: ElasticGPU, target: Target) -> bool:
    return gpu.spec.claim_ref is not None and gpu.spec.claim_ref.namespace == target.namespace


async def test_cards_are_given_back(target: Target):
    """After all that, a whole card can be had, one after the other on every card of a node: nothing is left behind."""
    if target.real:
        pytest.skip("others may use the cards of a real cluster")
    cards = await cards_of(target)
    names_of_pods = [f"whole-{number}" for number in range(len(cards))]
    for name in names_of_pods:
        await made(target, pod(target, name, {names.NVIDIA_GPU: "1"}))
    uuids: set[str] = set()
    for name in names_of_pods:
        (view,) = await seen_by(target, name)
        uuids.add(view["uuid"])
    assert uuids == set(cards)
    for name in names_of_pods:
        await gone(target, name)
