"""Cards that are given out again: their earlier users are ended and waited for, and nobody else."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from egpu.adapters.cards.nvml import CardProcess
from egpu.api.allocation import CardShare
from egpu.apps.agent.slots import former
from egpu.apps.agent.slots.directories import POLICY_FILE, Slots
from egpu.apps.agent.slots.former import FormerUsers
from egpu.apps.agent.slots.leftovers import Leftovers
from egpu.apps.agent.slots.owners import Owner
from egpu_base.api.kubernetes import Pod, PodStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import Unavailable
from support.slices import slot_record
from support.waiting import until

HOLD = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    page = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


def pod(uid: str, phase: str = "Running") -> Pod:
    return Pod(metadata=ObjectMeta(name=uid, namespace="default", uid=uid), status=PodStatus(phase=phase))


@dataclass
class Node:
    """Slots with a process in each, which has memory of the slot's card until it is dead."""

    slots: Slots
    there: list[Pod] = field(default_factory=list[Pod])
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict[str, "subprocess.Popen[str]"])
    cards: dict[str, str] = field(default_factory=dict[str, str])
    looks: int = 0
    """How often the driver was asked."""

    async def on_node(self) -> Sequence[Pod]:
        return self.there

    async def read(self, namespace: str, name: str) -> Pod:
        raise NotImplementedError

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        self.looks += 1
        found: dict[str, list[CardProcess]] = {}
        for name, process in self.running.items():
            if process.poll() is None:
                found.setdefault(self.cards[name], []).append(CardProcess(pid=process.pid, used_bytes=1))
        return {uuid: tuple(each) for uuid, each in found.items()}

    def start(self, name: str, card: str) -> None:
        share = CardShare(uuid=card, index=0, minor=0, core=10, memory_mib=1)
        self.slots.replace(slot_record(self.slots, name, share), self._page)
        command = [sys.executable, "-c", HOLD, str(self.slots.policy_file(name))]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "mapped\n"
        self.running[name], self.cards[name] = process, card
        self.there.append(pod(name))

    def _page(self, slot: Path) -> None:
        (slot / POLICY_FILE).write_text("x")

    def owner(self, name: str, card: str) -> Owner:
        share = CardShare(uuid=card, index=0, minor=0, core=10, memory_mib=1)
        return Owner(pod(name), "main", slot_record(self.slots, name, share).allocation)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(Slots(tmp_path / "slots"))
    yield made
    for process in made.running.values():
        process.kill()
        process.communicate()


def users(node: Node) -> FormerUsers:
    return FormerUsers(node.slots, node, node.processes)


@pytest.mark.parametrize(
    "leaves",
    [
        lambda node: node.there.pop(),
        lambda node: node.there.append(replace(node.there.pop(), status=PodStatus(phase="Failed"))),
    ],
)
async def test_a_card_is_prepared_when_its_earlier_user_has_left(node: Node, leaves: Callable[[Node], object]) -> None:
    node.start("neighbour", "GPU-1")
    node.start("elsewhere", "GPU-2")
    node.start("old", "GPU-1")
    leaves(node)
    await users(node).leave("new", node.owner("new", "GPU-1"))
    assert node.running["old"].wait(timeout=30) == -signal.SIGKILL
    assert [node.running[name].poll() for name in ("neighbour", "elsewhere")] == [None, None]


async def test_live_neighbours_are_not_waited_for(node: Node) -> None:
    node.start("neighbour", "GPU-1")
    await users(node).leave("new", node.owner("new", "GPU-1"))
    assert node.running["neighbour"].poll() is None


async def test_an_earlier_run_of_the_same_slot_is_ended(node: Node) -> None:
    node.start("same", "GPU-1")
    await users(node).leave("same", node.owner("same", "GPU-1"))
    assert node.running["same"].wait(timeout=30) == -signal.SIGKILL


async def test_a_process_that_does_not_end_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former, "WAIT_SECONDS", 0.3)
    monkeypatch.setattr(former, "end_leftovers", lambda leftovers, pids: {one: list(pids) for one in leftovers})
    node.start("old", "GPU-1")
    node.there.clear()
    pid = node.running["old"].pid
    with pytest.raises(Unavailable, match=rf"card GPU-1 is left by pod default/old \(pids {pid}\)"):
        await users(node).leave("new", node.owner("new", "GPU-1"))


async def test_what_the_sweeper_killed_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot is gone by then."""
    monkeypatch.setattr(former, "end_leftovers", lambda leftovers, pids: {key: [pid] for key in leftovers})
    node.start("old", "GPU-1")
    node.there.clear()
    pid = node.running["old"].pid
    known = users(node)
    known.end([Leftovers("old", node.slots.path("old"), node.slots.policy_file("old"))])
    node.slots.remove("old")
    waiting = asyncio.create_task(known.leave("new", node.owner("new", "GPU-1")))
    await until(lambda: node.looks > 2)
    assert not waiting.done()
    node.running["old"].kill()
    node.running["old"].wait()
    await asyncio.wait_for(waiting, 10)
