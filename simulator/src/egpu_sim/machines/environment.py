"""The environment in which programs find a simulated machine, for one program or for a whole shell."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from egpu_base.compilers import giving_ptx
from egpu_base.errors import CorruptData, InvalidInput
from egpu_sim import native
from egpu_sim.machines import machine as machines

MACHINE: Final = "EGPU_SIM_MACHINE"
"""The environment variable with the directory of a shell's machine."""
_SAVED: Final = "shell.json"

Changes = dict[str, tuple[str | None, str]]
"""Old and new value of each variable; None for a variable that was not set."""


def making_ptx(present: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment `present` so that compilers emit PTX. Raises NativeMissing."""
    return giving_ptx(present, assembler=native.path("tools/ptxas"), search_path=native.search_path)


def environment_of(machine: machines.Machine, present: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which programs find the machine's driver, libraries and tools."""
    driver = machine.driver_dir
    libraries = filter(None, (str(driver), present.get("LD_LIBRARY_PATH")))
    preloaded = [*(str(driver / name) for name in machines.PRELOADED), *present.get("LD_PRELOAD", "").split()]
    return {**present, **making_ptx(present), "LD_LIBRARY_PATH": ":".join(libraries), "LD_PRELOAD": " ".join(preloaded)}


def enter(machine: machines.Machine, present: Mapping[str, str]) -> Changes:
    """Return the changes for a shell with the environment `present`, and save them in the machine's directory."""
    wanted = environment_of(machine, present) | {MACHINE: str(machine.directory)}
    changes = {name: (present.get(name), value) for name, value in wanted.items() if present.get(name) != value}
    (machine.directory / _SAVED).write_bytes(msgspec.json.encode(changes))
    return changes


def leave(directory: Path, present: Mapping[str, str]) -> dict[str, str | None]:
    """Return the old values of the variables that still have the value from `enter`; None for one to unset.

    Raises:
        InvalidInput: the directory has no machine of a shell.
        CorruptData: its file cannot be read.
    """
    try:
        changes = msgspec.json.decode((directory / _SAVED).read_bytes(), type=Changes)
    except OSError as error:
        raise InvalidInput("DIRECTORY", f"{directory} has no machine of `egpu-sim start`") from error
    except msgspec.MsgspecError as error:
        raise CorruptData(f"{directory / _SAVED}: {error}") from error
    return {name: before for name, (before, after) in changes.items() if present.get(name) == after}


def shell_lines(values: Mapping[str, str | None]) -> str:
    """Return the commands that set, or for None unset, variables in a POSIX shell."""
    return "".join(
        f"unset {name}\n" if value is None else f"export {name}={shlex.quote(value)}\n"
        for name, value in values.items()
    )


def write_github_files(changes: Changes, files: Mapping[str, str]) -> None:
    """Write the changes to GitHub Actions' files, for the later steps of a job. Raises InvalidInput outside a job."""
    if "GITHUB_ENV" not in files or "GITHUB_PATH" not in files:
        raise InvalidInput("--github", "GITHUB_ENV and GITHUB_PATH are not set: use it in a job of GitHub Actions")
    before, after = changes.get("PATH", ("", ""))
    known = (before or os.defpath).split(":")
    added = [folder for folder in after.split(":") if folder not in known]
    with Path(files["GITHUB_PATH"]).open("a") as paths:  # each line goes before all earlier ones
        paths.writelines(f"{folder}\n" for folder in reversed(added))
    with Path(files["GITHUB_ENV"]).open("a") as variables:
        variables.writelines(f"{name}={value}\n" for name, (_, value) in changes.items() if name != "PATH")
