"""Files that tenants write, or in whose place they put something else: each reader of one, and each thing."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from egpu.adapters.cards.mps import PIPES, PROGRAM, MpsControl
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.slices import reaping
from egpu.adapters.slices.pages import UsageReader
from egpu.cli import inspection
from egpu_base.system.foreign import open_foreign, read_end, read_foreign
from egpu_base.system.private import open_own

GIB = 1 << 30
MOST_BYTES = 8 << 20
"""The most memory that a reader takes: the largest reads a MiB, and keeps it twice."""


def executor(directory: Path) -> Executor[str]:
    return Executor(directory, ExecutorRecord(name="a", owner="b", cards=(), minors={}), None)


def mps_pid(path: Path) -> object:
    """As the daemon's own: in the pipe directory of a card."""
    place = path.parent / PIPES / f"{PROGRAM}.pid"
    place.parent.mkdir()
    path.rename(place)
    return MpsControl().find(path.parent)


def named(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    def reader(path: Path) -> object:
        return read(path.rename(path.with_name(name)))

    return reader


READERS: dict[str, Callable[[Path], object]] = {
    "a container's usage file": lambda path: UsageReader(path).read(),
    "a usage file whose rows are freed": reaping.reap,
    "the pid of an MPS daemon": mps_pid,
    "an executor's events": named("events", lambda path: executor(path.parent).follow()),
    "an executor's log": named("log", lambda path: executor(path.parent).why_dead()),
    "a record that `egpu inspect` shows": lambda path: inspection._record(path, {}),
    "a log that `egpu inspect` shows": inspection._last_line,
    "a file of ours where others make files": lambda path: open_own(path).read(1),
    "the start of any such file": lambda path: read_foreign(path, most=1 << 20),
    "the end of any such file": lambda path: read_end(path, most=1 << 20),
}
"""Every reader of such a file in the product and its base. A new one belongs here."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.with_name("kept").write_text("a neighbour's")
    path.symlink_to("kept")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, GIB)


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 4096)


THINGS = (fifo, link, device, directory, sparse, garbage)


pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.__name__)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_no_reader_blocks_fills_memory_or_fails(
    tmp_path: Path, reader: Callable[[Path], object], thing: Callable[[Path], None]
) -> None:
    path = tmp_path / "file"
    thing(path)
    tracemalloc.start()
    try:
        reader(path)
    except OSError:
        return  # as for any file that cannot be read
    finally:
        most_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most_bytes < MOST_BYTES


@pytest.mark.parametrize("thing", [fifo, link, device, directory], ids=lambda thing: thing.__name__)
def test_only_a_plain_file_is_opened(tmp_path: Path, thing: Callable[[Path], None]) -> None:
    thing(tmp_path / "file")
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        with pytest.raises(OSError, match=r"not a plain file|symbolic links|Is a directory"):
            open_foreign(tmp_path / "file")
    assert len(os.listdir("/proc/self/fd")) == len(before), "none stays open"
