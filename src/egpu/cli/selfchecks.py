"""The checks of `egpu selftest`: our samples run bare and in slices, through `egpu run` as users run them.

Each check starts its own programs and judges their output. No check trusts a slice's own accounting.
"""

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from egpu.adapters import native
from egpu.adapters.executors import confinement, libraries
from egpu.adapters.local.run import LocalMachine, has_driver, real_machine
from egpu.adapters.pool import scratch
from egpu.adapters.programs import enter
from egpu.cli.findings import Finding, State
from egpu.cli.trial import EGPU, MEMORY_MIB, Trial, TrialFailed
from egpu_base.errors import ElasticGPUError, InvalidInput, NativeMissing, Unavailable

Check = Callable[[Trial], Finding]

SAMPLES: Final = ("vectoradd", "saxpy", "reduce", "matmul")
MIB: Final = 1 << 20
CORE_PERCENT: Final = 30
OVER_POINTS: Final = 3.0
"""A slice that gets this much more than its cap fails the check."""
LEAST_OF_SHARE: Final = 0.5
"""A slice that gets less than this part of its share fails: a busy machine alone does not explain it."""
REAL_SLACK_MIB: Final = 64
SPIN_SECONDS: Final = 1
SPIN_BATCH: Final = 100
"""Number of queued kernels of 1 ms. They keep the card busy while a busy machine delays the program."""
SPIN_PAIRS: Final = 3

_LOOK: Final = """
import ctypes, json
def text(call, *before):
    out = ctypes.create_string_buffer(96)
    return out.value.decode() if call(*before, out, 96) == 0 else "?"
nvml, cuda, version = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
nvml.nvmlInit_v2(), cuda.cuDriverGetVersion(ctypes.byref(version))
with open("/proc/self/maps") as maps:
    path = next(line.split()[-1] for line in maps if "libcuda" in line)
print(json.dumps({"driver": text(nvml.nvmlSystemGetDriverVersion), "cuda": version.value, "path": path}))
"""
_CONTEXT: Final = """
import ctypes, json, sys
nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
card, context, memory = ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
def free():
    return 0 if nvml.nvmlDeviceGetMemoryInfo(card, memory) else memory[1]
nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByUUID(sys.argv[1].encode(), ctypes.byref(card)), cuda.cuInit(0)
before = free()
if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0): raise SystemExit("no context")
print(json.dumps({"ok": True, "bytes": before - free()}))
"""
_COST: Final = '''
import ctypes, json, time
cuda, ptx = ctypes.CDLL("libcuda.so.1"), b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry nothing() { ret; }
"""
def must(result):
    if result: raise SystemExit(f"CUDA error {result}")
context, module, kernel, memory = (ctypes.c_void_p() for _ in range(4))
must(cuda.cuInit(0)), must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)), must(cuda.cuCtxSetCurrent(context))
must(cuda.cuModuleLoadData(ctypes.byref(module), ptx))
must(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"nothing"))
def launch():
    cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def allocate():
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)), cuda.cuMemFree_v2(memory)
def cost(call, count):
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(count): call()
        best = min(best, (time.perf_counter() - start) / count)
        must(cuda.cuCtxSynchronize())
    return best * 1e6
print(json.dumps({"ok": True, "launch_us": cost(launch, 100), "allocation_us": cost(allocate, 20)}))
'''


def examine(
    profile: str | None,
    ordinal: int,
    *,
    tell: Callable[[str], None],
    egpu: Sequence[str] = EGPU,
    only: Collection[str] = (),
    further: Mapping[str, Check] | None = None,
) -> Mapping[str, Finding]:
    """Run the checks in order of dependency, or those in `only`, and return their findings by name. `tell` gets the
    name of each check before it runs. `egpu` is the command under test. `further` checks come after ours.

    Raises InvalidInput for an unknown profile or card.
    """
    checks = {**CHECKS, **(further or {})}
    with ExitStack() as stack:
        try:
            trial = _trial(profile, ordinal, egpu, stack)
        except (NativeMissing, Unavailable) as error:
            mend = "install NVIDIA's driver, or test a simulated card: egpu selftest --simulate A100-80G"
            unseen = dict.fromkeys(checks, Finding(State.UNSEEN, "needs the driver"))
            return unseen | {"driver": Finding(State.WRONG, str(error), mend)}
        findings: dict[str, Finding] = {}
        for name, check in checks.items():
            if only and name not in only:
                continue
            tell(f"{name} …")
            try:
                findings[name] = check(trial)
            except (TrialFailed, ElasticGPUError, OSError) as error:
                findings[name] = Finding(State.WRONG, str(error), MEND.get(name, REPORT))
        return findings


