"""Agent and kubelet: a card's time slice is set before a container starts that wants another, and set back after it."""

import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.apps.agent.cards import time_slices
from egpu.apps.agent.slots import plugin
from support.local_node import LocalNode, card, local_node, share, shell
from support.waiting import until

LONG = ContainerAllocation(provisioner=names.TIMESLICE, mode="shared", alike="long", cards=(share(1, core=25),))
SET = f"compute-policy -i {card(1).uuid} --set-timeslice="


@pytest_asyncio.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[LocalNode]:
    monkeypatch.setattr(time_slices, "INTERVAL_SECONDS", 0.1)
    with tempfile.TemporaryDirectory(prefix="egn-") as directory:
        async with local_node(Path(directory)) as here:
            yield here


def record_calls(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi that writes down what it is asked for."""
    asked, program = directory / "asked", directory / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    return asked


async def test_it_is_set_and_set_back(node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = record_calls(tmp_path, monkeypatch)
    await node.create("one", [shell("main", "cat /dev/nvidia1")], {"main": LONG})
    pod = await node.phase("one", "Succeeded")
    assert node.log(pod, "main").split() == ["EGPUSIM1", card(1).uuid]
    await until(lambda: asked.read_text().splitlines() == [SET + "3", SET + "0"], asked.read_text)


async def test_without_nvidia_smi_the_container_does_not_start(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "PRESTART_SECONDS", 0.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    await node.create("one", [shell("main", "true")], {"main": LONG})

    async def refused() -> bool:
        pod = await node.read("one")
        said = [each.state.waiting for each in pod.status.container_statuses or [] if each.state is not None]
        return any(
            one is not None and "nvidia-smi, which this node does not have" in (one.message or "") for one in said
        )

    await until(refused, "the container waits, and says why")
