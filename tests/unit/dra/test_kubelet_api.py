"""kubelet's API for drivers, over unix sockets: both ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from egpu_base.errors import TerminalError, Unavailable
from egpu_base.kubelet import dra
from egpu_base.kubelet.dra import ClaimName, DriverClient, PluginInfo, PreparedDevice

CLAIM = ClaimName("default", "c", "uid-c")
DEVICE = PreparedDevice(("gpu",), "node", "gpu-0", ("vendor/class=x",), share_id="s")


class Toy:
    """A driver that gives DEVICE to any claim but that of a name."""

    def __init__(self) -> None:
        self.unprepared: list[ClaimName] = []

    async def prepare(self, claim: ClaimName) -> Sequence[PreparedDevice]:
        if claim.name == "bad":
            raise TerminalError("this claim is bad")
        return (DEVICE,)

    async def unprepare(self, claim: ClaimName) -> None:
        self.unprepared.append(claim)


async def test_a_driver_prepares_and_unprepares_claims(tmp_path: Path) -> None:
    toy = Toy()
    server = await dra.serve_driver(toy, tmp_path / "dra.sock")
    kubelet = DriverClient(tmp_path / "dra.sock")
    assert await kubelet.prepare(CLAIM) == (DEVICE,)
    with pytest.raises(TerminalError, match="this claim is bad"):
        await kubelet.prepare(ClaimName("default", "bad", "uid-bad"))
    await kubelet.unprepare(CLAIM)
    assert toy.unprepared == [CLAIM]
    await server.stop(None)
    with pytest.raises(Unavailable):
        await kubelet.prepare(CLAIM)
    await kubelet.close()


async def test_kubelet_reads_a_registration_and_answers_it(tmp_path: Path) -> None:
    told: list[str] = []
    info = PluginInfo("driver.example", str(tmp_path / "dra.sock"))
    server = await dra.serve_registration(info, tmp_path / "reg.sock", told.append)
    assert await dra.plugin_info(tmp_path / "reg.sock") == info
    await dra.notify_registered(tmp_path / "reg.sock")
    await dra.notify_registered(tmp_path / "reg.sock", "no such version")
    assert told == ["", "no such version"]
    await server.stop(None)
