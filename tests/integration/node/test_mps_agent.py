"""The agent's MPS servers, with the control program of simulated machines: there as long as a slot wants them, and told
what its programs have, whoever is killed."""

import os
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters.cards import mps as adapter
from egpu.adapters.cards.mps import PROGRAM, MpsControl, Shown
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.cards import mps_servers as module
from egpu.apps.agent.cards.mps_servers import MpsServers
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.core.provisioners.mps import READY
from egpu.core.provisioners.preparation import ServedSlice
from egpu_base.api.objects import Object
from egpu_base.errors import NotSupported
from egpu_base.kubernetes.events import EventRecorder
from egpu_base.system.processes import Process
from egpu_sim import native as simulated
from support.local_node import card
from support.mps import asked, joins, pid
from support.waiting import wait_until

CARD = "GPU-a"
QUARTER, HALF = ServedSlice(CARD, 25, 1024), ServedSlice(CARD, 50, 2048)


class Killed(BaseException):
    """The agent ends here: nothing of it goes on."""


class Driver(MpsControl):
    """The real daemons, of cards whose modes are kept here; dies before its nth step, counted with those of files."""

    exclusive: bool = False
    left = 1 << 30

    @staticmethod
    def step() -> None:
        Driver.left -= 1
        if Driver.left < 0:
            raise Killed

    def start(self, directory: Path, uuid: str) -> None:
        self.step()
        super().start(directory, uuid)

    def hold(self, directory: Path, core_percent: int, memory_mib: int) -> None:
        self.step()
        super().hold(directory, core_percent, memory_mib)

    def end(self, directory: Path) -> None:
        self.step()
        super().end(directory)

    def set_exclusive(self, uuid: str, exclusive: bool) -> None:
        self.step()
        Driver.exclusive = exclusive


class Events(EventRecorder):
    """What pods are told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []

    async def warn(self, subject: Object, reason: str, message: str) -> None:
        self.said.append((subject.name, reason, message))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the servers are; nothing of them is left in the end."""
    monkeypatch.setenv("PATH", str(simulated.path(f"tools/{PROGRAM}").parent), prepend=":")
    write, remove = module.write_atomically, module.rmtree

    def dying_write(*arguments: Any, **options: Any) -> None:
        Driver.step()
        write(*arguments, **options)

    def dying_remove(path: Path) -> None:
        Driver.step()
        remove(path / "pipe", ignore_errors=True)
        Driver.step()
        remove(path)

    monkeypatch.setattr(module, "write_atomically", dying_write)
    monkeypatch.setattr(module, "rmtree", dying_remove)
    Driver.left, Driver.exclusive = 1 << 30, False
    yield tmp_path / "mps"
    monkeypatch.undo()
    MpsControl(Path("simulated")).end(tmp_path / "mps" / CARD)


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return Slots(tmp_path / "slots")


def servers(slots: Slots, directory: Path) -> MpsServers:
    """Those of an agent that has just started."""
    return MpsServers(slots, directory, Driver(), events=None)


def make_slot(slots: Slots, slot_id: str, served: ServedSlice) -> None:
    share = CardShare(uuid=CARD, index=0, minor=0, core=served.core_percent, memory_mib=served.memory_mib)
    record = SlotRecord(
        slot_id=slot_id,
        namespace="default",
        pod=slot_id,
        pod_uid=f"uid-{slot_id}",
        container="app",
        generation=slots.next_generation(),
        boot_id="boot",
        allocation=ContainerAllocation(provisioner=names.MPS, mode="shared", cards=(share,)),
        minors={},
    )
    slots.replace(record, lambda _: None)


async def prepare(slots: Slots, directory: Path, served: ServedSlice, slot_id: str) -> None:
    async with servers(slots, directory).while_made(served):
        make_slot(slots, slot_id, served)


