"""Memory that several processes of a container share is charged once, and to somebody as long as anybody holds it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.adapters.cards.nvml import CardProcess
from egpu.adapters.slices.overruns import INTERVAL_SECONDS
from egpu.adapters.slices.pages import DevicePolicy, Mode, UsageReader, create_usage, read_policy, write_policy
from egpu.api.allocation import CardShare
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.slots.directories import Slots
from egpu.core.overruns import LOOKS
from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, machine
from support.slices import LIBRARY, MIB, slot_record
from support.ticking import Ticking

SIZE = 64 * MIB
EXPORTER = f"""
context()
pointer = ok(d.cuMemAlloc({SIZE}))
say(ctypes.string_at(ok(d.cuIpcGetMemHandle(pointer)).getPtr(), 64).hex())
wait()
"""
IMPORTER = """
context()
handle = d.CUipcMemHandle()
ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.stdin.readline()), 64)
ok(d.cuIpcOpenMemHandle(handle, 1))
while True:
    say(list(ok(d.cuMemGetInfo())))
    wait()
"""
LIST = """
import json, sys
from pathlib import Path
from egpu.adapters.cards.nvml import NvmlInventory
inventory = NvmlInventory(Path(sys.argv[1]))
inventory.read()
print(json.dumps({uuid: [[p.pid, p.used_bytes] for p in found] for uuid, found in inventory.processes().items()}))
"""


class Nvml:
    """The machine's NVML, asked in a process of its own: the Python package keeps the first library that it loads."""

    def __init__(self, on: Machine) -> None:
        self._library = on.driver_dir / "libnvidia-ml.so.1"

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        done = subprocess.run([sys.executable, "-c", LIST, self._library], check=True, capture_output=True, text=True)
        found: dict[str, list[list[int]]] = json.loads(done.stdout)
        return {uuid: tuple(CardProcess(pid, used) for pid, used in listed) for uuid, listed in found.items()}

    def used_bytes(self) -> dict[str, int]:
        return {}  # it is asked in turn


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "T4") as made:
        yield made


@pytest.fixture
def slots(on: Machine, tmp_path: Path) -> Slots:
    """One container with 512 MiB."""
    slots = Slots(tmp_path / "slots")
    share = CardShare(uuid=on.cards[0].uuid, index=0, minor=0, core=50, memory_mib=512)
    record = slot_record(slots, "one", share)

    def fill(directory: Path) -> None:
        (directory / LIBRARY).symlink_to(native.path(LIBRARY))
        line = DevicePolicy(uuid=share.uuid, minor=0, mode=Mode.CAP, core_ppm=500_000, memory_limit_bytes=512 * MIB)
        write_policy(directory / "policy", [line])
        create_usage(directory / "usage")

    slots.replace(record, fill)
    return slots


def test_what_an_exporter_leaves_behind_is_charged_as_long_as_it_is_held(on: Machine, slots: Slots) -> None:
    place = slots.path("one")
    usage = UsageReader(place / "usage")
    reconciler = MemoryReconciler(slots, Nvml(on), clock=Ticking(INTERVAL_SECONDS))

    def start(code: str) -> Program:
        return Program(on, code, {"LD_PRELOAD": str(place / LIBRARY)})

    def overhead() -> int:
        for _ in range(LOOKS):
            reconciler.step()
        return read_policy(place / "policy").devices[0].overhead_bytes

    with start(EXPORTER) as exporter, start(IMPORTER) as importer:
        handle = exporter.hear()
        assert importer.process.stdin is not None
        importer.process.stdin.write(handle + "\n")
        importer.process.stdin.flush()
        assert importer.hear() == [512 * MIB - SIZE, 512 * MIB], "the exporter pays for both"
        assert overhead() == 0
        exporter.kill()
        for _ in range(200):  # until its account has been taken back
            importer.go()
            free, _total = importer.hear()
            if free == 512 * MIB:
                break
        assert usage.read().devices[0].memory_bytes == 0
        assert overhead() == SIZE, "the importer still holds it"
        importer.go()
        assert importer.hear() == [512 * MIB - SIZE, 512 * MIB]
        importer.kill()
        assert overhead() == 0
