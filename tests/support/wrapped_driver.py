"""A driver directory with a library of a test's own around a simulated machine's driver."""

import os
from dataclasses import dataclass
from pathlib import Path

from egpu_sim.machines.machine import Machine
from support.slices import compile_c


@dataclass(frozen=True)
class WrappedDriver:
    """A driver whose functions are those of a source in C, and else the simulated machine's."""

    driver_dir: Path


def wrap(sim: Machine, folder: Path, source: Path, *flags: str) -> WrappedDriver:
    """Make it. The source finds the real driver's path as DRIVER."""
    folder.mkdir()
    for entry in sim.driver_dir.iterdir():
        (folder / entry.name).symlink_to(os.readlink(entry) if entry.is_symlink() else entry)
    real = sim.driver_dir / "libcuda.so.1"
    (folder / real.name).unlink()
    # It needs the real driver by path. By name the loader would take this one, which a program has loaded by that name.
    (empty := folder / "empty.c").touch()
    by_path = folder / "real.so"
    compile_c(by_path, "-shared", "-fPIC", empty, flags=())
    linked = ("-Wl,--no-as-needed", by_path)
    compile_c(folder / real.name, "-shared", "-fPIC", f'-DDRIVER="{real}"', *flags, source, *linked, flags=())
    by_path.unlink()
    by_path.symlink_to(real)
    return WrappedDriver(folder)
