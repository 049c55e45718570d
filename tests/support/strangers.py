"""Another user of this machine, for tests of what such a one can do to us."""

import os
import subprocess
from pathlib import Path

import pytest

STRANGER = 65_533
"""No user of the machine is called this."""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_stranger(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command as that user, with no group and no capability of ours."""
    return subprocess.run(
        command, user=STRANGER, group=STRANGER, extra_groups=(), cwd="/", capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


def owned_by_stranger(path: Path) -> None:
    """Make it, and all that is in it, that user's: as if that user had made it."""
    for each in (path, *path.rglob("*")):
        os.chown(each, STRANGER, STRANGER, follow_symlinks=False)


def library_that_tells(folder: Path) -> tuple[Path, Path]:
    """A shared library, and the file that it makes when anybody loads it."""
    told = folder / "loaded"
    source, library = folder / "forged.c", folder / "forged.so"
    source.write_text(
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) static void tell(void) {{ open("{told}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library, told
