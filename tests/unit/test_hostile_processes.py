"""Real processes that choose names, paths and roots to be taken for another's, or to end whoever looks at them."""

import itertools
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from egpu.adapters.cards.nvml import NvmlInventory
from egpu.adapters.executors.leftovers import processes_as
from egpu.adapters.slices import membership
from egpu.adapters.slices.attribution import Attribution, WatchedSlice
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.slots.directories import Slots
from egpu.apps.agent.slots.leftovers import Leftovers, end_leftovers
from egpu_base.system import proc
from egpu_base.system.processes import Process, descendants, user_of

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its root and its user")
MAP = """
import mmap, os, sys
at = os.fsencode(sys.argv[1])
with open(at, "rb") as file: page = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(); input()
"""
NAME = """
import ctypes, os, sys
os.setuid(int(sys.argv[2]))
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
print(); input()
"""
CHROOT = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); print(); input()"
DEAF = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0
at, kind = os.fsencode(sys.argv[1]), os.stat(sys.argv[1]).st_mode
options = b"fd=%d,rootmode=%o,user_id=0,group_id=0" % (os.open("/dev/fuse", os.O_RDWR), kind)
assert libc.mount(b"deaf", at, b"fuse.deaf", 0, options) == 0, os.strerror(ctypes.get_errno())
print(); input()
"""
"""Mounts a file system of its own that answers nothing, where nobody else sees it."""
MANY = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
word, size = ctypes.c_int, ctypes.c_size_t
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, size, word, word, word, ctypes.c_long]
file = os.open(os.fsencode(sys.argv[1]), os.O_RDONLY)
for count in range(60_000): libc.mmap(None, 4096, 1, 2, file, 4096 * (count % 2))
print(); input()
"""
MIB = 1 << 20
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python code with its arguments, up to its first word; returns its pid."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str | bytes | Path) -> int:
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *arguments], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "\n"
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.communicate()


def a_slice(tmp_path: Path, key: str, *, page: str = "", pods: tuple[str, ...] = ()) -> WatchedSlice:
    directory = tmp_path / key
    directory.mkdir()
    (directory / "policy").write_bytes(bytes(4096))
    policy, usage = directory / "policy", directory / "usage"
    return WatchedSlice(key=key, policy=policy, usage=usage, page=page, pods=pods)


def hostile_file(tmp_path: Path, directory: bytes) -> bytes:
    """A file called `policy` in a directory of that name."""
    at = os.path.join(os.fsencode(tmp_path), directory)
    os.mkdir(at)
    path = os.path.join(at, b"policy")
    Path(os.fsdecode(path)).write_bytes(bytes(8192))
    return path


def forged_line(victim: Path, separator: bytes) -> bytes:
    """A name that holds a line of `maps` about the victim's page, for who takes the separator for the end of one."""
    found = victim.stat()
    device = b"%02x:%02x" % (os.major(found.st_dev), os.minor(found.st_dev))
    return b"a" + separator + b"7f00-7f01 r--s 00000000 " + device + b" %d " % found.st_ino


def owners(pids: list[int], *slices: WatchedSlice) -> dict[int, object]:
    """By a look that has all the time that it needs."""
    return {pid: one.key for pid, (_, one) in Attribution(clock=lambda: 0.0).owners(pids, slices, now=0.0).items()}


@pytest.mark.parametrize("separator", [b"\f", b"\v", b"\x1c", b"\x1e", b"\r", b"\n", b"\xc2\x85", b"\xe2\x80\xa8"])
def test_a_path_that_holds_a_line_makes_nobody_the_neighbour(tmp_path: Path, start: Start, separator: bytes) -> None:
    victim = a_slice(tmp_path, "victim")
    attacker = start(MAP, hostile_file(tmp_path, forged_line(victim.policy, separator)))
    assert owners([attacker], victim) == {}
    assert end_leftovers([Leftovers("7a", slot=tmp_path / "none", policy=victim.policy)]) == {}
    assert Process.of(attacker).is_alive()


def test_a_path_that_holds_half_a_line_ends_no_look(tmp_path: Path, start: Start) -> None:
    one = a_slice(tmp_path, "one")
    attacker, honest = start(MAP, hostile_file(tmp_path, b"a\f")), start(MAP, one.policy)
    before = proc.odd.total()
    assert owners([attacker, honest], one) == {honest: "one"}
    assert proc.odd.total() == before, "nothing of it is hard to understand"
    leftovers = Leftovers("7a", slot=tmp_path / "none", policy=one.policy)
    assert end_leftovers([leftovers]) == {leftovers: [honest]}


