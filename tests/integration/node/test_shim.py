"""A node's shim: kubelet is answered and executors go on while no agent runs, and the next agent finds everything."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from egpu.adapters.cards.mps import PROGRAM, MpsControl
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.shim import MPS_FOLDER, ShimDirectory
from egpu.adapters.shim import offer as offers
from egpu.adapters.shim.offer import SLOT_ID, Offer
from egpu.adapters.shim.orders import Shim
from egpu.api.allocation import CardShare
from egpu.apps.shim import executors as shim_executors
from egpu.apps.shim.executors import OrderedExecutors
from egpu.apps.shim.plugin import HeldPlugin
from egpu_base.errors import TerminalError, Unavailable
from egpu_base.kubelet.deviceplugin import (
    ContainerDevices,
    Mount,
    PluginClient,
    PluginDevice,
    PluginOptions,
    serve_plugin,
)
from egpu_sim import native as simulated
from support.slices import uuid
from support.waiting import until

CARD = CardShare(uuid=uuid("1"), index=0, minor=0, core=30, memory_mib=1024)
SLOTS = (PluginDevice("0"), PluginDevice("1", healthy=False))


# --- kubelet ---------------------------------------------------------------------------------------------------------


class Agent:
    """What the shim sees of one: starts of containers are asked of it."""

    options = PluginOptions(pre_start_required=True)

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.refuses = False

    async def watch(self) -> AsyncIterator[Sequence[PluginDevice]]:
        yield ()

    async def allocate(self, ids: tuple[str, ...]) -> ContainerDevices:
        raise AssertionError("kubelet is answered by the shim alone")

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        self.asked.append(ids)
        if self.refuses:
            raise TerminalError("it was given no card")


@contextlib.asynccontextmanager
async def kubelet_of(plugin: HeldPlugin, socket: Path) -> AsyncGenerator[PluginClient]:
    server = await serve_plugin(plugin, socket)
    client = PluginClient(socket)
    try:
        yield client
    finally:
        await client.close()
        await server.stop(None)


def offered(directory: ShimDirectory) -> None:
    answer = ContainerDevices(mounts=(Mount("/opt/egpu", f"/slots/{SLOT_ID}"),), cdi_devices=(f"k={SLOT_ID}",))
    offers.write(directory.offer, Offer(SLOTS, answer))


async def test_kubelet_is_answered_while_no_agent_runs(tmp_path: Path) -> None:
    directory = ShimDirectory.of(tmp_path)
    async with kubelet_of(HeldPlugin(directory, prestart_seconds=0), tmp_path / "p.sock") as kubelet:
        listed = asyncio.ensure_future(anext(kubelet.watch()))
        with pytest.raises(Unavailable, match="no agent has offered slots"):
            await kubelet.allocate(["1"])
        offered(directory)
        assert await listed == SLOTS
        answer = await kubelet.allocate(["1"])
        assert answer == ContainerDevices(mounts=(Mount("/opt/egpu", "/slots/1"),), cdi_devices=("k=1",))
        for wrong in (["0", "1"], ["../0"]):
            with pytest.raises(TerminalError, match="slot"):
                await kubelet.allocate(wrong)
        with pytest.raises(Unavailable):  # kubelet comes again
            await kubelet.pre_start(["1"])
        offers.write(directory.offer, Offer(SLOTS, ContainerDevices(cdi_devices=(f"other={SLOT_ID}",))))
        assert (await kubelet.allocate(["1"])).cdi_devices == ("other=1",), "the agent's last word"


async def test_a_container_waits_for_the_agent_to_come_back(tmp_path: Path) -> None:
    directory, agent = ShimDirectory.of(tmp_path), Agent()
    async with kubelet_of(HeldPlugin(directory), tmp_path / "p.sock") as kubelet:
        starting = asyncio.ensure_future(kubelet.pre_start(["3"]))
        await asyncio.sleep(0.1)
        assert not starting.done()
        server = await serve_plugin(agent, directory.agent_socket)
        try:
            await starting
            assert agent.asked == [("3",)]
            agent.refuses = True
            with pytest.raises(TerminalError, match="it was given no card"):
                await kubelet.pre_start(["3"])
        finally:
            await server.stop(None)


# --- executors -------------------------------------------------------------------------------------------------------


class Owner(msgspec.Struct, frozen=True):
    slot: str


class OtherOwner(msgspec.Struct, frozen=True):
    """What a later version of the agent may keep instead."""

    something_else: int


@contextlib.asynccontextmanager
async def shim(state_dir: Path, *, away_seconds: float = 600.0) -> AsyncGenerator[Shim]:
    directory = ShimDirectory.of(state_dir)
    ordered = OrderedExecutors(
        state_dir,
        directory,
        driver_dir=None,
        confinement=Confinement(),
        registered=lambda: True,
        away_seconds=away_seconds,
    )
    server = await ordered.open()
    looking = asyncio.create_task(ordered.look_after())
    try:
        yield Shim(directory)
    finally:
        looking.cancel()
        server.close()


def agent_of(parent: Shim, state_dir: Path, owner: type[msgspec.Struct] = Owner) -> ExecutorSupervisor[msgspec.Struct]:
    """The executors as one run of an agent has them."""
    return ExecutorSupervisor(state_dir / "executors", owner, parent=parent, private=True)


def record(name: str) -> ExecutorRecord[msgspec.Struct]:
    return ExecutorRecord(name=name, owner=Owner(slot="7"), cards=(CARD,), minors={CARD.uuid: 0})


async def ended(executor: Executor[msgspec.Struct]) -> None:
    await until(lambda: not executor.process.is_alive() and not executor.directory.exists(), "the executor's end")


async def test_the_next_agent_finds_what_the_last_one_ordered(
    state_dir: Path, executor_that_runs_nothing: None
) -> None:
    async with shim(state_dir) as parent:
        assert "Landlock" in (await parent.started(retry_seconds=0.1)).held
        before = await agent_of(parent, state_dir).start(record("slot-7-1"))
        again = agent_of(parent, state_dir)
        await again.adopt()
        found = again.usable("slot-7-1")
        assert found is not None
        assert (found.process, found.record.owner) == (before.process, Owner(slot="7"))
        await again.end(found)
        await ended(found)
        assert again.running == {}


async def test_an_executor_whose_owner_the_agent_cannot_read_is_ended(
    state_dir: Path, executor_that_runs_nothing: None
) -> None:
    async with shim(state_dir) as parent:
        before = await agent_of(parent, state_dir).start(record("slot-7-1"))
        later = agent_of(parent, state_dir, OtherOwner)
        await later.adopt()
        assert later.running == {}
        await ended(before)


async def test_what_cannot_be_started_is_said_as_it_is(state_dir: Path, executor_that_runs_nothing: None) -> None:
    async with shim(state_dir) as parent:
        executors = agent_of(parent, state_dir)
        with pytest.raises(TerminalError, match="not a valid name of an executor"):
            await executors.launch(record("../slot"))
        elsewhere = ExecutorSupervisor(state_dir / "elsewhere", Owner, parent=parent)
        with pytest.raises(TerminalError, match="'elsewhere' is not one of executors, served"):
            await elsewhere.launch(ExecutorRecord(name="slot-7-1", owner=Owner("7"), cards=(), minors={}))
    with pytest.raises(Unavailable, match="does not answer"):
        await executors.launch(record("slot-7-1"))


async def test_an_agent_that_never_comes_back_leaves_nothing_that_nobody_uses(
    state_dir: Path, executor_that_runs_nothing: None
) -> None:
    async with shim(state_dir, away_seconds=0.0) as parent:
        await ended(await agent_of(parent, state_dir).start(record("slot-7-1")))


async def test_an_agent_is_asked_whether_it_is_there_at_the_pace_of_its_absence(
    state_dir: Path, executor_that_runs_nothing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_executors, "LOOK_SECONDS", 0.01)
    came: list[asyncio.StreamWriter] = []
    directory = ShimDirectory.of(state_dir)
    agent = await asyncio.start_unix_server(lambda _, writer: came.append(writer), directory.agent_socket)
    async with agent:
        async with shim(state_dir) as parent:
            await agent_of(parent, state_dir).start(record("slot-7-1"))
            await asyncio.sleep(20 * shim_executors.LOOK_SECONDS)
            assert came == [], "the shim has just begun to wait for it"
        async with shim(state_dir, away_seconds=0.0) as parent:
            running = await agent_of(parent, state_dir).start(record("slot-7-2"))
            await until(lambda: len(came) > 3)
            assert running.process.is_alive(), "the agent is there"
        for writer in came:
            writer.close()


async def test_a_shim_that_was_killed_has_left_an_executor_to_the_next_one(
    state_dir: Path, executor_that_runs_nothing: None
) -> None:
    """Where no control group has ended it with the shim."""
    directory = ShimDirectory.of(state_dir)
    killed = OrderedExecutors(state_dir, directory, driver_dir=None, confinement=Confinement(), registered=lambda: True)
    server = await killed.open()
    before = await agent_of(Shim(directory), state_dir).start(record("slot-7-1"))
    server.close()
    async with shim(state_dir) as parent:
        again = agent_of(parent, state_dir)
        await again.adopt()
        assert again.running["slot-7-1"].process == before.process


async def test_mps_daemons_are_started_where_the_shim_has_them_and_of_cards_alone(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(simulated.path(f"tools/{PROGRAM}").parent), prepend=":")
    control = MpsControl()
    async with shim(state_dir) as parent:
        for uuid in ("GPU-0a", "GPU-../x", "stranger"):
            directory = state_dir / MPS_FOLDER / uuid
            ordered = asyncio.to_thread(parent.start_mps, directory, uuid)
            if uuid != "GPU-0a":
                with pytest.raises(TerminalError, match=r"is not the UUID of a card|is not the shim's directory"):
                    await ordered
                continue
            await ordered
            assert control.find(directory) is not None
            await asyncio.to_thread(control.end, directory)
            assert control.find(directory) is None
