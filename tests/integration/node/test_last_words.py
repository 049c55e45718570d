"""A shim whose agent was killed has kubelet refuse what the agent published; beside any other agent it does nothing."""

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from egpu.adapters.shim import ShimDirectory
from egpu.apps.shim import last_words as module
from egpu.apps.shim.last_words import last_words
from egpu_base.errors import TerminalError, Unavailable
from egpu_sim.cluster.kubelet.devices import DeviceManager
from egpu_sim.cluster.kubelet.objects import Pod
from support.waiting import DEADLINE_SECONDS, until

OURS = ("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory")
AGENT = """
import asyncio, signal, sys
from pathlib import Path
from egpu.adapters.shim.amounts import PublishedAmounts

async def main():
    amounts = PublishedAmounts(Path(sys.argv[1]))
    amounts.note(sys.argv[3:])
    ending = asyncio.create_task(amounts.until_end())
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await asyncio.sleep(0)
    print("ready", flush=True)
    await told.wait()
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    print("ending", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    amounts.clear()

asyncio.run(main())
"""
"""An agent that takes some seconds for its farewell."""


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="egpu-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
async def kubelet(short: Path) -> AsyncGenerator[DeviceManager]:
    manager = DeviceManager(short, rng=random.Random(1), on_change=lambda: None)
    await manager.start()
    yield manager
    await manager.stop()


@pytest.fixture
def directory(tmp_path: Path) -> ShimDirectory:
    return ShimDirectory.of(tmp_path / "state")


@asynccontextmanager
async def agent(directory: ShimDirectory, *, farewell_seconds: float) -> AsyncGenerator[asyncio.subprocess.Process]:
    command = (sys.executable, "-c", AGENT, str(directory.amounts), str(farewell_seconds), *OURS)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        await said(process, b"ready")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process, word: bytes) -> None:
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), DEADLINE_SECONDS)).strip() == word


async def test_kubelet_refuses_what_a_killed_agent_published(
    directory: ShimDirectory, kubelet: DeviceManager, short: Path
) -> None:
    async with agent(directory, farewell_seconds=0) as process:
        process.kill()
        await process.wait()
        await last_words(directory, short)
    assert kubelet.capacity() == (dict.fromkeys(OURS, 0), dict.fromkeys(OURS, 0))
    limits = {OURS[0]: "10"}
    spec = {"containers": [{"name": "a", "image": "b", "resources": {"limits": limits, "requests": limits}}]}
    pod = msgspec.convert({"kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}, Pod)

    async def refused() -> bool:
        try:
            await kubelet.allocate(pod)
        except Unavailable:
            return False  # the plugin's end is not noticed yet
        except TerminalError as error:
            return "no healthy devices" in str(error)
        raise AssertionError("the pod runs without a GPU")

    await until(refused)
    assert not directory.amounts.exists()


async def test_an_agent_that_is_killed_during_its_farewell_is_noticed(
    directory: ShimDirectory, kubelet: DeviceManager, short: Path
) -> None:
    async with agent(directory, farewell_seconds=DEADLINE_SECONDS) as process:
        process.terminate()
        await said(process, b"ending")
        ending = asyncio.create_task(last_words(directory, short))
        await asyncio.sleep(0.3)
        assert not ending.done()
        process.send_signal(signal.SIGKILL)
        await ending
    assert kubelet.capacity()[0] == dict.fromkeys(OURS, 0)


async def test_an_agent_that_ends_in_order_leaves_nothing_to_do(
    directory: ShimDirectory, kubelet: DeviceManager, short: Path
) -> None:
    async with agent(directory, farewell_seconds=0.5) as process:
        process.terminate()
        await said(process, b"ending")
        await last_words(directory, short)
    assert kubelet.capacity() == ({}, {})
    assert not directory.amounts.exists()


async def test_a_shim_that_is_replaced_beside_its_agent_ends_soon(
    directory: ShimDirectory, kubelet: DeviceManager, short: Path
) -> None:
    async with agent(directory, farewell_seconds=0):
        began = time.monotonic()
        await last_words(directory, short)
        assert time.monotonic() - began < module.SECONDS / 4
        assert directory.amounts.exists()
    assert kubelet.capacity() == ({}, {})


async def test_a_kubelet_that_does_not_answer_is_not_waited_for(directory: ShimDirectory, tmp_path: Path) -> None:
    async with agent(directory, farewell_seconds=0) as process:
        process.kill()
        await process.wait()
    await asyncio.wait_for(last_words(directory, tmp_path / "no-kubelet"), DEADLINE_SECONDS)
    assert directory.amounts.exists(), "the next shim tries again"
