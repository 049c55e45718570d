"""Memory that nobody allocates, and accounts that lie: what a tenant tried who wanted more of a card than its slice."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from egpu.adapters import native
from egpu.adapters.cards.nvml import CardProcess
from egpu.adapters.slices.overruns import BEHIND_SECONDS
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, read_policy, write_policy
from egpu.api.allocation import CardShare
from egpu.apps.agent.limits.memory import MemoryReconciler
from egpu.apps.agent.slots.directories import Slots
from egpu.core.overruns import LOOKS, OVERRUN_SECONDS
from egpu_sim.machines.machine import Machine
from support.remote_gpu import remote
from support.simulated_gpu import Program, run, variables
from support.slices import LIBRARY, MIB, slot_record
from support.ticking import Ticking

CARDS = ("T4", 1)
LIMIT = 1024 * MIB
FORGERS = 6

LOAD_ANYHOW = f"""
IMAGE = {variables(5 << 30)!r}.encode() + bytes(1)
LIBRARY = (None, None, 0, None, None, 0)
ctx = context()
said = [name(d.cuModuleLoadData(IMAGE)), name(d.cuLibraryLoadData(IMAGE, *LIBRARY))]
ok(d.cuCtxSetCurrent(0))
library = ok(d.cuLibraryLoadData(IMAGE, *LIBRARY))  # before there is a context
ok(d.cuCtxSetCurrent(ctx))
result, kernel = d.cuLibraryGetKernel(library, b"touch")
said.append(name(d.cuKernelGetFunction(kernel) if int(result) == 0 else (result,)))
ok(d.cuLibraryUnload(library))
said += [name(d.cuCtxSetLimit(getattr(d.CUlimit, "CU_LIMIT_" + limit), size)) for limit, size in (
    ("MALLOC_HEAP_SIZE", 5 << 30), ("PRINTF_FIFO_SIZE", 5 << 30), ("STACK_SIZE", 128 << 10))]
free, total = ok(d.cuMemGetInfo())
say([said, total - free])
wait()
"""

ON_THE_CARD = """
n.nvmlInit()
say(n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).used)
"""

# One process of several: it sets its container's total back before each allocation, and stays below the limit itself.
# All make their contexts first: a context is charged as well, and found no room beside the others' allocations.
FORGER = """
import mmap
context()
say(0)
wait()
path = next(line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("/usage"))
with open(path, "r+b") as file: usage = mmap.mmap(file.fileno(), 0)
got = 0
for _ in range(15):
    usage[64:72] = bytes(8)
    got += name(d.cuMemAlloc(64 << 20)) == "SUCCESS"
say(got)
wait()
usage[64:72] = bytes(8)
say(name(d.cuMemAlloc(512)))
wait()
"""

# A library of one kernel, loaded while there is no context.
LIBRARIES = """
NONE = (None, None, 0, None, None, 0)
def kernel_of(image, entry):
    had = ok(d.cuCtxGetCurrent())
    ok(d.cuCtxSetCurrent(0))
    library = ok(d.cuLibraryLoadData(image.encode() + bytes(1), *NONE))
    kernel = ok(d.cuLibraryGetKernel(library, entry))
    ok(d.cuCtxSetCurrent(had))
    return library, kernel
def counted():
    left, total = ok(d.cuMemGetInfo())
    return total - left
"""

DEEP = """
.version 8.0
.target sm_70
.address_size 64
.visible .entry deep(.param .u64 at) {
    .local .align 8 .b8 depot[SIZE];
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [at];
    mov.u64 %d2, depot;
    st.local.u64 [%d2], %d1;
    ret;
}
"""

WAYS = {
    "launch": "launch(kernel, 1, 1)",
    "stream of another context": "launch(kernel, 1, 1, stream=elsewhere)",
    "cooperative launch": "d.cuLaunchCooperativeKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0)",
    "extended launch": "d.cuLaunchKernelEx(config, kernel, 0, 0)",
    "captured launch": "captured()",
    "kernel node": "d.cuGraphAddKernelNode(ok(d.cuGraphCreate(0)), None, 0, node)",
    "function": "d.cuKernelGetFunction(kernel)",
    "attribute": "d.cuKernelGetAttribute(d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0)",
    "occupancy": "d.cuOccupancyMaxActiveBlocksPerMultiprocessor(d.CUfunction(int(kernel)), 32, 0)",
    "variable": "d.cuLibraryGetGlobal(library, b'great')",
}

LIST = """
import json, sys
from pathlib import Path
from egpu.adapters.cards.nvml import NvmlInventory
found = NvmlInventory(Path(sys.argv[1])).processes()
print(json.dumps({uuid: [[p.pid, p.used_bytes] for p in listed] for uuid, listed in found.items()}))
"""


class Nvml:
    """The machine's NVML, asked in a process of its own: the Python package keeps the first library that it loads."""

    def __init__(self, machine: Machine) -> None:
        self._library = machine.driver_dir / "libnvidia-ml.so.1"

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        done = subprocess.run([sys.executable, "-c", LIST, self._library], check=True, capture_output=True, text=True)
        found: dict[str, list[list[int]]] = json.loads(done.stdout)
        return {uuid: tuple(CardProcess(pid, used) for pid, used in listed) for uuid, listed in found.items()}

    def used_bytes(self) -> dict[str, int]:
        return {}  # it is asked in turn


