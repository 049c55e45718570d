"""Whose slice a process is in, by real processes; control groups are said by the test."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from egpu.adapters.slices import membership
from egpu.adapters.slices.attribution import STRANGER_SECONDS, Attribution, WatchedSlice
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
