"""Run a pinned part of other packages' own tests on a simulated card; the number that passes may not fall.

    scripts/package_suites.py numba --python PYTHON
    scripts/package_suites.py cupy --python PYTHON --source DIR [--cuda /usr/local/cuda]

PYTHON is an interpreter that has the package (`requires` in scripts/package_suites.yaml has its version and its needs).
It is not a requirement of this repository, since the packages are large. DIR is CuPy's source of that version: the
package lacks its tests. CuPy's package has NVIDIA's runtime linked in, which runs only over NVIDIA's driver. So its one
module that calls the runtime is compiled here, from DIR, against ours. The rest is the package's own.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from egpu.adapters import native
from egpu_sim.machines.machine import destroy, open_machine

ROOT: Final = Path(__file__).resolve().parents[1]
SUITES: Final = Path(__file__).with_suffix(".yaml")
BUILT: Final = ROOT / "build" / "package_suites"
CARD: Final = ("--simulate", "A100-80G", "--memory", "8GiB")
CUPY_RUNTIME: Final = "cupy_backends.cuda.api.runtime"

# pytest, after the module that was compiled here in place of the package's (a plug-in of pytest imports CuPy).
RUNNER: Final = f"""
import importlib.util, os, sys
name = {CUPY_RUNTIME!r}
spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(__file__), "runtime.so"))
sys.modules[name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


class SuiteError(Exception):
    """Something is missing, or a need of the tests failed; the message says what."""


@dataclass(frozen=True)
class Tally:
    """The numbers of tests that ran, without skipped ones, and that passed."""

    passed: int
    ran: int

    @property
    def percent(self) -> float:
        return 100 * self.passed / self.ran if self.ran else 0.0


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; return the exit code."""
    suites: dict[str, Any] = yaml.safe_load(SUITES.read_text())
    parser = argparse.ArgumentParser(description="Run other packages' tests on a simulated card.")
    parser.add_argument("suite", choices=sorted(suites))
    parser.add_argument("--python", required=True, type=Path, help="an interpreter that has the package")
    parser.add_argument("--source", type=Path, metavar="DIR", help="CuPy's source, of the package's version")
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"), help="where CUDA's headers are")
    options = parser.parse_args(arguments)
    suite = suites[options.suite]
    try:
        check_versions(options.python, suite["requires"])
        if options.suite == "numba":
            output = run_numba(options.python, suite)
        else:
            output = run_cupy(options.python, suite, source=options.source, cuda=options.cuda)
        found = tally(output)
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.suite}: {found.passed} of {found.ran} passed ({found.percent:.1f} %)")
    return verdict(found, suite["passed"])


def verdict(found: Tally, best: int) -> int:
    """Return the exit code, after a line if the figure of package_suites.yaml differs from the result."""
    if found.passed < best:
        print(f"{best} passed before: fix the failures", file=sys.stderr)
        return 1
    if found.passed > best:
        print(f"{best} passed before: write {found.passed} into {SUITES.name}")
    return 0


def tally(output: str) -> Tally:
    """Return the tally of the last lines of pytest or unittest. Raises SuiteError: neither got to its end."""
    ran = re.search(r"^Ran (\d+) tests? in ", output, re.MULTILINE)
    if ran:
        counts = {word: int(n) for word, n in re.findall(r"([a-z][a-z ]*)=(\d+)", output[ran.end() :])}
        skipped = counts.get("skipped", 0)
        wrong = sum(counts.get(word, 0) for word in ("failures", "errors", "unexpected successes"))
        return Tally(passed=int(ran[1]) - skipped - wrong, ran=int(ran[1]) - skipped)
    summary = re.search(r"^(?:=+ )?((?:\d+ \w+(?:, )?)+) in [\d.]+s", output, re.MULTILINE)
    if summary is None:
        raise SuiteError(f"the tests did not get to their end:\n{output[-2000:]}")
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", summary[1])}
    passed = counts.get("passed", 0) + counts.get("xfailed", 0)
    wrong = sum(counts.get(word, 0) for word in ("failed", "error", "errors", "xpassed"))
    return Tally(passed=passed, ran=passed + wrong)


def check_versions(python: Path, requires: Mapping[str, str]) -> None:
    """Check the interpreter's packages. Raises SuiteError: they are not those of the figures."""
    for package, version in requires.items():
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        found = done.stdout.strip() or "none"
        if found != version:
            raise SuiteError(f"{python} has {package} {found}; the figures are of {version}")


def run_numba(python: Path, suite: Mapping[str, Any]) -> str:
    """Run numba-cuda's own tests, by module; return their output."""
    modules = [f"numba.cuda.tests.cudapy.test_{name}" for name in suite["tests"]]
    return on_a_card([str(python), "-W", "ignore", "-m", "unittest", *modules], env={})


def run_cupy(python: Path, suite: Mapping[str, Any], *, source: Path | None, cuda: Path) -> str:
    """Run CuPy's own tests, by file; return their output."""
    if source is None or not (source / "tests" / "cupy_tests").is_dir():
        raise SuiteError("give --source, a folder with CuPy's source")
    build_cupy_runtime(python, source, cuda)
    pytest = [str(BUILT / "run_pytest.py"), "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    tests = [f"cupy_tests/{name}" for name in suite["tests"]]
    left_out = f"not ({suite['left_out']})"
    command = [str(python), *pytest, "-W", "ignore", "--tb=line", "-k", left_out, *tests]
    env = {
        "CUDA_PATH": str(cuda),
        "CUPY_COMPILE_WITH_PTX": "1",
        "CUPY_ACCELERATORS": "",  # CUB is compiled kernels
        "CUPY_CACHE_DIR": str(BUILT / "cache"),
        "CUPY_TEST_GPU_LIMIT": "1",  # the slice is of one card
    }
    return on_a_card(command, env=env, directory=source / "tests")


def build_cupy_runtime(python: Path, source: Path, cuda: Path) -> None:
    """Compile CuPy's module of the runtime's API with our library, and write a runner for pytest with it."""
    BUILT.mkdir(parents=True, exist_ok=True)
    module = f"{CUPY_RUNTIME.replace('.', '/')}.pyx"
    defines = "CUPY_CUDA_VERSION=13000,CUPY_HIP_VERSION=0,CUPY_USE_CUDA_PYTHON=0,CUPY_CUFFT_STATIC=0"
    include = "import sysconfig, numpy; print(sysconfig.get_paths()['include'], numpy.get_include())"
    found = subprocess.run([python, "-c", include], capture_output=True, text=True, check=True).stdout.split()
    folders = [
        *found,
        *(str(source / each) for each in ("", "cupy_backends", Path(module).parent)),
        str(cuda / "include"),
    ]
    steps: list[list[str]] = [
        [str(python), "-m", "cython", "-3", "--cplus", "-E", defines, module, "-o", str(BUILT / "runtime.cpp")],
        ["c++", "-O1", "-shared", "-fPIC", "-w", '-DCYTHON_EXTERN_C=extern "C"', *(f"-I{each}" for each in folders),
         str(BUILT / "runtime.cpp"), str(native.path("runtime/libcudart.so.13")), "-o", str(BUILT / "runtime.so")],
    ]  # fmt: skip
    for step in steps:
        done = subprocess.run(step, cwd=source, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SuiteError(f"CuPy's runtime module was not compiled:\n{done.stderr[-2000:]}")
    (BUILT / "run_pytest.py").write_text(RUNNER)


def on_a_card(command: list[str], *, env: Mapping[str, str], directory: Path | None = None) -> str:
    """Run the command in a slice of a simulated card of its own; show and return its output."""
    with tempfile.TemporaryDirectory(prefix="egpu-") as state:
        egpu = [sys.executable, "-m", "egpu", "run", "--state-dir", state, *CARD, "--", *command]
        child = subprocess.Popen(
            egpu,
            cwd=directory or state,
            env=os.environ | {"EGPU_SIM_VERBOSE": "0"} | dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert child.stdout is not None
        lines: list[str] = []
        for line in child.stdout:
            lines.append(line)
            print(line, end="", flush=True)
        child.wait()
        for description in Path(state).glob("*/machine/machine.json"):
            destroy(open_machine(description.parent))
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