def _trial(profile: str | None, ordinal: int, egpu: Sequence[str], stack: ExitStack) -> Trial:
    """Prepare the tests. Slices of a real card go to the user's usual directory, so that it is not over-committed."""
    directory = stack.enter_context(scratch.directory("egpu-selftest-", scratch.short_directory()))
    if profile is None and not has_driver():
        raise NativeMissing("this machine has no working NVIDIA driver: libnvidia-ml.so.1 is missing or does not start")
    machine = real_machine() if profile is None else _simulated(profile, directory, stack)
    slices, environment = ["--gpu", str(ordinal)], dict(os.environ)
    if machine.simulated is None:
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(ordinal)}
    else:
        slices += ["--simulate", machine.name, "--state-dir", str(directory)]
        environment["LD_LIBRARY_PATH"] = str(machine.simulated.driver_dir)
    cards = {card.index: card for card in machine.cards()}
    if ordinal not in cards:
        raise InvalidInput("--gpu", f"there is no GPU {ordinal}. Use one of: {', '.join(map(str, cards))}")
    return Trial(
        machine=machine, card=cards[ordinal], directory=directory, environment=environment, slices=slices, egpu=egpu
    )


def _simulated(profile: str, root: Path, stack: ExitStack) -> LocalMachine:
    from egpu.laptop.machines import find_machine, remove_served

    machine = find_machine(profile, root=root)
    stack.callback(remove_served, machine.book.directory)
    return machine


def sample(name: str, *flags: str) -> tuple[str, ...]:
    """Return the command of one of our samples. Raises NativeMissing."""
    return (str(native.path(f"samples/egpu-sample-{name}")), "--json", *flags)


def _driver(trial: Trial) -> Finding:
    found = trial.bare(sys.executable, "-c", _LOOK)
    kind = "" if trial.machine.simulated is None else "simulated "
    cuda = f"{found['cuda'] // 1000}.{found['cuda'] % 1000 // 10}"
    what = f"{kind}{trial.card.model}, driver {found['driver']}, CUDA {cuda}, {found['path']}"
    if not trial.card.healthy:
        return Finding(State.WRONG, f"{what}: {trial.card.reason}", "try another card: --gpu")
    return Finding(State.OK, what)


def _answers(trial: Trial) -> Finding:
    """Run all samples in one slice: on a busy machine, creating a slice takes most of the time."""
    each = 'for one; do "$one" --json || exit; done'
    samples = ("sh", "-c", each, "samples", *(sample(name)[0] for name in SAMPLES))
    trial.bare(*samples)
    trial.sliced(*samples, core=50)
    return Finding(State.OK, f"{', '.join(SAMPLES)}: correct results, bare and in a slice")


