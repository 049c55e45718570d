"""Whose slice a process is in, by real processes; control groups are said by the test."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from egpu.adapters.slices import membership
from egpu.adapters.slices.attribution import (
    MAPPINGS_SECONDS,
    MOST_STRANGER_SECONDS,
    STRANGER_SECONDS,
    Attribution,
    WatchedSlice,
)
from egpu_base.system import proc
from egpu_base.system.processes import Process
from support.waiting import wait_until

MAPPED = """
import mmap, sys
with open(sys.argv[1], "rb") as file: page = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(); input()
"""
CHILD = "import subprocess; subprocess.Popen(['sleep', '600']); input()"
HIDES = "page.close(); print(); input()"
Start = Callable[[str, Path], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python code with a policy page as its argument, in a session of its own, up to its first word."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, policy: Path) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", code, policy], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "\n"
        return child

    yield start
    for child in started:
        for each in [*_children(child.pid), child.pid]:
            subprocess.run(["kill", "-9", str(each)], check=False, capture_output=True)
        child.communicate()


def go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.fixture
def one(tmp_path: Path) -> WatchedSlice:
    return a_slice(tmp_path, "one")


def a_slice(tmp_path: Path, key: str, *, pods: tuple[str, ...] = (), root: Process | None = None) -> WatchedSlice:
    directory = tmp_path / key
    directory.mkdir()
    (directory / "policy").write_bytes(bytes(4096))
    return WatchedSlice(key=key, policy=directory / "policy", usage=directory / "usage", pods=pods, root=root)


def owner(attribution: Attribution, pid: int, *slices: WatchedSlice, now: float = 0.0) -> object:
    found = attribution.owners([pid], slices, now=now)
    return found[pid][1].key if found else None


def test_what_a_process_was_it_stays_whatever_it_hides(one: WatchedSlice, start: Start) -> None:
    child = start(MAPPED + HIDES, one.policy)
    attribution = Attribution()
    assert owner(attribution, child.pid, one) == "one"
    go_on(child)
    assert child.stdout is not None
    assert child.stdout.readline() == "\n"
    assert (page := membership.identity(one.policy)) is not None
    assert membership.pages_of(child.pid, "/policy", {page}) == set()
    assert owner(Attribution(), child.pid, one) is None
    assert owner(attribution, child.pid, one) == "one"
    assert owner(attribution, child.pid) is None, "its slice is gone"


def test_a_child_that_never_had_the_page_is_its_parent_s(one: WatchedSlice, start: Start) -> None:
    parent = start(MAPPED + CHILD, one.policy)
    assert owner(Attribution(), parent.pid, one) == "one"
    go_on(parent)
    (child,) = wait_until(lambda: _children(parent.pid))
    assert owner(Attribution(), child, one) == "one"


def test_descendants_of_a_root_are_in_its_slice_and_nobody_else(tmp_path: Path, start: Start) -> None:
    root, other = (start("print(); " + CHILD, tmp_path) for _ in range(2))
    rooted = a_slice(tmp_path, "rooted", root=Process.of(root.pid))
    (child,), (stranger,) = (wait_until(lambda pid=each.pid: _children(pid)) for each in (root, other))
    assert owner(Attribution(), child, rooted) == "rooted"
    assert owner(Attribution(), stranger, rooted) is None
    late = a_slice(tmp_path, "late", root=Process(root.pid, 1))
    assert owner(Attribution(), child, late) is None, "the root has ended, and its pid is another's"


def test_a_stranger_is_looked_at_again_after_a_while(tmp_path: Path, start: Start) -> None:
    attribution = Attribution()
    mine = a_slice(tmp_path, "one")
    child = start(MAPPED, mine.policy)
    assert owner(attribution, child.pid) is None
    assert owner(attribution, child.pid, mine, now=STRANGER_SECONDS / 2) is None
    assert owner(attribution, child.pid, mine, now=STRANGER_SECONDS) == "one"


@pytest.mark.parametrize(
    "group",
    [
        "/kubepods/burstable/pod{}/0123",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-0123.scope",
    ],
)
def test_who_hides_its_page_is_found_by_its_pod_s_control_group(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    groups: dict[int, str] = {}
    monkeypatch.setattr(membership, "control_groups", lambda pid: frozenset({groups.get(pid, "/init.scope")}))
    uid = "6f1c-22"
    told = uid.replace("-", "_") if group.endswith(".scope") else uid
    first, second, other = (a_slice(tmp_path, key, pods=(pod,)) for key, pod in
                            (("first", uid), ("second", uid), ("other", "7a")))  # fmt: skip
    shown, hidden, alone, stranger = (start("print(); input()", tmp_path) for _ in range(4))
    shown = start(MAPPED + "input()", second.policy)
    groups = {shown.pid: group.format(told) + "b", hidden.pid: group.format(told) + "b",
              alone.pid: group.format(told) + "a", stranger.pid: group.format("8b")}  # fmt: skip
    attribution, slices = Attribution(), (first, second, other)
    assert owner(attribution, hidden.pid, *slices) == "first", "of its pod, of which container nobody knows yet"
    assert owner(attribution, shown.pid, *slices) == "second"
    found = Attribution().owners([shown.pid, hidden.pid, alone.pid, stranger.pid], slices, now=0.0)
    assert {pid: each.key for pid, (_, each) in found.items()} == {
        shown.pid: "second", hidden.pid: "second", alone.pid: "first",
    }  # fmt: skip


class SlowMappings:
    """Mappings that each take all the time that a look has for them. `read` has the processes, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[int] = []
        self.now = 0.0
        mapped = membership.pages_mapped

        def slow(pid: int, wanted: Collection[membership.PageIdentity]) -> set[membership.PageIdentity]:
            self.read.append(pid)
            self.now += MAPPINGS_SECONDS
            return mapped(pid, wanted)

        monkeypatch.setattr(membership, "pages_mapped", slow)

    def attribution(self) -> Attribution:
        return Attribution(clock=lambda: self.now)


