"""What `/proc` prints of hostile names and paths: no bytes in them are taken for the kernel's own fields."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egpu.adapters.slices import membership
from egpu_base.system import proc

names = st.binary(min_size=1, max_size=60).map(lambda text: text.translate(None, b"/\0")).filter(bool)
"""Names of files: all bytes but `/` and NUL."""
lines = st.sampled_from([b"\n", b"\r", b"\f", b"\v", b"\x1c", b"\xc2\x85", b" "]).flatmap(
    lambda separator: st.tuples(names, names).map(lambda two: two[0] + separator + MAPPED + two[1])
)
MAPPED = b"7f00-7f01 r--s 00000000 08:01 4711 "
"""The beginning of a line about the wanted file."""
paths = st.lists(names | lines, min_size=1, max_size=4)
WANTED = (os.makedev(8, 1), 4711)
quick = settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


def escaped(text: bytes, special: bytes = b"\n") -> bytes:
    """As seq_path() and proc_task_name() print a name: these bytes in octal or with a backslash."""
    return b"".join(b"\\%03o" % each if each in special else bytes([each]) for each in text)


def line(path: list[bytes], *, device: bytes = b"08:01", inode: int = 10 * WANTED[1]) -> bytes:
    """The inode of a hostile file begins like the wanted one's."""
    return b"7f10-7f20 r--s 00000000 %s %d  /" % (device, inode) + escaped(b"/".join([*path, b"policy"])) + b"\n"


@quick
@given(st.lists(paths, max_size=5), st.none() | st.integers(0, 5), st.integers(0, 400))
def test_only_the_kernel_s_own_fields_name_a_mapped_file(
    hostile: list[list[bytes]], true: int | None, cut: int
) -> None:
    each = [line(path) for path in hostile]
    if true is not None:
        each.insert(true, line([b"opt", b"egpu"], inode=WANTED[1]))
    whole = b"".join(each)
    wanted = frozenset({WANTED})
    assert proc.find_mapped(whole, wanted) == (wanted if true is not None else set())
    assert proc.find_mapped(whole[: max(0, len(whole) - cut)], wanted) <= (wanted if true is not None else set())


@quick
@given(
    st.binary(min_size=1, max_size=15).filter(lambda name: b"\0" not in name), st.integers(2, 99), st.integers(1, 99)
)
def test_a_name_says_nothing_of_status_and_stat(
    tmp_path_factory: pytest.TempPathFactory, name: bytes, parent: int, uid: int
) -> None:
    root = tmp_path_factory.getbasetemp() / "proc"
    (root / "7").mkdir(parents=True, exist_ok=True)
    fields = b"PPid:\t%d\nUid:\t%d\t0\t0\t0\nNSpid:\t7\t3\n" % (parent, uid)
    (root / "7/status").write_bytes(b"Name:\t" + escaped(name, b"\n\\") + b"\n" + fields)
    (root / "7/stat").write_bytes(b"7 (" + escaped(name, b"\n\\") + b") S %d 7 7 " % parent + b"1 " * 20 + b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proc, "PROC", str(root))
        assert proc.users(7) == [uid, 0, 0, 0]
        assert proc.status(7, b"PPid") == [b"%d" % parent]
        assert proc.pid_inside(7) == 3
        assert proc.parent(7) == parent


@quick
@given(st.lists(names, max_size=4))
def test_a_group_inside_a_pod_s_names_no_other_pod(inside: list[bytes]) -> None:
    ours = {"/kubepods/burstable/pod0a/agent"}
    group = "/kubepods/burstable/pod1b/" + "/".join(map(os.fsdecode, inside))
    assert membership.pod_of({group, group + "/pod2c/c"}, ours) == "pod1b"


@quick
@given(names, names, names)
def test_a_mount_point_is_one_mount(place: bytes, root: bytes, source: bytes) -> None:
    special = b" \t\n\\#"
    text = b"31 23 0:26 /%s /mnt/%s rw shared:1 - tmpfs %s rw\n" % tuple(
        escaped(each, special) for each in (root, place, source)
    )
    assert proc.mounts(text * 2) == [
        proc.Mount("0:26", os.fsdecode(b"/" + root), os.fsdecode(b"/mnt/" + place), "tmpfs")
    ] * 2  # fmt: skip


def test_no_other_module_reads_proc_of_others() -> None:
    """Whoever needs a file of another process asks this module, so that no second parser believes what that wrote."""
    root = Path(__file__).parents[2]
    files = [file for below in ("src", "base/src", "simulator/src") for file in (root / below).rglob("*.py")]
    ways = ('f"/proc/{', 'Path("/proc").', 'scandir("/proc")', 'listdir("/proc")')
    reading = {file.name for file in files if any(way in file.read_text() for way in ways)}
    assert reading <= KNOWN.keys()


KNOWN = {
    "mps.py": "the command line of a daemon that names itself",
    "networks.py": "opens a network namespace",
    "reaping.py": "asks whether there is a process",
    "execution.py": "the environment of a simulated container, for its own commands",
    "janitor.py": "imports the standard library alone; bytes as well",
}
"""Modules that do all the same, and what they read."""
