"""Whose children executors are. They end with the control group that their parent is in: on Kubernetes with its pod. So
an agent, which is upgraded while programs run, has them started by a process that is not (`egpu.adapters.shim`)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from egpu.adapters.executors import process
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord, Owner


class Parent(Protocol):
    """Starts, finds and ends executors in directories below `below`. Calls block for milliseconds; they raise as
    `process.start`, `process.find` and `Executor.end` do."""

    def start(self, below: Path, record: ExecutorRecord[Owner]) -> Executor[Owner]: ...

    def find(self, below: Path, owner: type[Owner]) -> list[Executor[Owner]]: ...

    def end(self, executor: Executor[Owner]) -> None: ...


class ThisProcess:
    """The executors are our own children. `driver_dir` is a simulated machine's, None for this machine's own driver;
    without `images` none are kept."""

    def __init__(self, driver_dir: Path | None, confinement: Confinement, images: Images | None = None) -> None:
        self._driver_dir = driver_dir
        self._confinement = confinement
        self._images = images

    def start(self, below: Path, record: ExecutorRecord[Owner]) -> Executor[Owner]:
        return process.start(below, record, self._driver_dir, self._confinement, self._images)

    def find(self, below: Path, owner: type[Owner]) -> list[Executor[Owner]]:
        return process.find(below, owner, self._confinement)

    def end(self, executor: Executor[Owner]) -> None:
        executor.end()