def test_a_pod_is_charged_for_processes_whose_mappings_no_look_has_read_yet(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    mappings = SlowMappings(monkeypatch)
    first, second = (a_slice(tmp_path, key, pods=("1a",)) for key in ("first", "second"))
    hidden = [start("print(); input()", tmp_path).pid for _ in range(2)]
    shown = start(MAPPED + "input()", second.policy).pid
    groups = {pid: f"/kubepods/pod1a/{pid}" for pid in (*hidden, shown)}
    monkeypatch.setattr(membership, "control_groups", lambda pid: frozenset({groups.get(pid, "/init.scope")}))
    attribution, pids = mappings.attribution(), (*hidden, shown)
    reads: list[int] = []
    keys: list[dict[int, object]] = []
    while not keys or attribution.is_behind:
        found = attribution.owners(pids, (first, second), now=0.1 * len(keys))
        keys.append({pid: one.key for pid, (_, one) in found.items()})
        reads.append(len(mappings.read) - sum(reads))
    assert keys[0] == dict.fromkeys(pids, "first"), "all of the pod, of which container nobody knows yet"
    assert keys[-1] == dict.fromkeys(hidden, "first") | {shown: "second"}
    assert reads == [1, 1, 1], "each look goes on where the one before stopped"
    assert mappings.read == list(pids), "each once"


def test_a_process_that_only_its_mappings_tell_is_found_in_the_order_of_asking(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    mappings, mine = SlowMappings(monkeypatch), a_slice(tmp_path, "one")
    large, small = (start(MAPPED + "input()", mine.policy).pid for _ in range(2))
    attribution = mappings.attribution()
    assert list(attribution.owners([large, small], [mine], now=0.0)) == [large]
    assert attribution.is_behind
    assert list(attribution.owners([large, small], [mine], now=0.01)) == [large, small]
    assert not attribution.is_behind


def test_a_look_asks_once_what_is_above_many_processes(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next look asks again: an ancestor may have ended meanwhile."""
    asked = Counter[tuple[str, int]]()

    def counted(module: ModuleType, name: str) -> None:
        ask = getattr(module, name)

        def asks(pid: int, *more: object) -> object:
            asked[name, pid] += 1
            return ask(pid, *more)

        monkeypatch.setattr(module, name, asks)

    counted(proc, "parent")
    counted(membership, "control_groups")
    counted(membership, "page_at")
    watched = replace(a_slice(tmp_path, "pod", pods=("1a",)), page="/opt/egpu/policy")
    pids = [start("print(); input()", tmp_path).pid for _ in range(3)]
    attribution = Attribution(clock=lambda: 0.0)  # the mappings above may take longer than a look has for them
    for look in (1, 2):
        assert attribution.owners(pids, [watched], now=look * 2 * STRANGER_SECONDS) == {}
        above = {name: times for (name, pid), times in asked.items() if pid == os.getppid()}
        assert above == {"parent": look, "control_groups": look, "page_at": look}


def test_no_mappings_are_read_of_descendants_of_a_root(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    mappings, root = SlowMappings(monkeypatch), start("print(); " + CHILD, tmp_path)
    rooted = a_slice(tmp_path, "rooted", root=Process.of(root.pid))
    (child,) = wait_until(lambda: _children(root.pid))
    assert owner(mappings.attribution(), child, rooted) == "rooted"
    assert mappings.read == []


def test_a_stranger_is_looked_at_less_and_less_until_a_slice_is_new(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    mappings, mine = SlowMappings(monkeypatch), a_slice(tmp_path, "one")
    stranger = start("print(); input()", tmp_path).pid
    attribution, looked_at = mappings.attribution(), list[int]()
    for second in range(64):
        before = mappings.read.count(stranger)
        assert owner(attribution, stranger, mine, now=float(second)) is None
        looked_at += [second] if mappings.read.count(stranger) > before or attribution.is_behind else []
        while attribution.is_behind:
            owner(attribution, stranger, mine, now=float(second))
    assert looked_at == [0, 1, 3, 7, 15, 31, 47, 63]
    assert looked_at[-1] - looked_at[-2] == MOST_STRANGER_SECONDS
    late = a_slice(tmp_path, "late")
    child = start(MAPPED + "input()", late.policy).pid
    assert owner(attribution, stranger, mine, late, now=64.0) is None
    before = mappings.read.count(stranger)
    now = 64.0 + STRANGER_SECONDS
    found = attribution.owners([stranger, child], [mine, late], now=now)
    while attribution.is_behind:
        found = attribution.owners([stranger, child], [mine, late], now=now)
    assert found.keys() == {child}
    assert mappings.read.count(stranger) == before + 1


def test_without_processes_nobody_asks_which_slices_there_are() -> None:
    def slices() -> Iterator[WatchedSlice]:
        raise AssertionError("nobody was to ask")
        yield

    assert Attribution().owners((), slices(), now=0.0) == {}


def test_of_a_pod_where_another_container_has_no_limit_the_page_tells_and_then_its_group(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: dict[int, str] = {}
    monkeypatch.setattr(membership, "control_groups", lambda pid: frozenset({groups.get(pid, "/init.scope")}))
    limited = replace(a_slice(tmp_path, "limited"), mixed=("1a",))
    shown = start(MAPPED + "input()", limited.policy)
    hidden, other = (start("print(); input()", tmp_path) for _ in range(2))
    groups |= {shown.pid: "/kubepods/pod1a/c", hidden.pid: "/kubepods/pod1a/c", other.pid: "/kubepods/pod1a/d"}
    found = Attribution().owners([shown.pid, hidden.pid, other.pid], [limited], now=0.0)
    assert sorted(found) == sorted([shown.pid, hidden.pid])
