"""A simulated machine's file has one layout in C (sim_machine.h) and Python: C reads by name what Python writes."""

import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines import faults
from egpu_sim.machines.clock import Clock
from egpu_sim.machines.machine import Machine, card_uuid
from egpu_sim.machines.models import profiles
from egpu_sim.machines.state import (
    CARD_BYTES,
    FIFO,
    MANUAL_CLOCK,
    MANUAL_START_NS,
    MAX_CARDS,
    SimulatedCard,
    has_users,
    read_header,
    write_state,
)

HEADER = Path(__file__).parents[2] / "native/gpu/sim_machine.h"
MODELS: Final = ("A100-80G", "T4")

# Each field of both structs, as `NAME VALUE`; and a lock as a process of the machine holds it.
PRINT_MACHINE: Final = r"""
#define _GNU_SOURCE
#include "sim_machine.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define NUMBER(of, field) printf(#field " %.9g\n", (double)(of)->field)
#define TEXT(of, field) printf(#field " %s\n", (of)->field)
int main(int argc, char **argv) {
    (void)argc;
    int fd = open(argv[1], O_RDWR);
    struct stat is;
    fstat(fd, &is);
    char *bytes = mmap(NULL, (size_t)is.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct sim_header *h = (struct sim_header *)bytes;
    struct sim_card *c = (struct sim_card *)(bytes + h->cards_offset), *t = c + 1;
    printf("magic %d\n", memcmp(h->magic, SIM_MAGIC, 8));
    printf("limits %d %d %d %zu %d %d\n", SIM_MAX_CARDS, SIM_MAX_PROCESSES, SIM_MAX_RECORDS, sizeof *c,
           SIM_FLAG_MANUAL_CLOCK | SIM_FLAG_FIFO, (int)(SIM_CHUNK_BYTES >> 20));
    printf("room %d %d %d\n",
           h->cards_offset + SIM_MAX_RECORDS * sizeof *c <= h->processes_offset,
           h->processes_offset + SIM_MAX_PROCESSES * sizeof(struct sim_process) <= h->shared_offset,
           h->shared_offset + SIM_MAX_SHARED * sizeof(struct sim_shared) <= c->chunk_offset);
    uint64_t chunks = (c->memory_bytes + c->driver_bytes) >> SIM_CHUNK_SHIFT;
    printf("chunks %d\n", c->chunk_offset + 4 * chunks <= t->chunk_offset);
@FIELDS@
    for (int i = 0; i < SIM_MAX_MIG_PROFILES; i++)
        printf("mig %u %u %u %u %u %u %u %u %u %u %u %u %u %u\n", c->mig_profiles[i].profile, c->mig_profiles[i].id,
               c->mig_profiles[i].slices, c->mig_profiles[i].gigabytes, c->mig_profiles[i].media_extensions,
               c->mig_profiles[i].memory_chunks, c->mig_profiles[i].sm_count, c->mig_profiles[i].size,
               c->mig_profiles[i].starts, c->mig_profiles[i].instances, c->mig_profiles[i].copy_engines,
               c->mig_profiles[i].decoders, c->mig_profiles[i].jpegs, c->mig_profiles[i].ofas);
    for (unsigned i = 0; i < t->fault_count; i++) printf("fault %u %u\n", t->faults[i].kind, t->faults[i].data);
    h->clock_sleepers = 5;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_LOCK_PROCESS + 7, .l_len = 1};
    printf("locked %d\n", fcntl(fd, F_OFD_SETLK, &lock));
    fflush(stdout);
    return getchar() == EOF;
}
"""


def fields(text: str, name: str) -> dict[str, str]:
    """The scalar fields and texts of a struct, with their types."""
    found = re.search(rf"struct {name} {{\n(.*?)\n}};", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL), re.DOTALL)
    assert found
    listed = re.findall(r"^\s*(?:_Atomic )?(\w+) (\w+(?:, \w+)*)(\[\w+\])?;", found[1], re.MULTILINE)
    return {
        each: type_
        for type_, names, length in listed
        for each in names.split(", ")
        if not each.startswith("pad") and (type_ == "char" or not length)
    }


def printing(text: str) -> str:
    lines: list[str] = []
    for at, name in (("h", "sim_header"), ("t", "sim_card")):
        for each, type_ in fields(text, name).items():
            if each != "magic":
                lines.append(f"    {'TEXT' if type_ == 'char' else 'NUMBER'}({at}, {each});")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is part of the build"
    folder = tmp_path_factory.mktemp("layout")
    (folder / "print.c").write_text(PRINT_MACHINE.replace("@FIELDS@", printing(HEADER.read_text())))
    subprocess.run([compiler, "-std=c11", f"-I{HEADER.parent}", "-o", folder / "print", folder / "print.c"], check=True)
    return folder / "print"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    cards = tuple(
        SimulatedCard(
            index=index,
            minor=index + 3,
            uuid=card_uuid("somewhere", index),
            profile=model,
            model=profiles()[model].name,
            memory_mib=profiles()[model].memory_mib - profiles()[model].driver_mib,
            driver_mib=profiles()[model].driver_mib,
            context_mib=profiles()[model].context_mib,
            pci_bus_id="",
            device=tmp_path / str(index),
        )
        for index, model in enumerate(MODELS)
    )
    made = Machine("somewhere", tmp_path, tmp_path, tmp_path, tmp_path / "state", cards)
    write_state(
        made.state, "somewhere", cards, directory=tmp_path, cuda_version=13050, timeslice_us=700,
        flags=MANUAL_CLOCK | FIFO,
    )  # fmt: skip
    return made


