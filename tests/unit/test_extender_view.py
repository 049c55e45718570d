"""What the extender keeps of the cluster: all that is asked again, and no more."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.apps.extender.view import View
from egpu.core.placement import requests
from egpu.core.placement.hosts import Room, pod_requests
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidInput
from support.fake_api import FakeAPI, Json
from support.objects import BINPACK, card, cluster, place, placed, slice_pod
from support.waiting import until


@asynccontextmanager
async def watching(api: FakeAPI) -> AsyncGenerator[View]:
    view = View(api.client())
    task = asyncio.create_task(view.caches.run())
    try:
        await view.caches.synced()
        yield view
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def sent(pod: Pod, **spec: Any) -> Json:
    """The pod with much that a real one has."""
    found: Json = msgspec.to_builtins(pod)
    found["spec"] |= {"tolerations": [{"operator": "Exists"}], "volumes": [{"name": "v", "emptyDir": {}}], **spec}
    found["spec"]["containers"][0] |= {"image": "any", "env": [{"name": "A", "value": "b"}], "command": ["sleep"]}
    limits = {"cpu": "2", "memory": "1Gi", **found["spec"]["containers"][0]["resources"]["limits"]}
    found["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    return found


def bound(pod: Pod) -> Pod:
    return placed(pod, place(cluster(), pod))


async def test_of_a_pod_with_a_node_is_kept_what_it_holds_and_takes() -> None:
    api = FakeAPI()
    api.put("elasticgpus", msgspec.to_builtins(card("n0", 0)))
    api.put("pods", sent(bound(slice_pod("runs"))))
    api.put("pods", sent(slice_pod("waits")))
    async with watching(api) as view:
        runs, waits = view.pods.get("runs", "default"), view.pods.get("waits", "default")
        assert runs is not None
        assert waits is not None
        assert (runs.spec.volumes, runs.spec.tolerations, runs.containers[0].env) == (None, None, None)
        assert pod_requests(runs) == Room(2000, 1024)
        assert names.ALLOCATION in runs.annotations
        assert all((waits.spec.volumes, waits.spec.tolerations))
        assert waits.containers[0].env is None, "nobody asks for what a container runs"
        assert [one.name for one in view.cards("n0")] == view.cache.card_names("n0")
        assert view.cache.ledger.snapshot()["n0", "GPU-n0-0"][0] == 80
        assert view.cache.ranking.choose(view.cache.request(waits), "n0", BINPACK).node == "n0"


async def test_whoever_has_cards_is_known_by_its_priority_as_long_as_it_has_them() -> None:
    api = FakeAPI()
    api.put("elasticgpus", msgspec.to_builtins(card("n0", 0)))
    one, other = bound(slice_pod("one")), bound(slice_pod("other"))
    api.put("pods", sent(one, priority=7))
    async with watching(api) as view:
        assert priorities(view) == {one.uid: 7}
        api.put("pods", sent(other))
        await until(lambda: priorities(view) == {one.uid: 7, other.uid: 0})
        assert view.population.lowest == 0
        api.put("pods", sent(one, priority=7) | {"status": {"phase": "Succeeded"}})
        await until(lambda: priorities(view) == {other.uid: 0})
        api.remove("pods", "other", "default")
        await until(lambda: not view.population.placed)
        assert view.population.lowest is None


def priorities(view: View) -> dict[str, int]:
    return {uid: placed.priority for uid, placed in view.population.placed.items()}


async def test_a_node_is_usable_while_it_is_ready_and_not_cordoned() -> None:
    def node(name: str, *, ready: str = "True", **spec: Any) -> Json:
        conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
        room = {"cpu": "8", "memory": "16Gi"}
        status = {"conditions": conditions, "capacity": room, "addresses": [{"type": "Hostname", "address": name}]}
        return {"metadata": {"name": name, "uid": name}, "spec": spec, "status": status}

    api = FakeAPI()
    api.put("nodes", node("n0"))
    api.put("nodes", node("n1", ready="False"))
    api.put("nodes", node("n2", unschedulable=True))
    async with watching(api) as view:
        assert view.usable_nodes() == ["n0"]
        kept = view.nodes.get("n0")
        assert kept is not None
        assert kept.status.addresses is None
        assert view.cache.hosts.total("n0") == Room(8000, 16384)
        api.put("nodes", node("n1"))
        api.put("nodes", node("n0", unschedulable=True))
        await until(lambda: view.usable_nodes() == ["n1"])


def waiting(name: str, core: int = 20) -> Json:
    """A pod as the webhook lets it in."""
    made = sent(slice_pod(name, core=core))
    made["metadata"]["annotations"] = {names.DEMAND: '{"version":1,"containers":{}}'}
    return made


async def test_what_a_waiting_pod_asks_for_is_known_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-scheduler hears of a pod when we do, and waits for the answer to its first question."""
    api = FakeAPI()
    api.put("pods", waiting("waits"))
    async with watching(api) as view:
        (pod,) = view.waiting.values()
        monkeypatch.setattr(requests, "pod_request", None)
        assert "app" in view.cache.request(msgspec.convert(msgspec.to_builtins(pod), Pod)).local


async def test_a_pod_whose_demand_cannot_be_read_is_still_followed() -> None:
    api = FakeAPI()
    api.put("pods", waiting("bad", core=1234))
    async with watching(api) as view:
        (bad,) = view.waiting.values()
        with pytest.raises(InvalidInput):
            view.cache.request(bad)


async def test_what_a_kubelet_tells_of_a_placed_pod_is_kept_and_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the pod has ended: most changes of pods are such."""
    api = FakeAPI()
    api.put("elasticgpus", msgspec.to_builtins(card("n0", 0)))
    one = bound(slice_pod("one"))
    api.put("pods", sent(one))
    async with watching(api) as view:
        told = list[str]()
        changed = view.cache.pod_changed
        monkeypatch.setattr(view.cache, "pod_changed", lambda pod: (told.append(pod.status.phase or ""), changed(pod)))
        api.put("pods", sent(one) | {"status": {"phase": "Running"}})
        await until(lambda: (known := view.pods.by_uid(one.uid)) is not None and known.status.phase == "Running")
        assert told == []
        marked = sent(one)
        marked["metadata"]["annotations"]["noted"] = "yes"
        api.put("pods", marked | {"status": {"phase": "Running"}})
        await until(lambda: told == ["Running"])
        api.put("pods", marked | {"status": {"phase": "Succeeded"}})
        await until(lambda: told == ["Running", "Succeeded"])
        assert not view.cache.ledger.holders()
