"""Slots whose claim several pods use have one slice: made by who comes first, and there as long as one is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.parents import ThisProcess
from egpu.adapters.executors.supervisor import ExecutorSupervisor
from egpu.adapters.slices import membership, pages
from egpu.adapters.slices.pages import UsageReader, create_usage, read_policy
from egpu.adapters.slices.reaping import reap
from egpu.adapters.slices.sharing import CALM_SECONDS
from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation, encode
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.limits.compute import ComputeSharing
from egpu.apps.agent.limits.ended_programs import EndedPrograms
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.serving.slot_executors import SlotExecutors, SlotOwner
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import POLICY_FILE, USAGE_FILE, SlotRecord, Slots
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.owners import Owner
from egpu.apps.agent.slots.preparer import Preparer
from egpu.apps.agent.slots.resizer import SlotResizer
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.system import mounts
from egpu_base.system.processes import Process
from egpu_sim.cluster import janitor
from support.fake_api import FakeAPI
from support.local_node import Cards, card
from support.ticking import Ticking
from support.waiting import until, wait_until

MIB = 1 << 20
NODE = "n"
CLAIM = "uid-of-the-claim"


def allocation(claim: str = CLAIM, *, memory_mib: int = 1024, index: int = 0, revision: int = 0) -> ContainerAllocation:
    share = CardShare(uuid=card(index).uuid, index=index, minor=index, core=30, memory_mib=memory_mib)
    return ContainerAllocation(
        provisioner=names.VCUDA, mode="shared", claim="c", shared_claim=claim, cards=(share,), revision=revision
    )


class Node:
    """Where slots are prepared."""

    def __init__(self, root: Path, *, mount_usage: bool = False) -> None:
        self.root = root
        self.slots = Slots(root / "slots", mount_usage=mount_usage)
        self.inventory = Inventory(Cards(2), interval_seconds=60)
        devices = DeviceFiles(root / "dev", root)
        specs = SlotSpecs([root / "cdi"], devices)
        self.preparer = Preparer(
            slots=self.slots, state_dir=root, devices=devices, inventory=self.inventory, node=NODE, specs=specs,
            injection=Injection("never"),
        )  # fmt: skip

    async def prepare(self, slot_id: str, given: ContainerAllocation | None = None, *, pod: str = "") -> None:
        uid = pod or f"uid-{slot_id}"
        await self.inventory.refresh()
        about = Pod(metadata=ObjectMeta(name=uid, namespace="default", uid=uid))
        await self.preparer.prepare(slot_id, Owner(about, "app", given or allocation()))

    def inode(self, slot_id: str, file: str = POLICY_FILE) -> tuple[int, int]:
        found = (self.slots.path(slot_id) / file).stat()
        return found.st_dev, found.st_ino

    def memory_mib(self, slot_id: str) -> int:
        (line,) = read_policy(self.slots.path(slot_id) / POLICY_FILE).devices
        return line.memory_limit_bytes // MIB

    def members(self, slot_id: str) -> set[str]:
        record = self.slots.record(slot_id)
        assert record is not None
        return {slot_id} | {one.slot_id for one in self.slots.others(record)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "dev").mkdir()
    return Node(tmp_path)


async def test_pods_of_one_claim_get_one_page_and_one_account(node: Node) -> None:
    await asyncio.gather(node.prepare("1"), node.prepare("2"), node.prepare("3"))  # none before the others
    for file in (POLICY_FILE, USAGE_FILE):
        assert len({node.inode(slot, file) for slot in "123"}) == 1
    assert node.members("1") == {"1", "2", "3"}
    await node.prepare("4", allocation("another"))
    await node.prepare("5", allocation(""))
    await node.prepare("6", allocation(""))
    assert len({node.inode(slot) for slot in "1456"}) == 4


@pytest.mark.parametrize("order", ["123", "213", "321"])
async def test_the_slice_lasts_as_long_as_one_has_it(node: Node, order: str) -> None:
    for slot in "123":
        await node.prepare(slot)
    made = node.inode("1", USAGE_FILE)
    *gone, last = order
    for slot in gone:
        node.slots.remove(slot)
    assert node.inode(last, USAGE_FILE) == made
    again = Node(node.root)  # another agent
    await again.prepare("7")
    assert again.inode("7", USAGE_FILE) == made
    for slot in (last, "7"):
        again.slots.remove(slot)
    await again.prepare("8")
    assert again.inode("8", USAGE_FILE) != made or again.members("8") == {"8"}


async def test_who_starts_again_comes_back_to_the_others_and_alone_to_nothing(node: Node) -> None:
    await node.prepare("1")
    usage = node.slots.path("1") / USAGE_FILE
    usage.write_bytes(b"left by the run before")
    await node.prepare("1")
    assert UsageReader(node.slots.path("1") / USAGE_FILE).read().problem == ""
    await node.prepare("2")
    made = node.inode("2", USAGE_FILE)
    await node.prepare("1")
    assert node.inode("1", USAGE_FILE) == made


async def test_nobody_joins_what_is_of_another_boot_or_on_other_cards(node: Node) -> None:
    await node.prepare("1")
    record = node.slots.record("1")
    assert record is not None
    await node.prepare("2", allocation(index=1))
    assert node.inode("2") != node.inode("1")
    node.slots.amend(msgspec.structs.replace(record, boot_id="the one before"))
    await node.prepare("3")
    assert node.inode("3") != node.inode("1")


async def test_who_joins_has_the_size_that_is_in_force(node: Node) -> None:
    """It may have been told of another, earlier or later: the resizer brings all of them there."""
    await node.prepare("1", allocation(memory_mib=2048, revision=3))
    for slot, told in (("2", allocation(memory_mib=512, revision=2)), ("3", allocation(memory_mib=512, revision=4))):
        await node.prepare(slot, told)
        assert node.memory_mib(slot) == 2048
        record = node.slots.record(slot)
        assert record is not None
        assert record.allocation.revision == 3, "what the page says"


async def test_who_is_told_late_undoes_no_later_order(node: Node) -> None:
    """Pods of one claim are told of its size one after the other."""
    for slot in "12":
        await node.prepare(slot)
    (first, second), api = list(node.slots.records()), FakeAPI()
    node.slots.amend(msgspec.structs.replace(first, allocation=allocation(memory_mib=512, revision=2)))
    pages.amend_policy(node.slots.path("1") / POLICY_FILE, card(0).uuid, memory_limit_bytes=512 * MIB)
    running = asyncio.create_task(followed(resizer(node, api)))
    try:
        for revision, memory_mib in ((1, 4096), (3, 2048)):
            told = PodAllocation(node=NODE, containers={"app": allocation(memory_mib=memory_mib, revision=revision)})
            meta = {"name": "uid-2", "namespace": "default", "uid": "uid-2"}
            annotations = {names.ALLOCATION: encode(told)}
            api.put("pods", {"metadata": {**meta, "annotations": annotations}, "spec": {"nodeName": NODE}})

            def follows(revision: int = revision) -> bool:
                record = node.slots.record("2")
                return record is not None and record.allocation.revision == revision

            await until(follows)
            assert node.memory_mib("1") == (512 if revision == 1 else 2048)
        assert node.slots.revision(first) == 3
    finally:
        running.cancel()
    assert second.allocation.revision == 0


async def test_a_pod_that_is_resized_when_it_is_first_seen_is_followed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a gap in the watch: its slot was prepared as the API server said then, and looked at before it came."""
    await node.prepare("1", allocation(""))
    os.utime(node.slots.path("1").parent, (1, 1))  # long ago: for a while after it slots are looked at anyway
    looked, records, api = asyncio.Event(), node.slots.records, FakeAPI()

    def look() -> Iterator[SlotRecord]:
        looked.set()
        return records()

    monkeypatch.setattr(node.slots, "records", look)
    running = asyncio.create_task(followed(resizer(node, api)))
    try:
        await looked.wait()
        told = PodAllocation(node=NODE, containers={"app": allocation("", memory_mib=512, revision=1)})
        meta = {"name": "uid-1", "namespace": "default", "uid": "uid-1"}
        annotations = {names.ALLOCATION: encode(told)}
        api.put("pods", {"metadata": {**meta, "annotations": annotations}, "spec": {"nodeName": NODE}})
        await until(lambda: node.memory_mib("1") == 512)
    finally:
        running.cancel()


