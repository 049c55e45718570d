"""A slice on a driver made for tests: native/tests/interposer's libcuda.so.1, its programs, and the interposer.

EGPU_TEST_SANITIZER=address|thread builds all of it, the interposer included, with that sanitizer (`make sanitize`).
"""

import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.adapters.slices.pages import DevicePolicy, Mode, Usage, UsageReader, create_usage, write_policy
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from support.sanitizers import KIND as SANITIZER
from support.sanitizers import preloaded

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = NATIVE / "tests" / "interposer"
LIBRARY = "libegpu-interposer.so"
MIB = 1 << 20
LIMIT = 256 * MIB
OUT_OF_MEMORY = 2
NOT_PERMITTED = 800
LEDGER_ENTRIES = 256

FLAGS = {
    "": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"),
    "thread": ("-fsanitize=thread",),
}[SANITIZER]


def uuid(digit: str) -> str:
    return "GPU-" + "-".join(digit * length for length in (8, 4, 4, 4, 12))


def cuda_include() -> Path:
    for entry in sys.path:
        for candidate in Path(entry).glob("nvidia/*/include/cuda.h"):
            return candidate.parent
    pytest.fail("cuda.h comes with the nvidia-cuda-runtime wheel of the development requirements")


def compile_c(output: Path, *arguments: object, flags: tuple[str, ...] = FLAGS) -> None:
    compiler = shutil.which("gcc") or "cc"
    common = (
        compiler,
        "-g",
        "-O1",
        f"-I{cuda_include()}",
        f"-I{NATIVE / 'include'}",
        f"-I{NATIVE / 'driver'}",
        f"-I{NATIVE}",
    )
    subprocess.run([*map(str, (*common, *flags, *arguments)), "-pthread", "-o", output], check=True)


def compile_interposer(output: Path, *more: object) -> None:
    """The interposer from its sources, with the sanitizer asked for and `more` arguments.

    The dlsym hook runs before a sanitizer has set itself up, so the file it is in goes without.
    """
    parts = [each for each in sorted((NATIVE / "interposer").glob("**/*.c")) if each.name != "resolve.c"]
    shared = ("-fPIC", "-fvisibility=hidden", "-fno-semantic-interposition")
    hook = output.with_suffix(".resolve.o")
    early = ('-DEGPU_DLSYM_VERSION="GLIBC_2.2.5"',) if SANITIZER == "thread" else ()
    compile_c(hook, *shared, *early, "-c", NATIVE / "interposer" / "resolve.c", flags=())
    driver = NATIVE / "driver" / "driver_table.c"
    table = output.with_suffix(".table.o")
    compile_c(table, *shared, "-c", driver, flags=())
    defs = () if SANITIZER else ("-Wl,-z,defs",)
    common = [NATIVE / "common" / f"{part}.c" for part in ("descriptor", "file", "process")]
    compile_c(output, *shared, "-shared", *defs, "-Wl,-z,now", *parts, *common, hook, table, *more)


def build_driver(directory: Path) -> Path:
    """`directory` with libcuda.so.1, the programs probe and storm, and a library that is linked with the driver."""
    library = ("-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    compile_c(directory / "libcuda.so.1", *library, SOURCES / "fake_libcuda.c")
    compile_c(directory / "liblinked.so", "-fPIC", "-shared", SOURCES / "linked.c", directory / "libcuda.so.1")
    compile_c(directory / "probe", SOURCES / "probe.c")
    compile_c(directory / "storm", SOURCES / "storm.c")
    if SANITIZER:
        compile_interposer(directory / LIBRARY)
    return directory


def slot_record(slots: Slots, name: str, share: CardShare, *, core_limit: int = 0) -> SlotRecord:
    """What the agent keeps of a container that has this share of a card; nothing is written yet."""
    allocation = ContainerAllocation(provisioner="vcuda", mode="shared", cards=(share,), core_limit=core_limit)
    return SlotRecord(
        slot_id=name,
        namespace="default",
        pod=name,
        pod_uid=name,
        container="main",
        generation=slots.next_generation(),
        boot_id="",
        allocation=allocation,
        minors={},
    )


def interposer(driver: Path) -> Path:
    return driver / LIBRARY if SANITIZER else native.path(LIBRARY)


@dataclass
class Slice:
    """A slice directory, and programs started in it. Their end is the owner's business: `close`."""

    driver: Path
    directory: Path
    library: Path | None = None
    children: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def __post_init__(self) -> None:
        (self.directory / LIBRARY).symlink_to(self.library or interposer(self.driver))
        (self.directory / "gpu").write_bytes(bytes(8))
        self.limit()
        create_usage(self.directory / "usage")

    def limit(self, memory: int = LIMIT, core: int = 100, digit: str = "1", spill: int = 0, **more: object) -> None:
        values: dict[str, object] = {"minor": 0, "mode": Mode.CAP, "core_ppm": core * 10_000, **more}
        policy = DevicePolicy(uuid=uuid(digit), memory_limit_bytes=memory, spill_limit_bytes=spill, **values)  # type: ignore[arg-type]
        write_policy(self.directory / "policy", [policy])

    def ledger(self) -> Path:
        """Where all programs started from now on note what they really hold of the device."""
        path = self.directory / "ledger"
        path.write_bytes(struct.pack("<qqQ", LIMIT, 0, 0) + bytes(LEDGER_ENTRIES * 16))
        return path

    def start(self, *arguments: object, program: str = "probe", **environment: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [self.driver / program, *map(str, arguments)],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(self.driver),
                **preloaded(self.directory / LIBRARY),
                "FAKE_GPU": str(self.directory / "gpu"),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # as an executor has; ours may be of another pid namespace, and then reads as 0
        )
        self.children.append(child)
        return child

    def run(self, *arguments: object, **environment: str) -> list[list[str]]:
        """The program's lines, split into words."""
        child = self.start(*arguments, **environment)
        output, errors = child.communicate(timeout=120)
        assert errors == "", errors
        assert child.returncode == 0, output
        return [line.split() for line in output.splitlines()]

    def usage(self) -> Usage:
        usage = UsageReader(self.directory / "usage").read()
        assert usage.problem == ""
        return usage

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
