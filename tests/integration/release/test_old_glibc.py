"""What runs in containers asks their glibc for nothing that version 2.17 did not have, whatever it was built with.

egpu-enter, egpu-relay and egpu-executor are not among it: they run where egpu itself does.
"""

import re
import subprocess

import pytest

from egpu.adapters import native
from egpu.core.provisioners.preparation import REMOTE_LIBRARIES

OLDEST = (2, 17)
LIBRARIES = ("libegpu-interposer.so", *REMOTE_LIBRARIES.values())
PROGRAMS = ("tools/nvidia-smi",)


def readelf(what: str, name: str) -> str:
    return subprocess.run(
        ["readelf", "--wide", what, native.path(name)], capture_output=True, text=True, timeout=30, check=True
    ).stdout


@pytest.mark.parametrize("name", [*LIBRARIES, *PROGRAMS])
def test_no_symbol_is_of_a_newer_glibc(name: str) -> None:
    """The versions themselves are the loader's condition, so one that is no number (GLIBC_ABI_...) is newer, too."""
    wanted = set(re.findall(r"\w+@(GLIBC_\w[\w.]*)", readelf("--dyn-syms", name)))
    listed = set(re.findall(r"Name: (GLIBC_\S+)", readelf("--version-info", name)))
    assert wanted, f"no versions in what readelf says of {name}"
    newer = {
        version
        for version in wanted | listed
        if not re.fullmatch(r"GLIBC_[\d.]+", version) or tuple(map(int, version[6:].split("."))) > OLDEST
    }
    assert newer == set()


@pytest.mark.parametrize("name", [*LIBRARIES[1:], *PROGRAMS])
def test_the_libraries_of_older_glibcs_are_named(name: str) -> None:
    """Before 2.34, threads and dlopen were not in libc.so.6."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", name)))
    assert needed >= {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