def told(directory: Path) -> list[str]:
    """What the daemon of the card says that its server gives."""
    pipes = directory / CARD / "pipe"
    server = pid(pipes)
    return asked(pipes, f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0")


def nothing_left(directory: Path) -> bool:
    return not list(directory.glob("*")) and not Driver.exclusive


async def test_a_card_has_a_server_from_the_first_slot_to_the_last(slots: Slots, directory: Path) -> None:
    here = servers(slots, directory)
    async with here.while_made(QUARTER) as shown:
        assert shown == Shown(directory / CARD / "clients")
        assert await here.step() == []
        assert told(directory) == ["25.0", "1024M"]
        assert Driver.exclusive
        make_slot(slots, "1", QUARTER)
    daemon = pid(directory / CARD / "pipe")
    await prepare(slots, directory, QUARTER, "2")  # another agent adopts it
    assert pid(directory / CARD / "pipe") == daemon
    slots.remove("1")
    assert await here.step() == []
    assert Process.of(daemon).is_alive()
    slots.remove("2")
    await here.step()
    assert nothing_left(directory)
    assert not Process.of(daemon).is_alive()


async def dies(after: int, work: Coroutine[Any, Any, object]) -> bool:
    """Whether the agent is killed on the way, before its step of that number."""
    Driver.left = after
    try:
        await work
    except Killed:
        return True
    finally:
        Driver.left = 1 << 30
    return False


async def test_killed_at_any_step_to_a_server_the_next_agent_leaves_nothing(slots: Slots, directory: Path) -> None:
    after = 0
    while await dies(after, prepare(slots, directory, QUARTER, "1")):
        await servers(slots, directory).step()
        assert nothing_left(directory)
        after += 1
    assert after > 5, "each step of the driver and of the files is one to die before"


async def test_killed_at_any_step_to_a_server_the_next_agent_goes_on(slots: Slots, directory: Path) -> None:
    for after in range(6):
        assert await dies(after, prepare(slots, directory, QUARTER, "1"))
        await prepare(slots, directory, QUARTER, "1")
        assert told(directory) == ["25.0", "1024M"]
        slots.remove("1")
        await servers(slots, directory).step()


@pytest.mark.parametrize("again", [False, True])
async def test_killed_at_any_step_from_a_server_the_next_agent_leaves_nothing(
    slots: Slots, directory: Path, again: bool
) -> None:
    """Whether somebody wants it `again` before it is taken apart, or nobody does."""

    async def unwanted() -> None:
        await prepare(slots, directory, QUARTER, "1")
        assert told(directory) == ["25.0", "1024M"]
        slots.remove("1")

    after = 0
    await unwanted()
    while await dies(after, servers(slots, directory).step()):
        if again:
            await unwanted()
        await servers(slots, directory).step()
        assert nothing_left(directory)
        after += 1
        await unwanted()
    assert after > 3


async def test_a_daemon_that_died_is_started_again_where_its_clients_look_for_it(slots: Slots, directory: Path) -> None:
    await prepare(slots, directory, QUARTER, "1")
    events = Events()
    pipes, here = directory / CARD / "pipe", MpsServers(slots, directory, Driver(), events=events)
    clients = directory / CARD / "clients"
    before = clients.stat().st_ino
    os.kill(pid(pipes), signal.SIGKILL)
    wait_until(lambda: Driver().find(directory / CARD) is None)
    assert await here.step() == [CARD]
    ((pod, reason, message),) = events.said
    assert (pod, reason) == ("1", "MPSServerDied")
    assert "programs that used it have ended with an error" in message
    assert told(directory) == ["25.0", "1024M"]
    assert clients.stat().st_ino == before, "containers have it mounted"
    assert joins(clients), "its programs find the new daemon there"
    assert await here.step() == []


async def test_a_daemon_that_was_never_told_is_not_adopted(slots: Slots, directory: Path) -> None:
    adapter.start(directory / CARD, CARD)
    stranger = pid(directory / CARD / "pipe")
    await prepare(slots, directory, QUARTER, "1")
    assert not Process.of(stranger).is_alive()
    assert told(directory) == ["25.0", "1024M"]


async def test_a_card_that_is_given_out_otherwise_waits_for_no_slot_of_those_before(
    slots: Slots, directory: Path
) -> None:
    await prepare(slots, directory, QUARTER, "1")
    await prepare(slots, directory, HALF, "2")
    assert told(directory) == ["50.0", "2048M"]
    here = servers(slots, directory)
    await here.leave(["GPU-b", CARD])
    assert nothing_left(directory)
    await here.step()
    assert nothing_left(directory)


async def test_what_is_missing_is_named(
    slots: Slots, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = servers(slots, directory)
    assert here.why_not(card(0)) == READY
    assert "older than Volta" in here.why_not(card(0, compute_capability="6.1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert here.why_not(card(0)) == f"{PROGRAM} is not installed on the node; it comes with NVIDIA's driver"
    with pytest.raises(NotSupported, match=f"{PROGRAM}, which this node does not have"):
        await prepare(slots, directory, QUARTER, "1")
    assert slots.ids() == ()
    await here.step()
    assert nothing_left(directory)
