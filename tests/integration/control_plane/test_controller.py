"""Claims through their whole life, with the real extender beside the controller."""

import json
from pathlib import Path
from typing import Any

import pytest

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim
from egpu.apps.controller import Controller, ControllerConfig
from egpu_base.api.kubernetes import Event, Node, Pod
from support.control_plane import ControlPlane, control_plane, extender, nodes_known, running, scheduled
from support.waiting import until

API = "elasticgpu.io/v1alpha1"


def klass(name: str, mode: str = "Immediate", policy: str = "Delete") -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "ElasticGPUClass",
        "metadata": {"name": name},
        "provisioner": names.VCUDA,
        "eGPUBindingMode": mode,
        "reclaimPolicy": policy,
    }


def claim(name: str, of: str, core: int = 60) -> dict[str, Any]:
    requests = {names.GPU_CORE: core, names.GPU_MEMORY: 1024}
    return {
        "apiVersion": API,
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name, "labels": {"team": "a"}},
        "spec": {"elasticGPUClassName": of, "resources": {"requests": requests}},
    }


def user(name: str, of: str) -> dict[str, Any]:
    annotations = {names.CLAIM_PREFIXES[0] + "app": of, names.DEMAND: '{"version":1,"containers":{}}'}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": "x"}]},
    }


async def phase(w: ControlPlane, name: str) -> str | None:
    found = await w.client.find(ElasticGPUClaim, name, namespace="default")
    return None if found is None else found.status.phase


async def is_phase(w: ControlPlane, name: str, wanted: str) -> bool:
    return await phase(w, name) == wanted


async def slices(w: ControlPlane) -> list[ElasticGPU]:
    return [gpu for gpu in await w.client.list(ElasticGPU) if gpu.spec.slice is not None]


def controller(w: ControlPlane) -> Controller:
    return Controller(ControllerConfig(listen="127.0.0.1:0"), w.client)


async def _tells(two: Controller, line: str) -> bool:
    return line in (await two.series()).decode().splitlines()


async def test_a_claim_is_bound_used_protected_and_given_back(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, http), running(two := controller(w)):
        await w.node("n0")
        await nodes_known(one, 1)
        await w.create(klass("now"))
        await w.create(claim("c", "now"))
        await until(lambda: is_phase(w, "c", "Bound"))
        (made,) = await slices(w)
        assert made.spec.claim_ref is not None
        assert made.spec.claim_ref.name == "c"
        found = await w.client.get(ElasticGPUClaim, "c", namespace="default")
        assert found.metadata.finalizers == [names.CLAIM_FINALIZER]
        assert found.status.bound_gpus == [made.name]
        await until(lambda: _slice_phase(w, "Bound"))
        await until(lambda: _tells(two, 'elasticgpu_cluster_claims{phase="Bound"} 1.0'))
        await until(
            lambda: _tells(two, 'elasticgpu_bill_losing_cards{namespace="default",team="a",cause="unused"} 0.6')
        )

        pod = await w.create(user("u", "c"))
        assert await scheduled(http, pod, "n0") == {"Error": ""}
        await until(lambda: _used_by(w, "c", ["u/app"]))
        await w.client.delete(ElasticGPUClaim, "c", namespace="default")
        assert await phase(w, "c") == "Bound"  # it waits for its user
        await w.client.delete(Pod, "u", namespace="default", grace_period_seconds=0)
        await until(lambda: _gone(w, "c"))
        await until(lambda: _no_slices(w))
        await until(lambda: one.view.cache.ledger.holders() == {})
        reasons = {event.reason for event in await w.client.list(Event, namespace="default")}
        assert "Bound" in reasons


