"""The taint that keeps pods off a node until its agent is ready: who takes it away, and when."""

import asyncio
from pathlib import Path

import httpx2
import pytest

from egpu.api import names
from egpu.apps.agent import startup_taint
from egpu.apps.agent.dra.allocator import Allocator
from egpu.apps.agent.startup_taint import StartupTaint
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI, status
from support.waiting import until

OTHER = {"key": "a.b/c", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
OURS = {"key": names.AGENT_NOT_READY, "effect": "NoSchedule"}


class Cluster(FakeAPI):
    """One node. `cut` makes every write fail."""

    def __init__(self, *taints: dict[str, str], slots: str = "4") -> None:
        super().__init__()
        self.cut = False
        self.put("nodes", {"metadata": {"name": "n"}, "spec": {"taints": list(taints)}})
        self.count(slots)
        self.fault = self.answer

    @property
    def taints(self) -> list[dict[str, str]]:
        return self.get("nodes", "n")["spec"]["taints"]

    @property
    def writes(self) -> int:
        return sum(method == "PATCH" for method, _ in self.log)

    def count(self, slots: str) -> None:
        self.put("nodes", self.get("nodes", "n") | {"status": {"allocatable": {names.SLOT: slots}}})

    def answer(self, _: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        return status(503, "ServiceUnavailable") if self.cut and request.method == "PATCH" else None


async def test_our_taints_go_and_the_others_stay_as_they_are() -> None:
    api = Cluster(OURS, OTHER, OURS | {"effect": "NoExecute"})
    async with api.client() as client:
        assert await StartupTaint(client, "n", lambda: None).removed()
    assert api.taints == [OTHER]


async def test_a_node_that_gives_out_cards_by_claims_needs_no_slots(tmp_path: Path) -> None:
    api = Cluster(OURS, slots="0")
    async with api.client() as client:
        assert not await StartupTaint(client, "n", lambda: None).removed()
        allocator = Allocator(tmp_path / "way", {}, events=EventRecorder(client, component="x"))
        assert not await StartupTaint(client, "n", lambda: None, allocator).removed()
        allocator.in_force = allocator.wanted = names.DRA
        assert await StartupTaint(client, "n", lambda: None, allocator).removed()
    assert api.taints == []


async def test_a_node_without_the_taint_is_not_written() -> None:
    api = Cluster(OTHER)
    async with api.client() as client:
        assert await StartupTaint(client, "n", lambda: None).removed()
    assert api.writes == 0


async def test_taints_that_moved_meanwhile_are_not_taken_for_ours() -> None:
    api = Cluster(OURS, OTHER)

    def late(_: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "PATCH":
            api.get("nodes", "n")["spec"]["taints"].reverse()
        return api.answer(api, request)

    api.fault = late
    async with api.client() as client:
        with pytest.raises(ElasticGPUError):
            await StartupTaint(client, "n", lambda: None).removed()
    assert api.taints == [OTHER, OURS]


async def test_it_goes_once_the_agent_is_ready_and_kubelet_counts_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rest(_: float) -> None:
        await asyncio.sleep(0.001)

    monkeypatch.setattr(startup_taint, "rest", rest)
    api, reasons = Cluster(OURS, slots="0"), ["not registered with kubelet"]
    async with api.client() as client:
        running = asyncio.create_task(StartupTaint(client, "n", lambda: reasons[0] if reasons else None).run())
        await asyncio.sleep(0.02)
        assert api.log == [], "not ready: the node is not even read"
        reasons.clear()
        await until(lambda: len(api.log) > 3, "it looks")
        assert api.writes == 0, "kubelet counts no slots"
        api.cut = True
        api.count("4")
        await until(lambda: api.writes > 2, "it tries again")
        api.cut = False
        await running
    assert api.taints == []
    api.put("nodes", api.get("nodes", "n") | {"spec": {"taints": [OURS]}})
    assert running.done(), "a taint that is set later is for the next agent"