def fill(directory: Path, machine: Machine) -> None:
    """A slice of 1 GiB."""
    (directory / LIBRARY).symlink_to(native.path(LIBRARY))
    card = machine.cards[0]
    line = DevicePolicy(uuid=card.uuid, minor=0, mode=Mode.UNLIMITED, core_ppm=0, memory_limit_bytes=LIMIT)
    write_policy(directory / "policy", [line])
    create_usage(directory / "usage")


def test_an_executor_loads_no_more_than_its_slice_holds(sim: Machine, tmp_path: Path) -> None:
    """As of a qGPU pod: five GiB of variables, heaps or stacks, where its executor has one."""
    directory = tmp_path / "slice"
    directory.mkdir()
    fill(directory, sim)
    with (
        remote(sim, tmp_path, "shm", "--slice", str(directory), env={"CUDA_VISIBLE_DEVICES": "0"}) as (client, _, _),
        Program(client, LOAD_ANYHOW) as program,
    ):
        said, used = program.hear()
        assert said == ["OUT_OF_MEMORY"] * 6
        assert used == 0
        assert run(sim, ON_THE_CARD) == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_library_is_charged_before_it_is_taken_into_a_context(sim: Machine, tmp_path: Path, way: str) -> None:
    """Loaded without one, so that nobody knew of its variables until they were on the card: 20 GiB of a slice of 1."""
    fill(tmp_path, sim)
    code = f"""
context()
elsewhere = ok(d.cuStreamCreate(1))
if {way!r} == "stream of another context":
    other = ok(d.cuCtxCreate(None, 0, 0))
    ok(d.cuCtxPopCurrent())
    ok(d.cuCtxSetCurrent(other))
config = d.CUlaunchConfig()
config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1
def captured():
    ok(d.cuStreamBeginCapture(elsewhere, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    result = launch(kernel, 1, 1, stream=elsewhere)
    d.cuStreamEndCapture(elsewhere)
    return result
said = []
for image in {variables(9 << 30)!r}, {variables(64 << 20)!r}:
    library, kernel = kernel_of(image, b"touch")
    node = d.CUDA_KERNEL_NODE_PARAMS()
    node.kern = kernel
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1
    said += [name({WAYS[way]}), counted()]
say(said)
wait()
"""
    with Program(sim, LIBRARIES + code, {"LD_PRELOAD": str(tmp_path / LIBRARY)}) as program:
        assert program.hear() == ["OUT_OF_MEMORY", 0, "SUCCESS", 64 * MIB]
        assert run(sim, ON_THE_CARD) == 64 * MIB


def test_a_library_is_charged_in_each_context_that_uses_it(sim: Machine, tmp_path: Path) -> None:
    """600 MiB in seven contexts were 4,200 on the card and 600 in the count."""
    fill(tmp_path, sim)
    code = f"""
context()
library, kernel = kernel_of({variables(300 * MIB)!r}, b"touch")
contexts = [ok(d.cuCtxCreate(None, 0, 0)) for _ in range(5)]
def use(ctx):
    ok(d.cuCtxSetCurrent(ctx))
    return name(launch(kernel, 1, 1))
say([[use(ctx) for ctx in contexts + contexts], counted() >> 20])
wait()
ok(d.cuCtxDestroy(contexts[0]))
say([use(contexts[3]), use(contexts[4]), counted() >> 20])
wait()
ok(d.cuLibraryUnload(library))
say(counted())
wait()
"""
    with Program(sim, LIBRARIES + code, {"LD_PRELOAD": str(tmp_path / LIBRARY)}) as program:
        uses = ["SUCCESS"] * 3 + ["OUT_OF_MEMORY"] * 2
        assert program.hear() == [uses * 2, 900]
        assert run(sim, ON_THE_CARD) >> 20 == 900
        program.go()
        assert program.hear() == ["SUCCESS", "OUT_OF_MEMORY", 900]
        program.go()
        assert program.hear() == 0
        assert run(sim, ON_THE_CARD) == 0


