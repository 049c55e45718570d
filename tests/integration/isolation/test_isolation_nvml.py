"""NVML's utilisation inside a slice is the slice's: its use of its own share, and its own processes only."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters import native
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, machine
from support.slices import LIBRARY, MIB, SOURCES, compile_c, uuid

READER = """
import ctypes
context()
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
class Info(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint),
                ("seen", ctypes.c_ulonglong), ("array", ctypes.c_void_p)]
def processes():
    try:
        return sorted([s.pid, s.smUtil] for s in n.nvmlDeviceGetProcessUtilization(card, 0))
    except n.NVMLError as error:
        return error.value
def listed(version=(1 << 24) | ctypes.sizeof(Info)):
    info = Info(version, 0, 0, None)
    code = n.nvmlLib.nvmlDeviceGetProcessesUtilizationInfo(card, ctypes.byref(info))
    return [code, info.count]
while True:
    rates = n.nvmlDeviceGetUtilizationRates(card)
    say({"pid": os.getpid(), "gpu": rates.gpu, "memory": rates.memory, "processes": processes(),
         "listed": listed(), "wrong": listed(7)[0]})
    wait()
"""
BUSY = """
context()
f = function(STORE.replace("DURATION", "2000"), "store")
at = ok(d.cuMemAlloc(4))
say(os.getpid())
while True:
    ok(launch(f, 1, 1, at, (7, ctypes.c_uint32)))
    ok(d.cuCtxSynchronize())
"""


class Box:
    """A slice of the machine's only card."""

    def __init__(self, on: Machine, directory: Path, core: int) -> None:
        directory.mkdir()
        self.on, self.directory = on, directory
        (directory / LIBRARY).symlink_to(native.path(LIBRARY))
        policy = DevicePolicy(
            uuid=on.cards[0].uuid, minor=0, mode=Mode.CAP, core_ppm=core * 10_000, memory_limit_bytes=512 * MIB
        )
        write_policy(directory / "policy", [policy])
        create_usage(directory / "usage")

    def run(self, code: str) -> Program:
        return Program(self.on, code, {"LD_PRELOAD": str(self.directory / LIBRARY)})


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "T4") as made:
        yield made


def reading(reader: Program) -> dict[str, Any]:
    reader.go()
    return reader.hear()


def test_utilisation_is_the_slices_and_the_processes_are_its_own(on: Machine, tmp_path: Path) -> None:
    mine, other = Box(on, tmp_path / "mine", 40), Box(on, tmp_path / "other", 40)
    with mine.run(READER) as reader, other.run(READER) as stranger, mine.run(BUSY) as busy:
        pid = busy.hear()
        found, theirs = reader.hear(), stranger.hear()
        for _ in range(3000):  # as many readings as it takes until the average has caught up
            found = reading(reader)
            if found["gpu"] > 0 and found["processes"] != 6 and found["processes"][0][1] > 0:
                break
        assert found["gpu"] > 0
        assert 0 <= found["memory"] <= 100
        ((only, percent),) = found["processes"]
        assert (only, percent > 0) == (pid, True), "who only looks is not in the list"
        assert found["listed"] == [7, 1], "insufficient size, and how many there are"
        assert found["wrong"] == 25, "the driver's own answer to a version that it does not know"
        theirs = reading(stranger)
        assert (theirs["gpu"], theirs["memory"]) == (0, 0), "another slice's work is none of its business"
        assert theirs["processes"] == 6, "not found: nobody of its own"


def test_a_slice_whose_time_is_not_limited_says_that_it_does_not_know(on: Machine, tmp_path: Path) -> None:
    with Box(on, tmp_path / "whole", 100).run(READER) as reader:
        assert reader.hear()["processes"] == 3, "not supported: time is not measured where it is not limited"


STRANGERS = """
import ctypes, json
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Detail(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint),
                ("compute", ctypes.c_uint), ("protected", ctypes.c_ulonglong)]
class Details(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("mode", ctypes.c_uint), ("count", ctypes.c_uint),
                ("list", ctypes.POINTER(Detail))]
class Info(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint),
                ("compute", ctypes.c_uint)]
class Sample(ctypes.Structure):
    _fields_ = [("time", ctypes.c_ulonglong), ("value", ctypes.c_ulonglong)]
def mps(card):
    count, list = ctypes.c_uint(4), (Info * 4)()
    return [nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(card, ctypes.byref(count), list), count.value]
def details(card, mode):
    found = Details((1 << 24) | ctypes.sizeof(Details), mode, 4, (Detail * 4)())
    return [nvml.nvmlDeviceGetRunningProcessDetailList(card, ctypes.byref(found)), found.count]
def sampled(card):
    kind, count, list = ctypes.c_int(), ctypes.c_uint(4), (Sample * 4)()
    code = nvml.nvmlDeviceGetSamples(card, 1, 0, ctypes.byref(kind), ctypes.byref(count), list)
    return [code, count.value, list[0].value]
def memory(card):
    found = (ctypes.c_ulonglong * 3)()
    nvml.nvmlDeviceGetMemoryInfo(card, found)
    return [each >> 20 for each in found]
cards = [ctypes.c_void_p(1), ctypes.c_void_p(2)]
def seen(card):
    return [mps(card), [details(card, mode) for mode in range(4)], sampled(card), memory(card)]
print(json.dumps([seen(card) for card in cards]))
"""


def test_what_nvml_says_of_strangers_reaches_no_slice(tmp_path: Path) -> None:
    shared = ("-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    compile_c(tmp_path / "libnvidia-ml.so.1", *shared, SOURCES / "fake_nvml.c", flags=())
    (tmp_path / LIBRARY).symlink_to(native.path(LIBRARY))
    line = DevicePolicy(uuid=uuid("1"), minor=0, mode=Mode.CAP, core_ppm=400_000, memory_limit_bytes=512 * MIB)
    write_policy(tmp_path / "policy", [line])
    create_usage(tmp_path / "usage")
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "LD_PRELOAD": str(tmp_path / LIBRARY)}
    done = subprocess.run([sys.executable, "-c", STRANGERS], env=environment, capture_output=True, check=True)
    nobody = [[0, 0], [[0, 0]] * 4, [0, 1, 0]]
    mine, another = json.loads(done.stdout)
    assert mine == [*nobody, [512, 512, 0]]
    assert another == [*nobody, [16384, 0, 16384]], "all of it there, and all of it taken"