def test_c_reads_what_python_wrote_and_locks_what_python_looks_at(program: Path, machine: Machine) -> None:
    for fault in (faults.Xid(31), faults.EccError(corrected=True, count=3), faults.EccError(count=2)):
        faults.inject(machine, 1, fault)
    faults.inject(machine, 1, faults.FallOffBus())
    Clock(machine).advance(1234)
    running = subprocess.Popen([program, machine.state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    lines = list(iter(running.stdout.readline, "locked 0\n"))
    assert has_users(machine.state)
    assert Clock(machine).sleepers() == 5
    running.communicate("\n")
    assert not has_users(machine.state)
    told = dict(line.rstrip("\n").split(" ", 1) for line in lines if not line.startswith(("mig ", "fault ")))

    header = read_header(machine.state)
    assert header is not None
    assert header.creator is not None
    card, profile = machine.cards[1], profiles()[MODELS[1]]
    assert told.pop("limits") == f"{MAX_CARDS} 1024 240 {CARD_BYTES} {MANUAL_CLOCK | FIFO} 2"
    assert (told.pop("magic"), told.pop("room"), told.pop("chunks")) == ("0", "1 1 1", "1")
    texts = {
        "node_name": "somewhere", "driver_version": "580.95.05", "directory": str(machine.directory),
        "name": profile.name,
    }  # fmt: skip
    assert {name: told.pop(name) for name in texts} == texts
    size = machine.state.stat().st_size
    expected: dict[str, float] = {
        "version": 5, "header_bytes": 4096, "card_count": 2, "max_processes": 1024, "cards_offset": 4096,
        "file_bytes": size, "created_unix_ns": header.created_unix_ns, "cuda_version": 13050,
        "flags": MANUAL_CLOCK | FIFO, "creator_pid": header.creator[0], "creator_start_ticks": header.creator[1],
        "creator_pid_namespace": header.creator[2], "writer": 0, "clock_ns": MANUAL_START_NS + 1234,
        "clock_changes": 1, "clock_sleepers": 0,
        "index": 1, "minor": 4, "pci_domain": 0, "pci_bus": 15, "pci_device": 0,
        "pci_device_id": profile.pci_device_id, "pci_subsystem_id": profile.pci_subsystem_id, "numa_node": 0,
        "memory_bytes": card.memory_mib << 20, "chunk_count": card.memory_mib // 2,
        "context_chunks": (card.context_mib + 1) // 2, "cc_major": 7, "cc_minor": 5,
        "shared_per_block": profile.shared_kib_per_block << 10,
        "shared_per_block_optin": profile.shared_kib_per_block_optin << 10,
        "shared_per_sm": profile.shared_kib_per_sm << 10, "l2_bytes": profile.l2_kib << 10,
        "power_idle_mw": profile.power_idle_watts * 1000, "power_limit_mw": profile.power_limit_watts * 1000,
        "power_min_mw": profile.power_min_watts * 1000, "temperature_idle_c": profile.temperature_idle_celsius,
        "temperature_slowdown_c": profile.temperature_slowdown_celsius, "ecc": 1, "mig_capable": 0, "brand": 2,
        "architecture": 6, "memory_bandwidth": profile.memory_gbytes_per_second * 10**9,
        "pcie_bandwidth": 985 * profile.pcie_width * 10**6, "timeslice_ns": 700_000,
        "driver_bytes": card.driver_mib << 20, "lost": 1, "fault_count": 5, "ecc_corrected": 3, "ecc_uncorrected": 2,
        "utilization_window_ms": profile.utilization_window_ms,
    }  # fmt: skip
    same = set(type(profile).__struct_fields__) & told.keys() - expected.keys()
    expected |= {name: getattr(profile, name) for name in same}
    assert {"sm_count", "fp64_ratio", "sm_clock_mhz", "nvlink_count", "tflops_fp16"} <= same
    wrong = {
        name: (told[name], value)
        for name, value in expected.items()
        if told[name] != f"{struct.unpack('<f', struct.pack('<f', value))[0] if 'tflops' in name else value:.9g}"
    }
    assert not wrong
    # The rest is dynamic, and begins as zeros; or it is a place in the file.
    places = {"processes_offset", "shared_offset", "memory_offset", "chunk_offset"}
    assert {told[name] for name in told.keys() - expected.keys() - places} == {"0"}
    assert all(0 < float(told[name]) < size for name in places)


def test_c_reads_shapes_of_instances_and_faults_that_python_wrote(program: Path, machine: Machine) -> None:
    faults.inject(machine, 1, faults.Xid(31))
    faults.inject(machine, 1, faults.FallOffBus())
    said = subprocess.run([program, machine.state], input="\n", capture_output=True, text=True, check=True).stdout
    shapes = [tuple(map(int, line.split()[1:])) for line in said.splitlines() if line.startswith("mig ")]
    written = profiles()[MODELS[0]].mig
    assert shapes[: len(written)] == [
        (
            one.profile, one.id, one.slices, one.gigabytes, int(one.name.endswith("+me")), one.memory_mib // 2,
            one.sm_count, one.size, sum(1 << start for start in one.starts), one.instances, one.copy_engines,
            one.decoders, one.jpegs, one.ofas,
        )
        for one in written
    ]  # fmt: skip
    assert set(shapes[len(written) :]) <= {(0,) * 14}
    assert [line for line in said.splitlines() if line.startswith("fault ")] == ["fault 1 31", "fault 1 79"]