def test_the_look_of_egpu_run_finds_a_process_of_its_own_with_such_a_path(tmp_path: Path, start: Start) -> None:
    mine = a_slice(tmp_path, "mine")
    mine = WatchedSlice(key="mine", policy=mine.policy, usage=mine.usage, root=Process.of(os.getpid()))
    attacker = start(MAP, hostile_file(tmp_path, b"a\f"))
    assert owners([attacker], mine) == {attacker: "mine"}


@AS_ROOT
def test_a_link_in_a_process_s_root_leads_to_nobody_s_slot(tmp_path: Path, start: Start) -> None:
    victim = a_slice(tmp_path, "victim", page="/opt/egpu/policy")
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    (root / "opt/egpu").symlink_to(victim.policy.parent)
    attacker = start(CHROOT, root)
    assert owners([attacker], victim) == {}
    assert end_leftovers([Leftovers("7a", slot=victim.policy.parent, policy=victim.policy)]) == {}
    assert Process.of(attacker).is_alive()


@AS_ROOT
@pytest.mark.parametrize("link", ["opt/egpu", "opt/egpu/policy"])
def test_no_link_in_a_process_s_root_is_followed(tmp_path: Path, start: Start, link: str) -> None:
    """A link that stays in that root leads nowhere either."""
    victim = a_slice(tmp_path, "victim", page="/opt/egpu/policy")
    root = tmp_path / "root"
    (root / "other").mkdir(parents=True)
    os.link(victim.policy, root / "other/policy")
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to("/other" if link == "opt/egpu" else "/other/policy")
    now = time.time()
    os.utime(root / link, (now + 3600, now), follow_symlinks=False)  # to follow it, nothing would be written
    attacker = start(CHROOT, root)
    assert proc.file_at(attacker, "/other/policy") == membership.identity(victim.policy)
    assert proc.file_at(attacker, "/opt/egpu/policy") is None
    assert owners([attacker], victim) == {}


@AS_ROOT
def test_no_step_leads_out_of_a_process_s_root(tmp_path: Path, start: Start) -> None:
    victim = a_slice(tmp_path, "victim")
    (root := tmp_path / "root").mkdir()
    assert proc.file_at(start(CHROOT, root), "/../victim/policy") is None
    assert proc.file_at(os.getpid(), str(victim.policy)) == membership.identity(victim.policy)


@AS_ROOT
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="this machine has no file systems of users")
@pytest.mark.parametrize("at", ["opt", "opt/egpu/policy"])
def test_a_file_system_that_answers_nothing_stops_no_look(tmp_path: Path, start: Start, at: str) -> None:
    """Neither where it would be asked for a name, nor where it is the page itself."""
    page = tmp_path / "opt/egpu/policy"
    page.parent.mkdir(parents=True)
    page.touch()
    deaf = start(DEAF, tmp_path / at)
    look = f"from egpu_base.system import proc; print(proc.file_at({deaf}, {str(page)!r}))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=20, check=True)
    assert (done.stdout == "None\n") == (at == "opt"), done.stdout


@AS_ROOT
def test_a_page_that_stands_in_a_process_s_root_is_found(tmp_path: Path, start: Start) -> None:
    one = a_slice(tmp_path, "one", page="/opt/egpu/policy")
    root = tmp_path / "root"
    (root / "opt/egpu").mkdir(parents=True)
    os.link(one.policy, root / "opt/egpu/policy")
    assert list(owners([pid := start(CHROOT, root)], one)) == [pid]