async def followed(one: SlotResizer) -> None:
    """Run it, and what follows the node's pods for it."""
    async with asyncio.TaskGroup() as group:
        group.create_task(one.pods.run())
        group.create_task(one.run())


def resizer(node: Node, api: FakeAPI) -> SlotResizer:
    memory = MemoryReconciler(node.slots, Cards(2))
    supervisor = ExecutorSupervisor(node.root / "executors", SlotOwner, parent=ThisProcess(None, Confinement()))
    locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
    return SlotResizer(
        api.client(), NODE, inventory=node.inventory, slots=node.slots, executors=SlotExecutors(supervisor, node.slots),
        bridges=None, serving=None, memory=memory, slot_lock=locks.__getitem__,
    )  # fmt: skip


def mounted(below: Path) -> bool:
    return str(below) in Path("/proc/self/mountinfo").read_text()


async def test_a_mounted_account_is_shared_too(tmp_path: Path) -> None:
    if not mounts.allowed(tmp_path):
        pytest.skip("nothing can be mounted here")
    (tmp_path / "dev").mkdir()
    node = Node(tmp_path, mount_usage=True)
    try:
        await node.prepare("1")
        await node.prepare("2")
        made = node.inode("1", USAGE_FILE)
        assert node.inode("2", USAGE_FILE) == made
        node.slots.remove("1")
        assert node.inode("2", USAGE_FILE) == made
        node.slots.remove("2")
        assert not mounted(tmp_path)
    finally:
        janitor.unmount(tmp_path)


