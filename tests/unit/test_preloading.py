"""Nothing is started where the loader would leave the interposer out; and what a slice of a real card is told."""

import os
import struct
import types
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from egpu.adapters import native
from egpu.adapters.cards.nvml import CardProcess, CardReading
from egpu.adapters.executors import process
from egpu.adapters.executors.confinement import Confinement
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.local.book import Book, LocalSlice
from egpu.adapters.local.holders import SliceRequest
from egpu.adapters.local.run import LocalMachine, plan
from egpu.adapters.programs.preloading import check_program
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import Slots
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.owners import Owner
from egpu.apps.agent.slots.preparer import Preparer
from egpu_base.errors import NotSupported
from egpu_base.system.processes import Process
from support.objects import slice_pod

UUID = "GPU-00000000-0000-0000-0000-000000000001"
INTERPOSER = native.path("libegpu-interposer.so")


class Nobody(msgspec.Struct):
    """Whose executor it is."""


class Cards:
    """Three cards, on no machine; ours is the third."""

    def read(self) -> tuple[CardReading, ...]:
        return (CardReading(uuid=UUID, index=2, minor=5, model="T4", memory_mib=16384, compute_capability="7.5"),)

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]:
        return {}

    def used_bytes(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None: ...


@pytest.fixture
def local(tmp_path: Path) -> LocalSlice:
    (card,) = Cards().read()
    request = SliceRequest(core=50, memory_mib=1024)
    return Book(tmp_path / "book").take([card], request, command="true", processes=(Process.of(os.getpid()),))


@pytest.fixture
def noexec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file system is mounted noexec."""

    def mounted(_path: Path) -> types.SimpleNamespace:
        return types.SimpleNamespace(f_flag=os.ST_NOEXEC)

    monkeypatch.setattr(os, "statvfs", mounted)


def real(local: LocalSlice, program: str) -> dict[str, str]:
    """The variables with which `egpu run` starts a program on a real card."""
    machine = LocalMachine("of this host", Book(local.directory.parent), None)
    arguments = plan(machine, local, [program]).arguments
    return dict(arguments[place + 1].split("=", 1) for place, argument in enumerate(arguments) if argument == "--env")


def test_a_program_is_told_its_card_by_a_number(local: LocalSlice) -> None:
    """Some take int() of it. NVML counts in the order of the bus, so CUDA has to."""
    told = real(local, "true")
    assert (told["CUDA_VISIBLE_DEVICES"], told["CUDA_DEVICE_ORDER"]) == ("2", "PCI_BUS_ID")


@pytest.mark.usefixtures("noexec")
def test_a_run_does_not_start_outside_its_slice(local: LocalSlice) -> None:
    with pytest.raises(NotSupported, match=rf"{INTERPOSER.resolve().parent} is on a file system mounted noexec"):
        real(local, "true")


@pytest.mark.usefixtures("noexec")
def test_an_executor_does_not_start_outside_its_slice(tmp_path: Path) -> None:
    record = ExecutorRecord(
        name="one",
        cards=(CardShare(uuid=UUID, index=2, minor=5, core=50, memory_mib=1024),),
        minors={UUID: 5},
        owner=Nobody(),
    )
    with pytest.raises(NotSupported, match="mounted noexec"):
        process.start(tmp_path, record, None, Confinement())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("noexec")
async def test_a_container_does_not_start_outside_its_slice(tmp_path: Path) -> None:
    inventory = Inventory(Cards(), interval_seconds=1)
    await inventory.refresh()
    devices, slots = DeviceFiles(tmp_path / "dev", tmp_path), Slots(tmp_path / "slots")
    preparer = Preparer(
        slots=slots, state_dir=tmp_path, devices=devices, inventory=inventory,
        specs=SlotSpecs([tmp_path / "cdi"], devices), injection=Injection("never"),
    )  # fmt: skip
    share = CardShare(uuid=UUID, index=2, minor=5, core=50, memory_mib=1024)
    allocation = ContainerAllocation(provisioner="elasticgpu.io/vcuda", mode="shared", cards=(share,))
    with pytest.raises(NotSupported, match="mounted noexec"):
        await preparer.prepare("7", Owner(slice_pod("p"), "app", allocation))
    assert not slots.path("7").exists()


def test_a_program_for_another_processor_does_not_start(tmp_path: Path) -> None:
    header = bytearray(INTERPOSER.read_bytes()[:64])
    same, other, script = tmp_path / "same", tmp_path / "other", tmp_path / "script"
    same.write_bytes(header)
    struct.pack_into("<H", header, 18, 243)  # RISC-V
    other.write_bytes(header)
    script.write_text("#!/bin/sh\n")
    for program in (same, other, script):
        program.chmod(0o755)
    for program in (same, script, Path("no-such-program"), Path("true")):
        check_program(INTERPOSER, str(program))
    with pytest.raises(NotSupported, match="other is for another processor"):
        check_program(INTERPOSER, str(other))


def test_a_run_of_a_program_for_another_processor_is_refused(local: LocalSlice, tmp_path: Path) -> None:
    header = bytearray(INTERPOSER.read_bytes()[:64])
    header[4] = 3 - header[4]  # 32 bits for 64, or the other way round
    (tmp_path / "program").write_bytes(header)
    (tmp_path / "program").chmod(0o755)
    with pytest.raises(NotSupported, match="is for another processor or word size"):
        real(local, str(tmp_path / "program"))
