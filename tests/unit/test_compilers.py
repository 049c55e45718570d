"""What programs that compile kernels find in their environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egpu.laptop.machines import making_ptx
from egpu_base import compilers

XLA = "--xla_gpu_autotune_level"


def test_programs_whose_cards_are_elsewhere_get_the_plug_ins_and_nothing_else() -> None:
    assert compilers.plugged({}) == {"PYTHONPATH": str(compilers.PLUGINS)}
    assert compilers.plugged({"PYTHONPATH": "/a:/b"}) == {"PYTHONPATH": f"{compilers.PLUGINS}:/a:/b"}


def test_for_simulated_cards_compilers_are_led_to_ptx() -> None:
    given = making_ptx({"PATH": "/usr/bin"})
    assert Path(given["TRITON_PTXAS_PATH"]).name == "ptxas"
    assert given["TRITON_PTXAS_BLACKWELL_PATH"] == given["TRITON_PTXAS_PATH"]
    assert Path(given["PATH"].split(":")[0], "ptxas").exists()
    assert given["PATH"].endswith(":/usr/bin")
    assert given["NUMBA_CUDA_MEMORY_MANAGER"] == "egpu_numba"
    assert (compilers.PLUGINS / "egpu_numba.py").exists()
    assert given["XLA_FLAGS"] == f"{XLA}=0"
    assert given["TORCHINDUCTOR_SHAPE_PADDING"] == "0"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TRITON_PTXAS_PATH", "/mine", "/mine"),
        ("NUMBA_CUDA_MEMORY_MANAGER", "rmm", "rmm"),
        ("XLA_FLAGS", "--a=1", f"--a=1 {XLA}=0"),
        ("XLA_FLAGS", f"{XLA}=2 --a", f"{XLA}=2 --a"),
    ],
)
def test_what_is_said_already_stays(name: str, value: str, expected: str) -> None:
    assert making_ptx({name: value})[name] == expected


@pytest.mark.parametrize("simulated", [True, False])
def test_jax_finds_a_card_and_the_first_assembler_of_path(tmp_path: Path, *, simulated: bool) -> None:
    """By a JAX of three lines: what the plug-in sets is what JAX asks."""
    package = tmp_path / "jax" / "_src"
    (package / "lib").mkdir(parents=True)
    for folder in (tmp_path / "jax", package):
        (folder / "__init__.py").touch()
    (package / "hardware_utils.py").write_text("def has_visible_nvidia_gpu(): return False\n")
    (package / "lib" / "__init__.py").write_text("cuda_path = '/its/own'\n")
    program = """
import importlib, jax_plugins, pkgutil
from jax._src import hardware_utils, lib
for found in pkgutil.iter_modules(jax_plugins.__path__, "jax_plugins."):
    importlib.import_module(found.name).initialize()
print(hardware_utils.has_visible_nvidia_gpu(), lib.cuda_path)
"""
    env = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    env |= making_ptx(env) if simulated else compilers.plugged(env)
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "None" if simulated else "/its/own"]


def library(folder: Path, name: str, number: int) -> Path:
    """A shared library of that name, whose function `number` gives a number."""
    folder.mkdir()
    (source := folder / "source.c").write_text(f"int number(void) {{ return {number}; }}")
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, source]
    subprocess.run(command, check=True)
    return folder / name


def say(env: dict[str, str], program: str) -> str:
    env = {"PATH": os.environ["PATH"], **env, **compilers.plugged(env)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("name", "expected"), [("libcublasLt.so.13", 1), ("libcudart.so.12", 1), ("libother.so.1", 2)])
def test_a_package_that_opens_a_cuda_library_by_path_gets_the_preloaded_one(
    tmp_path: Path, name: str, expected: int
) -> None:
    """For CUDA libraries that are carried, and for no others."""
    ours, theirs = library(tmp_path / "ours", name, 1), library(tmp_path / "theirs", name, 2)
    program = f"import ctypes; print(ctypes.CDLL({str(theirs)!r}, mode=ctypes.RTLD_GLOBAL).number())"
    assert say({"LD_PRELOAD": str(ours)}, program) == str(expected)
    assert say({}, program) == "2", "nothing is loaded: the program's own"
    missing = say({}, f"import ctypes\ntry: ctypes.CDLL('/nowhere/{name}')\nexcept OSError as error: print(error)")
    assert f"/nowhere/{name}" in missing


def test_a_user_s_own_sitecustomize_runs_as_before(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.seen = __file__")
    program = "import sys, sitecustomize; print(sys.seen, sitecustomize.__file__)"
    own = str(tmp_path / "sitecustomize.py")
    assert say({"PYTHONPATH": str(tmp_path)}, program).split() == [own, own]
