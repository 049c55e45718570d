"""The libraries of NVIDIA that executors call for programs: the folders that have them, and their versions.

An executor looks in this order (`native/executor/libraries/libraries.c`): beside the driver, where a simulated machine
has its own; in the folders of its LD_LIBRARY_PATH; in the toolkit's folder; where the loader does. The folders are
those of `--library-path`, then those of NVIDIA's wheels in the Python that runs us.

Versions are read from names of files and wheels: no library is loaded to ask it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from egpu.core.provisioners.preparation import FORWARDED
from egpu_base.errors import InvalidInput

TOOLKIT: Final = Path("/usr/local/cuda/lib64")
_LDCONFIG_SECONDS: Final = 10.0
_COMPARED_PARTS: Final = 3
"""Parts of a version that are compared: a wheel and a toolkit number builds differently."""


def is_simulated(driver_dir: Path | None) -> bool:
    """Return whether a driver directory is a simulated machine's. Others have a real driver, or links to it."""
    return driver_dir is not None and (driver_dir / "machine").exists()


def library_path(named: Sequence[Path], driver_dir: Path | None) -> tuple[Path, ...]:
    """Return the folders to search behind the driver's: `named`, then those of wheels. NVIDIA's libraries need a real
    driver, so a simulated one gets only what is named. Raises InvalidInput for a folder that does not exist."""
    for folder in named:
        if not folder.is_dir():
            raise InvalidInput("--library-path", f"{folder} is not a directory")
    wheels = () if is_simulated(driver_dir) else wheel_folders(map(Path, sys.path))
    return tuple(dict.fromkeys(folder.resolve() for folder in (*named, *wheels)))


def wheel_folders(packages: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders of libraries of NVIDIA's wheels in folders of packages."""
    for folder in packages:
        yield from sorted(each for each in folder.glob("nvidia/*/lib") if each.is_dir())


def found(driver_dir: Path | None, folders: Sequence[Path]) -> Mapping[str, str]:
    """Return the libraries that executors find, name → version ("" where it is not known)."""
    places = [folder for folder in (driver_dir, *folders, TOOLKIT) if folder is not None]
    return _versions(_loaders() | _files(places))


def missing(there: Mapping[str, str]) -> list[str]:
    """Return the names of libraries that are not found."""
    return [name for name in map(_name, FORWARDED) if name not in there]


def of_command(command: str) -> Mapping[str, str]:
    """Return the libraries of NVIDIA's wheels in the environment of a command, name → version. The environment is the
    folder above that of the command, as in a virtual environment."""
    path = shutil.which(command)
    packages = [] if path is None else list(Path(path).absolute().parent.parent.glob("lib/python3*/site-packages"))
    return _versions(_files(list(wheel_folders(packages))))


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Describe the libraries whose known versions differ between a program and its server."""
    return [
        f"{name} {there[name]} (here {version})"
        for name, version in here.items()
        if version and there.get(name) and _compared(version) != _compared(there[name])
    ]


def _files(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the first file of each library, by SONAME."""
    files = [(soname, folder / soname) for folder in reversed(folders) for soname in FORWARDED]
    return {soname: file for soname, file in files if file.exists()}


def _versions(files: Mapping[str, Path]) -> dict[str, str]:
    return {_name(soname): _version(files[soname]) for soname in FORWARDED if soname in files}


def _compared(version: str) -> list[str]:
    return version.split(".")[:_COMPARED_PARTS]


def _name(soname: str) -> str:
    return soname.removeprefix("lib").partition(".so")[0]


def _version(file: Path) -> str:
    """Return a library's version: by the name of its file, or of the wheel that has it."""
    real = file.resolve()
    if real.name.removeprefix(file.name).startswith("."):
        return real.name.partition(".so.")[2]
    name = {"cublasLt": "cublas"}.get(_name(file.name), _name(file.name).lower())
    pattern = re.compile(rf"nvidia_{name}(?:_cu\d+)?-(.+)\.dist-info")
    wheels = (pattern.fullmatch(each.name) for each in real.parent.parent.parent.parent.glob("nvidia_*.dist-info"))
    return next((match[1] for match in wheels if match), "")


def _loaders() -> dict[str, Path]:
    """Return the files that the loader knows, by SONAME; none where it cannot say."""
    try:
        done = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True, timeout=_LDCONFIG_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    entries = (line.split() for line in done.stdout.splitlines() if "=>" in line)
    return {entry[0]: Path(entry[-1]) for entry in reversed(list(entries)) if Path(entry[-1]).exists()}
