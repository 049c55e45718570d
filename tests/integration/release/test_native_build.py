"""The native build, where something about the place is unusual."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from support.slices import cuda_include

NATIVE: Final = Path(__file__).resolve().parents[3] / "native"
TARGETS: Final = ("egpu_common", "egpu_refused_cupti")
"""Few, but with what names files by their whole paths: a header before all others, and a version script."""


def test_a_path_with_spaces_builds(tmp_path: Path) -> None:
    tree = tmp_path / "a tree.so of mine"
    shutil.copytree(NATIVE, tree / "native", ignore=shutil.ignore_patterns("corpus"))
    cmake = Path(sys.executable).parent / "cmake"
    configure = ["-S", tree / "native", "-B", tree / "build", f"-DEGPU_CUDA_INCLUDE={cuda_include()}"]
    for arguments in (configure, ["--build", tree / "build", "--target", *TARGETS]):
        done = subprocess.run([cmake, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tree / "build/libraries/libcupti.so.13").is_file()
