"""The parent process of executors. They end with their parent's control group: on Kubernetes with its pod. So an agent,
which is upgraded while programs run, has them started by a process that is not (`egpu.adapters.shim`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from egpu.adapters.executors import process
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.images import Images
from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord, Owner


class Parent(Protocol):
    """Starts, finds and ends executors in directories below `below`. Calls block for milliseconds; they raise as
    `process.start`, `process.find` and `Executor.end`."""

    def start(self, below: Path, record: ExecutorRecord[Owner], *, restore: int | None = None) -> Executor[Owner]: ...

    def find(self, below: Path, owner: type[Owner]) -> list[Executor[Owner]]: ...

    def end(self, executor: Executor[Owner]) -> None: ...


class ThisProcess:
    """Makes executors our own children. `driver_dir` has the driver, None for this machine's own; `libraries` are the
    folders of NVIDIA's libraries; without `images` none are kept."""

    def __init__(
        self,
        driver_dir: Path | None,
        confinement: Confinement,
        images: Images | None = None,
        *,
        libraries: Sequence[Path] = (),
    ) -> None:
        self._driver_dir = driver_dir
        self._libraries = libraries
        self._confinement = confinement
        self._images = images

    def start(self, below: Path, record: ExecutorRecord[Owner], *, restore: int | None = None) -> Executor[Owner]:
        return process.start(
            below, record, self._driver_dir, self._confinement, self._images, libraries=self._libraries, restore=restore
        )

    def find(self, below: Path, owner: type[Owner]) -> list[Executor[Owner]]:
        return process.find(below, owner, self._confinement)

    def end(self, executor: Executor[Owner]) -> None:
        executor.end()
