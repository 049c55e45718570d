"""The sockets by which kubelet finds the driver."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.api import names
from egpu.apps.agent.dra.registration import Registration
from egpu_base.kubelet import dra
from support.claim_node import CLAIM, DEVICES, ClaimNode, put_claim, put_pod, result
from support.fake_api import FakeAPI
from support.waiting import until


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a folder for sockets, whose paths have a limit."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-") as path:
        yield Path(path)


async def test_kubelet_finds_the_driver_and_prepares_a_claim(short: Path) -> None:
    api = FakeAPI()
    put_pod(api, ("app", (("c", ""),)))
    put_claim(api, result(cores="30", memory="4Gi"))
    node = ClaimNode(short, api)
    await node.inventory.refresh()
    registration = Registration(node.driver, short)
    registered = short / "plugins_registry" / f"{names.DRIVER}-reg.sock"
    task = asyncio.create_task(registration.run())
    await until(registered.exists)
    info = await dra.plugin_info(registered)
    assert (info.name, info.type, info.services) == (names.DRIVER, "DRAPlugin", ("v1.DRAPlugin",))
    assert not registration.registered
    await dra.notify_registered(registered)
    assert registration.registered
    kubelet = dra.DriverClient(Path(info.endpoint))
    (device,) = await kubelet.prepare(CLAIM)
    assert (device.requests, device.pool, device.device) == (("gpu",), "node-a", DEVICES[0])
    assert (device.cdi_devices, device.share_id) == (("elasticgpu.io/claim=uid-c.gpu",), "s-gpu")
    await kubelet.unprepare(CLAIM)
    assert node.left() == []
    await kubelet.close()

    registered.unlink()  # the folder was emptied: kubelet finds the driver again
    await until(lambda: registered.exists() and not registration.registered)
    assert (await dra.plugin_info(registered)).name == names.DRIVER
    task.cancel()
    await asyncio.wait([task])
    assert not registered.exists()