async def test_a_slice_is_watched_once_whoever_has_it(node: Node) -> None:
    for slot in "12":
        await node.prepare(slot)
    await node.prepare("3", allocation(""))
    found = {one.pods for one in MemoryReconciler(node.slots, Cards(2)).slices()}
    assert found == {("uid-1", "uid-2"), ("uid-3",)}


async def test_every_pod_of_a_claim_shows_what_they_have_together(node: Node) -> None:
    for slot in "12":
        await node.prepare(slot)
    metrics = AgentMetrics(node=NODE, node_ip="", slots=node.slots, inventory=node.inventory)
    text = generate_latest(metrics.registry).decode()
    limits = [line for line in text.splitlines() if line.startswith("elasticgpu_container_memory_limit_bytes{")]
    assert [pod in line for line, pod in zip(limits, ("uid-1", "uid-2"), strict=True)] == [True, True]
    assert all('claim="c"' in line and float(line.rsplit(" ", 1)[1]) == 1024 * MIB for line in limits)


async def test_its_time_is_shared_out_once_also_when_the_first_has_gone(node: Node) -> None:
    for slot in "124":
        await node.prepare(slot)
    assert ComputeSharing(node.slots).step() == CALM_SECONDS, "alone on its card"
    await node.prepare("3", allocation(""))
    sharing = ComputeSharing(node.slots, clock=Ticking(1.0))
    sharing.step()
    node.slots.remove("1")
    for refilled_ns in (1, 2):
        for slot in "23":
            usage(node.slots.path(slot) / USAGE_FILE, refilled_ns=refilled_ns)
        sharing.step()
    for slot in "23":
        (line,) = read_policy(node.slots.path(slot) / POLICY_FILE).devices
        assert line.window is not None, "both are active on one card"


def usage(path: Path, *, refilled_ns: int) -> None:
    """Somebody asked to launch something."""
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<Q", refilled_ns), pages.USAGE_HEADER.size + 72)


# --- those who have ended -------------------------------------------------------------------------------------------


def count(path: Path, row: int, process: Process, namespace: int, mib: int, *, device: int = 0) -> None:
    """As the process itself would: a live row, and its bytes in the total."""
    held = [mib * MIB, *[0] * 7]
    line = pages.USAGE_ROW.pack(1, device, process.pid, 0, process.start_time, namespace, *[0] * 10, *held, *[0] * 8)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), line, pages.USAGE_ROWS_OFFSET + row * pages.USAGE_ROW.size)
        offset = pages.USAGE_HEADER.size + device * pages.USAGE_DEVICE.size
        (total,) = struct.unpack("<Q", os.pread(file.fileno(), 8, offset))
        os.pwrite(file.fileno(), struct.pack("<Q", total + mib * MIB), offset)


