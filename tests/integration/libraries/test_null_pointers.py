"""A NULL where a library wants a pointer is an error of the call, and not the end of the program."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from egpu_sim import native

LIBRARIES = (
    "libcudnn.so.9",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcusolver.so.12",
    "libcufft.so.12",
    "libcurand.so.10",
)
DESCRIPTION = Path(__file__).parents[3] / "native/libraries/cudnn.yaml"
POINTERS = ("use", "optional", "create", "scale", "device", "out", "in", "got", "there", "values", "set", "destroy")
"""Words of the description for parameters that are pointers."""
MOST_PARAMETERS = 40
CALLS = """
import ctypes, json, os, signal, sys

library = ctypes.CDLL(sys.argv[1])
for line in sys.stdin:
    name, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        room = ctypes.create_string_buffer(1 << 16)  # a descriptor that is not set, or where a result goes
        values = {"p": ctypes.c_void_p(0), "s": ctypes.byref(room), "i": 1, "d": ctypes.c_double(1)}
        getattr(library, name)(*(values[one] for one in arguments))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(json.dumps([name, arguments, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0]), flush=True)
"""
"""Calls each function of its input in a child of its own."""


def crashes(library: str, calls: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The calls that end a program by a signal, with the signal's name. Arguments: p NULL, s set, i and d numbers."""
    path = native.path(f"sim/{library}")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(path.parent)}
    done = subprocess.run(
        [sys.executable, "-c", CALLS, path],
        input="".join(json.dumps(call) + "\n" for call in calls),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=300,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == len(calls)
    return [(f"{name}({arguments})", signal.Signals(ended).name) for name, arguments, ended in answers if ended]


def exported(library: str) -> list[str]:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", native.path(f"sim/{library}")], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r" T (\w+)", listed)


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_function_crashes_without_any_pointer(library: str) -> None:
    assert crashes(library, [(name, MOST_PARAMETERS * "p") for name in exported(library)]) == []


def parameters(description: str) -> str:
    """The kinds of a function's parameters: s for a pointer, i and d for numbers."""
    _, _, described = description.rpartition(";")
    words = [re.sub(r"\\(.*?\\)", "", one).split() for one in described.split(", ")]
    kinds = [one[0] for one in words if one]
    return "".join("s" if kind in POINTERS else "d" if kind in ("double", "float") else "i" for kind in kinds)


def test_no_function_of_cudnn_crashes_without_one_of_its_pointers() -> None:
    """The others are there: descriptors as they are after their creation, and room for results."""
    described = yaml.safe_load(DESCRIPTION.read_text())["functions"]
    calls: list[tuple[str, str]] = []
    for name in sorted(described.keys() & set(exported("libcudnn.so.9"))):
        kinds = parameters(described[name])
        if "Destroy" in name or "Backend" in name:
            continue  # the room is no descriptor that was allocated
        calls += [(name, f"{kinds[:at]}p{kinds[at + 1 :]}") for at, kind in enumerate(kinds) if kind == "s"]
    assert len(calls) > 200
    assert crashes("libcudnn.so.9", calls) == []
