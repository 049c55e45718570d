"""Start a command with our libraries by `egpu-enter`: in mounts of its own, which no change of its environment takes
away, or by LD_PRELOAD where this machine allows no such mounts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters import native

PROBE_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Entry:
    """`arguments` start the command. `refused` is the reason why this machine allows no private mounts, or ""."""

    arguments: tuple[str, ...]
    refused: str


def enter(
    command: Sequence[str],
    *,
    libraries: Sequence[Path],
    environment: Mapping[str, str],
    library_dir: Path | None = None,
    read_only: Mapping[Path, Path] | None = None,
) -> Entry:
    """Start `command` with `libraries` loaded and `environment` set, and `library_dir` searched for libraries first.
    `read_only` has files, by path, that it sees there and cannot write, with mounts of its own.

    Raises NativeMissing: egpu-enter is not built.
    """
    program, refused = str(native.path("egpu-enter")), refusal()
    variables = dict(environment)
    if library_dir is not None:
        variables["LD_LIBRARY_PATH"] = _joined(str(library_dir), os.environ.get("LD_LIBRARY_PATH"))
    arguments = [program]
    if refused:
        variables["LD_PRELOAD"] = _joined(*map(str, libraries), os.environ.get("LD_PRELOAD"))
    else:
        for target, source in (read_only or {}).items():
            arguments += ["--ro-bind", str(source), str(target)]
        for library in libraries:
            arguments += ["--preload", str(library)]
    for name, value in variables.items():
        arguments += ["--env", f"{name}={value}"]
    return Entry((*arguments, "--", *command), refused)


def refusal() -> str:
    """Return why this machine allows no private mounts, or "". Raises NativeMissing."""
    probe = subprocess.run(
        [native.path("egpu-enter"), "--probe"], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
    )
    return "" if probe.returncode == 0 else (probe.stdout or probe.stderr).strip() or "egpu-enter --probe failed"


def _joined(*parts: str | None) -> str:
    return ":".join(part for part in parts if part)