def rows(path: Path) -> list[int]:
    return [process.pid for process in UsageReader(path).read().processes]


def total_mib(path: Path, device: int = 0) -> int:
    return UsageReader(path).read().devices[device].memory_bytes // MIB


@pytest.fixture
def account(tmp_path: Path) -> Path:
    create_usage(tmp_path / "usage")
    return tmp_path / "usage"


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def own_namespace() -> int:
    name = membership.name_of(os.getpid())
    assert name is not None
    return name.pid_namespace


def test_who_has_ended_counts_no_more_and_who_lives_does(account: Path, sleeping: subprocess.Popen[bytes]) -> None:
    namespace, living = own_namespace(), Process.of(os.getpid())
    count(account, 3, Process.of(sleeping.pid), namespace, 100)
    count(account, 4, living, namespace, 10)
    assert reap(account) == 0
    sleeping.kill()
    sleeping.wait()
    assert reap(account) == 1
    assert rows(account) == [living.pid]
    assert total_mib(account) == 110, "who is left repairs the total, which it may be changing now"
    count(account, 4, Process(living.pid, living.start_time + 1), namespace, 10)
    assert reap(account) == 1, "its pid is another's by now"
    assert (rows(account), total_mib(account)) == ([], 0)


def test_a_total_is_cleared_only_where_nobody_counts_in_it(account: Path) -> None:
    namespace = own_namespace()
    count(account, 0, Process.of(os.getpid()), namespace, 10, device=1)
    count(account, 1, Process(2**22 - 1, 1), namespace, 100)
    assert reap(account) == 1
    assert (total_mib(account, 0), total_mib(account, 1)) == (0, 10)


def test_of_another_pid_namespace_those_that_the_kernel_shows_live(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "import os, sys; print(os.readlink('/proc/self/ns/pid'), flush=True); sys.stdin.read()"
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here")
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", shown]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        said = outer.stdout.readline()
        if not said:
            pytest.skip("no pid namespace can be made here")
        namespace = int(said.strip().strip("pid:[]"))
        (child,) = [int(pid) for pid in Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()]
        inside = Process(1, Process.of(child).start_time)
        count(account, 0, inside, namespace, 10)
        count(account, 1, Process(77, 5), namespace, 100)
        assert reap(account) == 1
        assert rows(account) == [1]
        readlink = os.readlink

        def hidden(path: str) -> str:
            if path == f"/proc/{child}/ns/pid":
                raise PermissionError(path)
            return readlink(path)

        with monkeypatch.context() as patched:
            patched.setattr(os, "readlink", hidden)
            assert reap(account) == 0, "what we may not see may be it"
        outer.kill()
    wait_until(lambda: reap(account) == 1, "its child ends with it, a moment later")
    assert (rows(account), total_mib(account)) == ([], 0)


def test_whatever_the_file_says_nobody_is_waited_for(account: Path) -> None:
    count(account, 0, Process(2**32 - 1, 1), own_namespace(), 1)
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, account], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    assert reap(account) == 0, "whoever holds the lock"
    holder.communicate("")
    account.write_bytes(b"")
    assert reap(account) == 0
    account.write_bytes(os.urandom(pages.USAGE_SIZE))
    assert reap(account) == 0


LOCK = """
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
print("locked", flush=True)
sys.stdin.read()
"""


async def test_the_agent_looks_after_slices_that_several_have(node: Node) -> None:
    for slot in "12":
        await node.prepare(slot)
    await node.prepare("3", allocation(""))
    for slot in "13":
        count(node.slots.path(slot) / USAGE_FILE, 0, Process(2**22 - 1, 1), own_namespace(), 10)
    EndedPrograms(node.slots).step()
    assert rows(node.slots.path("2") / USAGE_FILE) == []
    assert rows(node.slots.path("3") / USAGE_FILE) == [2**22 - 1], "its own programs do"