async def test_a_pod_with_a_template_gets_a_claim_that_ends_with_it(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, _), running(controller(w)):
        await w.node("n0")
        await nodes_known(one, 1)
        await w.create(klass("now"))
        template = json.dumps(claim("any", "now", core=30)["spec"])
        pods: dict[str, Any] = {}
        for name in ("done", "gone"):
            owner = user(name, f"of-{name}")
            owner["metadata"]["annotations"][f"{names.CLAIM_TEMPLATE_PREFIX}app"] = template
            pods[name] = await w.create(owner)
        for name in pods:
            await until(lambda name=name: is_phase(w, f"of-{name}", "Bound"))
            found = await w.client.get(ElasticGPUClaim, f"of-{name}", namespace="default")
            assert [one.uid for one in found.metadata.owner_references or []] == [pods[name]["metadata"]["uid"]]
        await w.client.patch(Pod, "done", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status")
        await w.client.delete(Pod, "gone", namespace="default", grace_period_seconds=0)
        for name in pods:
            await until(lambda name=name: _gone(w, f"of-{name}"))
        await until(lambda: _no_slices(w))


async def test_a_claim_that_cannot_be_made_is_told_at_its_pod(tmp_path: Path):
    async with control_plane(tmp_path) as w, running(controller(w)):
        await w.create(klass("now"))
        await w.create(claim("taken", "now"))
        owner = user("u", "taken")
        owner["metadata"]["annotations"][f"{names.CLAIM_TEMPLATE_PREFIX}app"] = json.dumps(claim("any", "now")["spec"])
        await w.create(owner)

        async def told() -> str:
            events = await w.client.list(Event, namespace="default")
            return next((event.message for event in events if event.reason == "ClaimNotMade"), "")

        assert "claim taken exists and belongs to something else" in await until(told)


async def test_a_retained_slice_stays_and_keeps_its_card_until_somebody_deletes_it(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, _), running(controller(w)):
        await w.node("n0")
        await nodes_known(one, 1)
        await w.create(klass("keep", policy="Retain"))
        await w.create(claim("c", "keep"))
        await until(lambda: is_phase(w, "c", "Bound"))
        await w.client.delete(ElasticGPUClaim, "c", namespace="default")
        await until(lambda: _gone(w, "c"))
        await until(lambda: _slice_phase(w, "Released"))
        await until(lambda: {holder.kind for holder in one.view.cache.ledger.holders()} == {"slice"})
        (kept,) = await slices(w)
        await w.client.delete(ElasticGPU, kept.name)
        await until(lambda: one.view.cache.ledger.holders() == {})


async def test_a_waiting_claim_stays_pending_until_its_first_pod(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, http), running(controller(w)):
        await w.node("n0")
        await nodes_known(one, 1)
        await w.create(klass("later", mode="WaitForFirstConsumer"))
        await w.create(claim("c", "later"))
        await until(lambda: is_phase(w, "c", "Pending"))
        pod = await w.create(user("u", "c"))
        await until(lambda: one.view.claims.get("c", "default") is not None)
        assert await scheduled(http, pod, "n0") == {"Error": ""}
        await until(lambda: is_phase(w, "c", "Bound"))
        await until(lambda: _used_by(w, "c", ["u/app"]))


async def test_a_claim_is_lost_with_its_slice_for_good_and_with_its_node_until_that_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("egpu.core.claims.absence.MISSING_SECONDS", 0.1)
    async with control_plane(tmp_path) as w, extender(w) as (one, _), running(controller(w)):
        await w.node("n0", cards=2)
        await nodes_known(one, 1)
        await w.create(klass("now"))
        for name in ("c", "d"):
            await w.create(claim(name, "now"))
            await until(lambda name=name: is_phase(w, name, "Bound"))
        doomed = next(gpu for gpu in await slices(w) if gpu.spec.claim_ref and gpu.spec.claim_ref.name == "c")
        await w.client.delete(ElasticGPU, doomed.name)
        await until(lambda: is_phase(w, "c", "Lost"))
        assert await phase(w, "d") == "Bound"
        await w.client.delete(Node, "n0")
        await until(lambda: is_phase(w, "d", "Lost"))
        await until(lambda: _no_gpus(w))  # the node's cards are swept too
        await until(lambda: _gave_up_its_share(w, "c"))
        await w.node("n0", cards=2)
        await until(lambda: is_phase(w, "d", "Bound"))
        assert await phase(w, "c") == "Lost"
        await until(lambda: {holder.kind for holder in one.view.cache.ledger.holders()} == {"claim"})


async def test_leftovers_of_a_dead_controller_are_swept_at_the_start(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, _):
        await w.node("n0")
        await nodes_known(one, 1)
        await w.create(klass("now"))
        await w.create(claim("c", "now"))
        async with running(controller(w)):
            await until(lambda: is_phase(w, "c", "Bound"))
        # While no controller runs the claim goes without its finalizer, as when somebody forces it.
        patch = {"metadata": {"finalizers": None}}
        await w.client.patch(ElasticGPUClaim, "c", patch, namespace="default")
        await w.client.delete(ElasticGPUClaim, "c", namespace="default")
        assert len(await slices(w)) == 1
        async with running(controller(w)):
            await until(lambda: _no_slices(w))
        await until(lambda: one.view.cache.ledger.holders() == {})


async def test_a_claim_that_can_never_be_bound_says_so(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w), running(controller(w)):
        await w.create({**klass("q"), "provisioner": names.VGPU})
        await w.create(claim("c", "q"))

        async def told() -> bool:
            events = await w.client.list(Event, namespace="default")
            return "CannotBeBound" in {event.reason for event in events}

        await until(told)
        assert await phase(w, "c") in (None, "Pending")


async def _slice_phase(w: ControlPlane, wanted: str) -> bool:
    return [gpu.status.phase for gpu in await slices(w)] == [wanted]


async def _used_by(w: ControlPlane, name: str, wanted: list[str]) -> bool:
    found = await w.client.get(ElasticGPUClaim, name, namespace="default")
    return list(found.status.used_by) == wanted


async def _gone(w: ControlPlane, name: str) -> bool:
    return await w.client.find(ElasticGPUClaim, name, namespace="default") is None


async def _no_slices(w: ControlPlane) -> bool:
    return not await slices(w)


async def _gave_up_its_share(w: ControlPlane, name: str) -> bool:
    return (await w.client.get(ElasticGPUClaim, name, namespace="default")).status.allocation is None


async def _no_gpus(w: ControlPlane) -> bool:
    return not await w.client.list(ElasticGPU)
