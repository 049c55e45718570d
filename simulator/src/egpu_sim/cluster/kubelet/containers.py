"""One container: its runs, from their directories, and its waiting reason."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from egpu_sim.cluster.kubelet import runtime
from egpu_sim.cluster.kubelet.objects import Container
from egpu_sim.cluster.kubelet.runtime import Exit

# A container that ran this long starts its crash count anew, as in a real kubelet.
STEADY_SECONDS = 600.0


@dataclass(frozen=True)
class Run:
    """One run of a container; `number` 0 is its first."""

    number: int
    directory: Path

    @property
    def exit(self) -> Exit | None:
        return runtime.ended(self.directory)

    @property
    def begun(self) -> bool:
        """False while its command may not have been started yet."""
        return runtime.has_begun(self.directory)

    @property
    def start_error(self) -> str:
        """The reason why it could not start, or ""."""
        return runtime.start_error(self.directory)

    @property
    def began_at(self) -> float:
        return runtime.began_at(self.directory)


class ContainerRecord:
    """`finished`: it will not run again. `waiting` is (reason, message) and counts only while nothing runs."""

    def __init__(self, container: Container, directory: Path) -> None:
        self.container = container
        self.directory = directory
        self.waiting: tuple[str, str] = ("ContainerCreating", "")
        self.finished = False

    @property
    def name(self) -> str:
        return self.container.name

    def runs(self) -> list[Run]:
        """Return every run, oldest first."""
        try:
            numbers = sorted(int(name) for name in os.listdir(self.directory) if name.isdigit())
        except FileNotFoundError:
            return []
        return [Run(number, self.directory / str(number)) for number in numbers]

    @property
    def last(self) -> Run | None:
        runs = self.runs()
        return runs[-1] if runs else None

    @property
    def last_begun(self) -> Run | None:
        """The last run that counts in the container's status."""
        return next((run for run in reversed(self.runs()) if run.begun), None)

    def next_run(self) -> Run:
        last = self.last
        number = 0 if last is None else last.number + 1
        return Run(number, self.directory / str(number))

    def crash_delay(self, *, base_seconds: float, limit_seconds: float) -> float:
        """Return the seconds from now until it may run again: doubled at each run that did not last, counted from its
        end."""
        crashes, finished_at = 0, 0.0
        for run in reversed(self.runs()):
            ended = run.exit
            if ended is None or ended.finished_at - run.began_at > STEADY_SECONDS:
                break
            finished_at = max(finished_at, ended.finished_at)
            crashes += 1
        if not crashes:
            return 0.0
        delay = min(limit_seconds, base_seconds * 2 ** min(crashes - 1, 30))
        return min(delay, max(0.0, finished_at + delay - time.time()))  # in spite of changes of the clock


def restarts_after(pod_policy: str, container: Container, *, init: bool, code: int) -> bool:
    """Return whether a container that ended with `code` runs again."""
    if init and container.restartable:
        return True
    if pod_policy == "Never":
        return False
    if init or pod_policy == "OnFailure":
        return code != 0
    return True