def test_local_memory_of_kernels_is_charged_before_it_is_there(sim: Machine, tmp_path: Path) -> None:
    """40 × 1024 threads can be resident. 100 kB for each are 4 GB, by a kernel that nobody looked up as a function. And
    what a function needs was forgotten when the stack limit had been above it for a moment."""
    fill(tmp_path, sim)
    code = f"""
context()
DEEP, EACH, STACK = {DEEP!r}, 40 * 1024, d.CUlimit.CU_LIMIT_STACK_SIZE
def deep(size): return kernel_of(DEEP.replace("SIZE", str(size)), b"deep")[1]
said = [name(launch(deep(100_000), 1, 1, 0)), counted(), name(launch(deep(1024 + 512), 1, 1, 0)), counted() // EACH]
ok(d.cuCtxSetLimit(STACK, 4096))
said += [counted() // EACH]
f = function(DEEP.replace("SIZE", "3072"), "deep")
ok(d.cuCtxSetLimit(STACK, 1024))
said += [counted() // EACH, name(launch(f, 1, 1, 0))]
ok(d.cuCtxSynchronize())
say(said + [counted() // EACH])
wait()
"""
    with Program(sim, LIBRARIES + code, {"LD_PRELOAD": str(tmp_path / LIBRARY)}) as program:
        assert program.hear() == ["OUT_OF_MEMORY", 0, "SUCCESS", 512, 3072, 2048, "SUCCESS", 2048]
        assert run(sim, ON_THE_CARD) == 2048 * 40 * 1024


async def test_a_container_that_forges_its_account_is_refused_and_ended(sim: Machine, tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    share = CardShare(uuid=sim.cards[0].uuid, index=0, minor=0, core=50, memory_mib=LIMIT // MIB)
    for slot_id in ("hostile", "honest"):
        slots.replace(slot_record(slots, slot_id, share), lambda directory: fill(directory, sim))
    reconciler = MemoryReconciler(slots, Nvml(sim), clock=Ticking(OVERRUN_SECONDS / 4))

    def start(slot_id: str, code: str) -> Program:
        return Program(sim, code, {"LD_PRELOAD": str(slots.path(slot_id) / LIBRARY)})

    honest = start("honest", f"context(); say(name(d.cuMemAlloc({LIMIT}))); wait(); say(1)")
    forgers = [start("hostile", FORGER) for _ in range(FORGERS)]
    try:
        assert honest.hear() == "SUCCESS"
        assert [forger.hear() for forger in forgers] == [0] * FORGERS
        for forger in forgers:
            forger.go()
        assert sum(forger.hear() for forger in forgers) * 64 * MIB > 4 * LIMIT, "so far it works"
        overruns = list(reconciler.step())
        for _ in range(100):
            if reconciler.watch.pause_seconds == BEHIND_SECONDS:  # on a busy machine a look does not read all mappings
                overruns += reconciler.step()
        overruns += [overrun for _ in range(LOOKS) for overrun in reconciler.step()]
        assert read_policy(slots.path("hostile") / "policy").devices[0].overhead_bytes == LIMIT
        forgers[0].go()
        assert forgers[0].hear() == "OUT_OF_MEMORY", "nothing more, whatever it writes"
        for _ in range(4):
            overruns += reconciler.step()
        (hostile,) = {overrun.slice.policy for overrun in overruns}
        assert hostile == slots.policy_file("hostile")
        await reconciler.end(overruns[-1])
        assert [forger.process.wait(30) for forger in forgers] == [-9] * FORGERS
        assert run(sim, ON_THE_CARD) == LIMIT, "what they had is free again; the neighbour has its own"
        honest.go()
        assert honest.hear() == 1
    finally:
        for program in (honest, *forgers):
            program.__exit__()


def test_what_a_refused_allocation_left_in_a_pool_is_not_handed_out(sim: Machine, tmp_path: Path) -> None:
    """The pool had to reserve more than there is, and while its stream is busy cannot give that back."""
    fill(tmp_path, sim)
    code = """
    context()
    stream = ok(d.cuStreamCreate(1))
    sink = ok(d.cuMemAlloc(LIMIT - 42 * MIB))  # 2 are the module's
    busy = function(STORE.replace("DURATION", "20000000"), "store")
    ok(launch(busy, 1, 1, sink, (1, ctypes.c_uint32), stream=stream))
    def had(mib):
        return mib if name(d.cuMemAllocAsync(mib * MIB, stream)) == "SUCCESS" else 0
    say([[had(15), had(15)], had(2), sum(had(1) for _ in range(24))])
    wait()
    """
    code = textwrap.dedent(code).replace("LIMIT", str(LIMIT)).replace("MIB", str(MIB))
    with Program(sim, code, {"LD_PRELOAD": str(tmp_path / LIBRARY)}) as program:
        first, refused, later = program.hear()
    assert first == [15, 15]
    assert refused == 0, "what the pool has is full: it needs 32 MiB more, which there are not"
    assert sum(first) + later <= 40