def test_a_process_of_a_pod_is_never_another_pod_s(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that has the other's page, and a group inside its own that is called like the other's."""
    one, other = (a_slice(tmp_path, key, pods=(pod,)) for key, pod in (("one", "1a"), ("other", "2b")))
    attacker, stranger = start(MAP, other.policy), start(MAP, other.policy)
    groups = {attacker: "/kubepods/burstable/pod1a/c/pod2b/c", stranger: "/kubepods/pod3c/c"}
    monkeypatch.setattr(membership, "control_groups", lambda pid: frozenset({groups.get(pid, "/init.scope")}))
    assert owners([attacker, stranger], one, other) == {attacker: "one"}
    forced = Leftovers("2b", slot=tmp_path / "none", policy=other.policy)
    assert end_leftovers([forced]) == {}


@AS_ROOT
def test_a_page_at_its_place_makes_no_process_of_a_pod_another_pod_s(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (a_slice(tmp_path, pod, page="/opt/egpu/policy", pods=(pod,)) for pod in ("1a", "2b"))
    root = tmp_path / "root"
    (root / "opt/egpu").mkdir(parents=True)
    os.link(other.policy, root / "opt/egpu/policy")
    attacker = start(CHROOT, root)
    monkeypatch.setattr(
        membership, "control_groups", lambda pid: frozenset({"/kubepods/pod1a/c" if pid == attacker else "/init.scope"})
    )
    assert owners([attacker], one, other) == {attacker: "1a"}


@AS_ROOT
@pytest.mark.parametrize(
    "name",
    [b"\xff\xfe", b"\fUid:\t0\t0\t0\t0", b"\nUid:\t0\t0\t0\t0", b") Z 1 1 1 1 1 1", b"\fNSpid:\tx", b"\fPPid:\tx"],
)
def test_a_name_hides_nobody_and_ends_nobody_s_look(tmp_path: Path, start: Start, name: bytes) -> None:
    uid, pid = 64123, start(NAME, name.hex(), "64123")
    assert processes_as(uid) == [pid]
    assert user_of(pid) == uid
    assert Process.of(pid) in descendants(os.getpid())
    assert (named := membership.name_of(pid)) is not None
    assert named.pid == pid
    assert next(membership.ancestors(pid)) == os.getpid()


@pytest.mark.parametrize("depth", [15, 0])
def test_a_process_with_sixty_thousand_mappings_costs_little(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Their file is called as a page is, by a long path or by a short one, of which more fit into what is read. The
    size alone is limited here: no time passes."""
    monkeypatch.setattr(proc, "time", SimpleNamespace(monotonic=lambda: 0.0))
    slices = [a_slice(tmp_path, "one"), a_slice(tmp_path, "two", page="/opt/egpu/policy")]
    directory = tmp_path.joinpath(*["d" * 200] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "policy").write_bytes(bytes(8192))
    pid = start(MANY, directory / "policy")
    read, reads = proc.read, list[tuple[int, str, int]]()

    def counted(pid: int, name: str, *, most: int = proc.MAX_BYTES, seconds: float = 0.0) -> bytes:
        content = read(pid, name, most=most, seconds=seconds)
        reads.append((pid, name, len(content)))
        return content

    monkeypatch.setattr(proc, "read", counted)
    tracemalloc.start()
    assert owners([pid], *slices) == {}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sizes = [size for of, name, size in reads if (of, name) == (pid, "maps")]
    assert len(sizes) == 1, "once, however many slices there are"
    assert 0 < sizes[0] <= MIB
    assert peak < 8 * MIB


def test_mappings_that_the_kernel_writes_slowly_are_read_for_a_limited_time(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy").write_bytes(bytes(8192))
    pid, clock = start(MANY, tmp_path / "policy"), itertools.count(step=proc.MAX_SECONDS)
    found, finds = list[bytes](), proc.find_mapped
    monkeypatch.setattr(proc, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(proc, "find_mapped", lambda maps, wanted: found.append(maps) or finds(maps, wanted))
    proc.mapped(pid, frozenset({(0, 0)}))
    assert 0 < len(found[0]) < 32 * 1024


def test_no_step_of_a_look_is_taken_for_each_mapping() -> None:
    """Steps in Python took most of the time where all lines looked like one of a page."""

    wanted = frozenset({(os.makedev(8, 1), 4711)})

    def steps(mappings: int) -> int:
        lines = (b"7f00-7f01 r--p 00000000 08:01 %d /policy\n" % (10_000 + each) for each in range(mappings))
        maps, taken = b"".join(lines), Counter[str]()
        proc.find_mapped(b"", wanted)  # prepares what is the same for all processes
        sys.setprofile(lambda _frame, event, _argument: taken.update([event]))
        try:
            proc.find_mapped(maps, wanted)
        finally:
            sys.setprofile(None)
        return taken["call"] + taken["c_call"]

    assert steps(1) == steps(10_000)


def test_a_process_that_cannot_be_understood_is_left_out_and_counted(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = a_slice(tmp_path, "one", page="/opt/egpu/policy")
    odd, honest = start(MAP, tmp_path / "one/policy"), start(MAP, one.policy)
    page_at = membership.page_at

    def raising(pid: int, page: str, wanted: Collection[membership.PageIdentity]) -> set[membership.PageIdentity]:
        if pid == odd:
            raise IndexError(pid)
        return page_at(pid, page, wanted)

    monkeypatch.setattr(membership, "page_at", raising)
    before = proc.odd.total()
    assert owners([odd, honest], one) == {honest: "one"}
    assert proc.odd.total() == before + 1
    os.kill(honest, signal.SIGKILL)


def test_processes_that_cannot_be_understood_are_a_series_from_the_start(tmp_path: Path) -> None:
    """An alert sees the first one, too: the series is there before it."""
    metrics = AgentMetrics(
        node="n", node_ip="", slots=Slots(tmp_path / "slots"), inventory=Inventory(NvmlInventory(), interval_seconds=1)
    )

    def seen() -> float | None:
        return metrics.registry.get_sample_value("elasticgpu_agent_odd_processes_total", {"node": "n"})

    before = proc.odd.total()
    assert seen() == before
    assert proc.asked("whose", lambda _: 1 // 0, 1, 0) == 0
    assert seen() == before + 1
