"""`egpu` as its users run it: a process of its own, whose traces can be told from everybody else's.

A `Place` is a home and a temporary directory for the commands of one test; what they start inherits a mark in its
environment, so whatever outlives them is found, and by that name alone.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import forked_commands, process_table
from support.waiting import DEADLINE_SECONDS, wait_until

MARK = "EGPU_TEST_PLACE"


@dataclass
class Place:
    """Where commands run. `shared` are the shared memory files seen while they ran."""

    root: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    shared: set[Path] = field(default_factory=set[Path])

    def __post_init__(self) -> None:
        self.temporary.mkdir(parents=True)

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def environment(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin"])
        return {"PATH": path, "HOME": str(self.root), "TMPDIR": str(self.temporary), MARK: self.mark, **more}

    def run(
        self, *arguments: str, timeout: float = DEADLINE_SECONDS, inside: Sequence[str] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        """`egpu ARGUMENTS` to its end; the caller looks at the exit code. `inside`: a command that runs the rest of its
        arguments, such as `nice`."""
        if not inside:
            return forked_commands.run(arguments, env=self.environment(**env), timeout=timeout, cwd=self.root)
        command = [*inside, sys.executable, "-m", "egpu", *arguments]
        return subprocess.run(
            command,
            env=self.environment(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self.root,
        )

    def start(self, *arguments: str, **env: str) -> forked_commands.Running:
        """`egpu ARGUMENTS`, running."""
        with (self.root / "stderr").open("ab") as stderr:
            return forked_commands.popen(
                arguments, env=self.environment(**env), stdout=subprocess.PIPE, stderr=stderr, cwd=self.root
            )

    def stderr(self) -> str:
        return (self.root / "stderr").read_text()

    def look(self) -> None:
        """Remember the shared memory of the clusters that run now."""
        # No "**": what it would walk through comes and goes meanwhile.
        for pattern in ("tmp/egpu-*", "state"):
            for kept in ("machine/driver/machine", "kubelet/run"):
                for link in self.root.glob(f"{pattern}/nodes/*/{kept}"):
                    with contextlib.suppress(OSError):
                        self.shared.add(link.readlink())

    def processes(self) -> list[str]:
        """Command lines of the living processes that were started from here."""
        return [f"{one.pid} {one.command}" for one in process_table.of_place(self.root, f"{MARK}={self.mark}")]

    def left_behind(self) -> list[str]:
        """Processes, shared memory and temporary files that are still there."""
        files = [str(path) for path in (*self.temporary.iterdir(), *self.shared) if path.exists()]
        return [*self.processes(), *files]

    def until_nothing_is_left(self) -> None:
        wait_until(lambda: not self.left_behind(), lambda: f"the end of {self.left_behind()}")


@contextlib.contextmanager
def up(place: Place, *arguments: str) -> Generator[tuple[forked_commands.Running, dict[str, Any]]]:
    """`egpu up -o json ARGUMENTS` while the context lasts: the process and the facts that it printed."""
    process = place.start("up", "-o", "json", *arguments)
    try:
        facts = _facts(process, place)
        place.look()
        yield process, facts
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        process.wait(DEADLINE_SECONDS)
        process.stdout.close()


def _facts(process: forked_commands.Running, place: Place) -> dict[str, Any]:
    """The JSON object that the process prints first."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_SECONDS)
    assert ready, f"egpu up did not start: {place.stderr()}"
    text = ""
    # All of it comes at once.
    while not text.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, f"egpu up ended: {text}{place.stderr()}"
        text += line
    return json.loads(text)
