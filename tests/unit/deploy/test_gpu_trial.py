"""The trial for a machine with a real GPU (tests/gpu/trial) fits the rest of the tree. No GPU is needed here."""

import py_compile
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from egpu.adapters import native
from support.repository import ROOT, files, text

TRIAL: Final = "tests/gpu/trial"
PYTHON: Final = sorted(each for each in files() if each.startswith(f"{TRIAL}/") and each.endswith(".py"))


def test_files_that_are_packed_exist() -> None:
    script = text(f"{TRIAL}/pack.sh")
    copied = re.search(r'cp "\$source"/\{(.+)\} "\$gpu"/', script)
    assert copied is not None
    named = [*copied[1].split(","), *re.findall(r'"\$gpu"/(programs/\w+\.\w+)', script)]
    assert len(named) > 4
    assert not [each for each in named if f"{TRIAL}/{each}" not in files()]
    assert (ROOT / "requirements/run.txt").is_file()


def test_native_parts_that_are_packed_exist() -> None:
    parts = re.search(r'(?s)\nparts="(.+?)"', text(f"{TRIAL}/pack.sh"))
    assert parts is not None
    assert len(parts[1].split()) > 10
    assert all(native.path(part).exists() for part in parts[1].split())


def test_programs_in_c_compile(tmp_path: Path) -> None:
    include = next(
        each for each in sys.path for each in Path(each).glob("nvidia/*/include") if (each / "nvml.h").exists()
    )
    command = ["bash", f"{TRIAL}/compile.sh", f"{TRIAL}/programs", ".", str(include), str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    used = subprocess.run([tmp_path / "bench"], capture_output=True, check=False, timeout=20)
    assert used.returncode == 2, "trial.sh sees by this status that the packed programs run"


@pytest.mark.parametrize("file", PYTHON)
def test_python_compiles(file: str, tmp_path: Path) -> None:
    py_compile.compile(str(ROOT / file), cfile=str(tmp_path / "compiled"), doraise=True)


def test_the_main_run_consists_of_listed_steps(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / TRIAL / "trial.py", "--list"]
    run = subprocess.run(command, env={"OUT": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=60)
    groups = {line.split()[1]: line.split()[0] for line in run.stdout.splitlines()}
    assert all(line.partition(" s  ")[2] for line in run.stdout.splitlines()), "each step says what it tries"
    main = re.search(r"(?s)\nMAIN = \((.+?)\)", text(f"{TRIAL}/trial.py"))
    assert main is not None
    assert sorted(re.findall(r'"([\w-]+)"', main[1])) == sorted(
        name for name, group in groups.items() if group == "main"
    )