def _shown(trial: Trial) -> Finding:
    """Check that all APIs show a program only its slice of the card."""
    devices = trial.sliced(*sample("info"), core=50)["devices"]
    seen = {device[key] // MIB for device in devices for key in ("total", "memory_info_total", "nvml_total")}
    found = f"{len(devices)} card of {', '.join(map(str, sorted(seen)))} MiB, in a slice of {MEMORY_MIB} MiB"
    return judged(len(devices) == 1 and seen == {MEMORY_MIB}, found)


def _memory(trial: Trial) -> Finding:
    return _memory_held(trial, trial.sliced(*sample("memory"), core=50))


def _memory_held(trial: Trial, said: Mapping[str, Any]) -> Finding:
    """Judge the allocated memory. The slice also pays for the context's memory, perhaps only after some time."""
    given = said["given_bytes"] / MIB
    context = context_mib(trial)
    beside = "" if given == MEMORY_MIB else f" beside {context:g} MiB of a context"
    found = f"{given:g} MiB allocated{beside} in a slice of {MEMORY_MIB} MiB, then {said['error']}"
    return judged(MEMORY_MIB - context - slack_mib(trial) <= given <= MEMORY_MIB, found)


def slack_mib(trial: Trial) -> int:
    """Return the difference allowed between two figures of a context. A real driver counts it once in the card's memory
    and once in its list of processes, which charges the slice."""
    return 0 if trial.machine.simulated is not None else REAL_SLACK_MIB


def context_mib(trial: Trial) -> float:
    """Return the memory that a context takes of the card, bare."""
    return trial.bare(sys.executable, "-c", _CONTEXT, trial.card.uuid)["bytes"] / MIB


def _compute(trial: Trial) -> Finding:
    """Compare the work done in a slice with the work done bare. Other load on this machine can only lower a rate, so
    measure both in turn and take the best of each."""
    rates = [(rate(trial, core=CORE_PERCENT), rate(trial)) for _ in range(SPIN_PAIRS)]
    held, bare = (max(each) for each in zip(*rates, strict=True))
    had = 100 * held / bare
    is_share = CORE_PERCENT * LEAST_OF_SHARE < had < CORE_PERCENT + OVER_POINTS
    return judged(is_share, f"{had:.1f} % of the card's time used in a slice of {CORE_PERCENT} %")


def rate(trial: Trial, *, core: int | None = None) -> float:
    """Return the kernel time per second of a busy program, in a slice or bare, in microseconds."""
    program = sample("spin", "--seconds", str(SPIN_SECONDS), "--batch", str(SPIN_BATCH))
    said = trial.bare(*program) if core is None else trial.sliced(*program, core=core)
    return said["kernels"] * said["kernel_us"] / said["seconds"]


def _cost(trial: Trial) -> Finding:
    program = (sys.executable, "-c", _COST)
    bare, held = trial.bare(*program), trial.sliced(*program, core=100)
    calls = (("a launch", "launch_us"), ("an allocation and its release", "allocation_us"))
    told = [f"{what}: {bare[key]:.2f} µs bare, {held[key]:.2f} in a slice" for what, key in calls]
    return Finding(State.OK, "; ".join(told))


def _executors(trial: Trial) -> Finding:
    """Run samples on a lease of a local pool."""
    with trial.pool() as pool:
        trial.leased(pool, *sample("vectoradd"))
        held = _memory_held(trial, trial.leased(pool, *sample("memory")))
    return Finding(held.state, f"vectoradd: correct on a lease; {held.found}", held.mend)


def _libraries(trial: Trial) -> Finding:
    """Check what executors can call for programs on a lease. A simulated card has all of them."""
    driver_dir = None if trial.machine.simulated is None else trial.machine.simulated.driver_dir
    there = libraries.found(driver_dir, libraries.library_path((), driver_dir))
    told = ", ".join(f"{name} {version}".strip() for name, version in there.items()) or "none"
    if lacking := libraries.missing(there):
        need = f"executors find {told}. Programs on a lease cannot use {', '.join(lacking)}"
        return Finding(State.LIMITED, need, "install NVIDIA's wheels, or name their folder: egpu serve --library-path")
    return Finding(State.OK, f"executors find {told}")


def _mounts(_trial: Trial) -> Finding:
    if refused := enter.refusal():
        return Finding(State.LIMITED, f"{refused}. A command can leave its slice by clearing its environment")
    return Finding(State.OK, "a command stays in its slice even if it clears its environment")


def _confined(_trial: Trial) -> Finding:
    holds = confinement.probe()
    lacks = [f"no private view of the file system: {holds.view}"] if holds.view else []
    lacks += [] if holds.landlock else ["no Landlock in this kernel"]
    if lacks:
        return Finding(State.LIMITED, f"executors have {', '.join(lacks)}")
    return Finding(State.OK, f"executors have a private view of the file system, and Landlock {holds.landlock}")


def _runtime(trial: Trial) -> Finding:
    static = "programs with NVIDIA's runtime linked in (CuPy, llama.cpp, nvcc's default)"
    if trial.machine.simulated is not None:
        run = "numba, JAX, Triton, torch.compile, and CUDA C++ with nvcc -cudart shared run here, by their PTX"
        return Finding(State.LIMITED, f"{run}; {static} and compiled kernels (most of PyTorch) need a real card")
    return Finding(State.LIMITED, f"{static} find no GPU on a lease: use nvcc -cudart shared, or a local slice")


def judged(fine: bool, found: str) -> Finding:
    return Finding(State.OK, found) if fine else Finding(State.WRONG, found, REPORT)


CHECKS: Final[Mapping[str, Check]] = {
    "driver": _driver,
    "answers": _answers,
    "what a slice shows": _shown,
    "memory limit": _memory,
    "compute limit": _compute,
    "cost of a call": _cost,
    "executors": _executors,
    "libraries": _libraries,
    "private mounts": _mounts,
    "confinement": _confined,
    "runtime library": _runtime,
}
REPORT: Final = "report it, with this output (-o json), the card and the driver"
MEND: Final = {"driver": "make sure that programs find libcuda.so.1 (ldconfig, LD_LIBRARY_PATH)"}
