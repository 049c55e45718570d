"""Health of cards over time, on an NVML of our own: lost cards, critical XIDs, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from egpu.adapters.cards import mig
from egpu.adapters.cards import nvml as adapter
from egpu.adapters.cards.hardware import CardHardware, read_hardware
from egpu.adapters.cards.nvml import NvmlInventory
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.slots.directories import Slots
from egpu_base.errors import Unavailable
from egpu_base.system.processes import boot_id
from support.waiting import until


class FakeNVML:
    """As much of pynvml as the adapter calls. `cards` are UUIDs in index order; what is missing raises NVMLError."""

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801
        pass

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_FEATURE_ENABLED = 1
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    nvmlLib: Any = object()  # noqa: N815

    def __init__(self, *cards: str) -> None:
        self.cards = list(cards)
        self.events: list[tuple[str, int]] = []
        self.starts = 0
        self.answers = True
        self.nvmlMemory_v2 = 2
        self.tells_reserved = True
        self.says: dict[str, Callable[..., Any]] = {}

    def nvmlInit(self) -> None:  # noqa: N802
        self.starts += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if not self.answers:
            raise self.NVMLError("driver not loaded")
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetMinorNumber(self, handle: str) -> int:  # noqa: N802
        return self.cards.index(handle)

    def nvmlDeviceGetName(self, handle: str) -> bytes:  # noqa: N802
        return b"T4"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 0) -> SimpleNamespace:  # noqa: N802
        if version and not self.tells_reserved:
            raise self.NVMLError("function not found")
        return SimpleNamespace(total=16 << 30, reserved=500 << 20, used=3 << 30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:  # noqa: N802
        return 7, 5

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        if not self.events:
            raise self.NVMLError("timeout")
        uuid, xid = self.events.pop(0)
        return SimpleNamespace(device=uuid, eventData=xid)

    def __getattr__(self, name: str) -> Any:
        if name in self.says:
            return self.says[name]

        def unsupported(*_: object) -> None:
            raise self.NVMLError(f"{name}: not supported")

        return unsupported


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNVML:
    found = FakeNVML("GPU-a", "GPU-b")
    monkeypatch.setattr(adapter, "nvml", found)
    monkeypatch.setattr(mig, "nvml", found)
    return found


def health(inventory: NvmlInventory) -> dict[str, str]:
    """Reason by UUID; "" is healthy."""
    cards = inventory.read()
    assert all(card.healthy == (not card.reason) for card in cards)
    return {card.uuid: card.reason for card in cards}


def test_a_lost_card_stays_known_and_comes_back(fake: FakeNVML) -> None:
    inventory = NvmlInventory()
    assert health(inventory) == {"GPU-a": "", "GPU-b": ""}
    fake.cards = ["GPU-b"]
    assert health(inventory) == {"GPU-a": "NVML does not find it", "GPU-b": ""}
    fake.cards = ["GPU-b", "GPU-a"]
    assert health(inventory) == {"GPU-a": "", "GPU-b": ""}
    assert {card.uuid: card.minor for card in inventory.read()} == {"GPU-b": 0, "GPU-a": 1}
    assert fake.starts > 1, "NVML finds a card that came back only after a fresh start"


def test_what_the_driver_keeps_is_not_published(fake: FakeNVML) -> None:
    assert {card.memory_mib for card in NvmlInventory().read()} == {(16 << 10) - 500}
    fake.tells_reserved = False
    assert {card.memory_mib for card in NvmlInventory().read()} == {16 << 10}, "an old driver does not say"


def test_what_the_driver_says_of_the_cards_themselves(fake: FakeNVML) -> None:
    inventory = NvmlInventory()
    inventory.read()
    fake.says = {"nvmlDeviceGetHandleByUUID": lambda uuid: uuid}
    nothing = CardHardware(temperature_celsius=None, power_watts=None, busy_ratio=None, memory_used_bytes=3 << 30)
    assert read_hardware(inventory) == {"GPU-a": nothing, "GPU-b": nothing}
    fake.says |= {
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetPowerUsage": lambda handle: 70_500,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=25),
    }
    told = CardHardware(temperature_celsius=61, power_watts=70.5, busy_ratio=0.25, memory_used_bytes=3 << 30)
    assert read_hardware(inventory)["GPU-b"] == told
    node = Inventory(inventory, interval_seconds=1)
    slots = Slots(Path("/none"))
    metrics = AgentMetrics(node="n", node_ip="", slots=slots, inventory=node, hardware=lambda: read_hardware(inventory))

    async def one_look() -> str:
        await node.refresh()
        running = asyncio.create_task(metrics.run())
        await until(lambda: b"power_watts{" in generate_latest(metrics.registry))
        running.cancel()
        return generate_latest(metrics.registry).decode()

    page = asyncio.run(one_look())
    labels = 'device_index="0",device_uuid="GPU-a",model="T4",node="n",node_ip=""'
    assert f"elasticgpu_card_power_watts{{{labels}}} 70.5" in page
    silent = AgentMetrics(node="n", node_ip="", slots=slots, inventory=node)
    assert "power" not in generate_latest(silent.registry).decode(), "that is DCGM's, unless it is asked for"


def test_a_critical_xid_is_held_against_a_card_for_a_while(fake: FakeNVML) -> None:
    now = [0.0]
    inventory = NvmlInventory(clock=lambda: now[0], xid_quiet_seconds=60)
    fake.events = [("GPU-a", 13), ("GPU-b", 79)]
    assert health(inventory) == {"GPU-a": "", "GPU-b": "XID 79"}, "13 is the application's own fault"
    now[0] = 59
    assert health(inventory)["GPU-b"] == "XID 79"
    now[0] = 61
    assert health(inventory)["GPU-b"] == ""


def test_a_critical_xid_is_remembered_by_the_next_agent_of_this_boot(fake: FakeNVML, tmp_path: Path) -> None:
    kept, now = tmp_path / "xids.json", 100.0
    first = NvmlInventory(clock=lambda: now, kept=kept)
    first.read()
    fake.events.append(("GPU-a", 79))
    first.read()
    assert [card.reason for card in NvmlInventory(clock=lambda: now, kept=kept).read()] == ["XID 79", ""]
    later = NvmlInventory(clock=lambda: now + adapter.XID_QUIET_SECONDS, kept=kept)
    assert all(card.healthy for card in later.read())
    kept.write_text(kept.read_text().replace(boot_id(), "another boot"))
    assert all(card.healthy for card in NvmlInventory(clock=lambda: now, kept=kept).read())
    kept.write_text("torn")
    assert all(card.healthy for card in NvmlInventory(clock=lambda: now, kept=kept).read())


def test_a_driver_that_does_not_answer(fake: FakeNVML) -> None:
    inventory = NvmlInventory()
    inventory.read()
    fake.answers = False
    with pytest.raises(Unavailable, match="driver not loaded"):
        inventory.read()
    fake.answers = True
    assert health(inventory) == {"GPU-a": "", "GPU-b": ""}
