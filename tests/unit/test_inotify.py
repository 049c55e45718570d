"""Who writes a watched file, and who closes it, is told by the kernel."""

import os
import select
from pathlib import Path

import pytest

from egpu_base.system.inotify import FileWatch


def test_what_is_written_and_closed_is_told_by_name(tmp_path: Path) -> None:
    with FileWatch() as watch, (tmp_path / "a").open("wb", buffering=0) as a, (tmp_path / "b").open("wb") as b:
        for name in ("a", "b"):
            watch.add(name, tmp_path / name)
        assert watch.read() == {}
        a.write(b"x")
        assert select.select([watch], [], [], 30)[0], "it is readable when there is something to read"
        assert watch.read() == {"a": False}
        a.write(b"y")
        b.close()
        assert watch.read() == {"a": False, "b": True}


def test_a_file_that_is_watched_no_more_tells_nothing(tmp_path: Path) -> None:
    with FileWatch() as watch:
        (tmp_path / "a").write_bytes(b"")
        watch.add("a", tmp_path / "a")
        (tmp_path / "a").write_bytes(b"x")  # told, but not read before it was forgotten
        watch.forget("a")
        (tmp_path / "a").write_bytes(b"y")
        assert watch.read() == {}
        watch.add("a", tmp_path / "a")  # the name is free again
        (tmp_path / "a").unlink()
        watch.forget("a")  # though the kernel has forgotten it already


def test_a_file_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    with FileWatch() as watch, pytest.raises(FileNotFoundError):
        watch.add("a", tmp_path / "a")


def test_who_loses_events_is_told_of_all(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with FileWatch() as watch:
        files = {name: tmp_path / name for name in ("a", "b", "c")}
        for name, file in files.items():
            file.write_bytes(b"")
            watch.add(name, file)
        handles = [os.open(files[name], os.O_WRONLY) for name in ("a", "b")]
        for number in range(most + 1):  # one after another from two files: the kernel joins only equal neighbours
            os.write(handles[number % 2], b"x")
        for handle in handles:
            os.close(handle)
        assert watch.read() == dict.fromkeys(files, True)
