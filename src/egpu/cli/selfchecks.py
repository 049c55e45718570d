"""What `egpu selftest` tries: our samples, bare and in slices, as anybody would run them, through `egpu run`.

Every check starts programs of its own and judges what they say. Nothing is read from a slice's own account: what holds
is what a program gets.
"""

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from egpu.adapters import enter, native
from egpu.adapters.executors import confinement
from egpu.adapters.local.run import find_machine, has_driver
from egpu.adapters.pool import scratch
from egpu.adapters.simulator import machine as simulator
from egpu.cli.findings import Finding, State
from egpu.cli.trial import EGPU, MEMORY_MIB, Trial, TrialFailed
from egpu.errors import ElasticGPUError, InvalidInput, NativeMissing, Unavailable

SAMPLES: Final = ("vectoradd", "saxpy", "reduce", "matmul")
MIB: Final = 1 << 20
CORE_PERCENT: Final = 30
OVER_POINTS: Final = 3.0
"""A cap that gives this much more than was asked for does not hold."""
LEAST_OF_SHARE: Final = 0.5
"""A slice that gets less than this part of its share is held back by more than a busy machine."""
SPIN_SECONDS: Final = 1
SPIN_BATCH: Final = 100
"""Kernels of 1 ms that are queued at a time: the card stays busy while a busy machine lets the program wait."""
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
) -> Mapping[str, Finding]:
    """Every check by name, in the order in which things build on each other, or those that `only` names; `tell` hears
    what is being tried, `egpu` is the command that is tried.

    Raises InvalidInput: there is no such profile or card.
    """
    with ExitStack() as stack:
        try:
            trial = _trial(profile, ordinal, egpu, stack)
        except (NativeMissing, Unavailable) as error:
            mend = "install NVIDIA's driver, or see what would be: egpu selftest --simulate A100-80G"
            unseen = dict.fromkeys(CHECKS, Finding(State.UNSEEN, "needs the driver"))
            return unseen | {"driver": Finding(State.WRONG, str(error), mend)}
        findings: dict[str, Finding] = {}
        for name, check in CHECKS.items():
            if only and name not in only:
                continue
            tell(f"{name} …")
            try:
                findings[name] = check(trial)
            except (TrialFailed, ElasticGPUError, OSError) as error:
                findings[name] = Finding(State.WRONG, str(error), MEND.get(name, REPORT))
        return findings


def _trial(profile: str | None, ordinal: int, egpu: Sequence[str], stack: ExitStack) -> Trial:
    """Slices of a real card are taken from where all of this user's are, so that nobody gets more than there is."""
    directory = stack.enter_context(scratch.directory("egpu-selftest-", scratch.short_directory()))
    if profile is None and not has_driver():
        raise NativeMissing("there is no NVIDIA driver on this machine: no libnvidia-ml.so.1 that answers")
    machine = find_machine(profile, root=directory if profile else None)
    slices, environment = ["--gpu", str(ordinal)], dict(os.environ)
    if machine.simulated is None:
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(ordinal)}
    else:
        stack.callback(simulator.destroy, machine.simulated)
        slices += ["--simulate", machine.name, "--state-dir", str(directory)]
        environment["LD_LIBRARY_PATH"] = str(machine.simulated.driver_dir)
    cards = {card.index: card for card in machine.cards()}
    if ordinal not in cards:
        raise InvalidInput("--gpu", f"there is no GPU {ordinal}; there is {', '.join(map(str, cards))}")
    return Trial(
        machine=machine, card=cards[ordinal], directory=directory, environment=environment, slices=slices, egpu=egpu
    )


def sample(name: str, *flags: str) -> tuple[str, ...]:
    """The command of one of our samples. Raises NativeMissing."""
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
    """All in one slice: on a busy machine, what it takes to make one is most of the time."""
    each = 'for one; do "$one" --json || exit; done'
    samples = ("sh", "-c", each, "samples", *(sample(name)[0] for name in SAMPLES))
    trial.bare(*samples)
    trial.sliced(*samples, core=50)
    return Finding(State.OK, f"{', '.join(SAMPLES)}: right, bare and in a slice")


def _shown(trial: Trial) -> Finding:
    """What a program sees of the card, wherever it looks."""
    devices = trial.sliced(*sample("info"), core=50)["devices"]
    seen = {device[key] // MIB for device in devices for key in ("total", "memory_info_total", "nvml_total")}
    found = f"{len(devices)} card of {', '.join(map(str, sorted(seen)))} MiB, in a slice of {MEMORY_MIB}"
    return _judged(len(devices) == 1 and seen == {MEMORY_MIB}, found)


def _memory(trial: Trial) -> Finding:
    return _memory_held(trial, trial.sliced(*sample("memory"), core=50))


def _memory_held(trial: Trial, said: Mapping[str, Any]) -> Finding:
    """A context's memory comes out of the slice, as soon as it is seen there: it may be missing, or not yet."""
    given = said["given_bytes"] / MIB
    context = trial.bare(sys.executable, "-c", _CONTEXT, trial.card.uuid)["bytes"] / MIB
    beside = "" if given == MEMORY_MIB else f" beside {context:g} of a context"
    found = f"{given:g} MiB given{beside} in a slice of {MEMORY_MIB}, then {said['error']}"
    return _judged(MEMORY_MIB - context <= given <= MEMORY_MIB, found)


def _compute(trial: Trial) -> Finding:
    """The share is work done against the same work bare. What else this machine does makes either less at times, and
    never more: both are measured in turn, and of each the best counts."""
    rates = [(_rate(trial, core=CORE_PERCENT), _rate(trial)) for _ in range(SPIN_PAIRS)]
    held, bare = (max(each) for each in zip(*rates, strict=True))
    had = 100 * held / bare
    is_share = CORE_PERCENT * LEAST_OF_SHARE < had < CORE_PERCENT + OVER_POINTS
    return _judged(is_share, f"{had:.1f} % of the card's time had in a slice of {CORE_PERCENT} %")


def _rate(trial: Trial, *, core: int | None = None) -> float:
    """Kernel time per second of a busy program, in a slice or bare, in microseconds."""
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
    """A lease, through a pool of this machine alone."""
    with trial.pool() as pool:
        trial.leased(pool, *sample("vectoradd"))
        held = _memory_held(trial, trial.leased(pool, *sample("memory")))
    return Finding(held.state, f"vectoradd: right on a lease; {held.found}", held.mend)


def _mounts(_trial: Trial) -> Finding:
    if refused := enter.refusal():
        return Finding(State.LIMITED, f"{refused}: a command that clears its environment leaves its slice")
    return Finding(State.OK, "a slice holds whatever a command does to its environment")


def _confined(_trial: Trial) -> Finding:
    holds = confinement.probe()
    lacks = [f"no view of their own: {holds.view}"] if holds.view else []
    lacks += [] if holds.landlock else ["no Landlock in this kernel"]
    if lacks:
        return Finding(State.LIMITED, f"executors have {', '.join(lacks)}")
    return Finding(State.OK, f"executors have a view of their own, and Landlock {holds.landlock}")


def _runtime(trial: Trial) -> Finding:
    programs = "programs of NVIDIA's runtime library, or with compiled kernels (PyTorch, CuPy, JAX, llama.cpp)"
    if trial.machine.simulated is not None:
        return Finding(State.LIMITED, f"{programs} need a real card: a simulated one runs PTX")
    return Finding(State.LIMITED, f"{programs} find no GPU on a lease; in a slice of this machine they do")


def _judged(fine: bool, found: str) -> Finding:
    return Finding(State.OK, found) if fine else Finding(State.WRONG, found, REPORT)


CHECKS: Final[Mapping[str, Callable[[Trial], Finding]]] = {
    "driver": _driver,
    "answers": _answers,
    "what a slice shows": _shown,
    "memory limit": _memory,
    "compute limit": _compute,
    "cost of a call": _cost,
    "executors": _executors,
    "private mounts": _mounts,
    "confinement": _confined,
    "runtime library": _runtime,
}
REPORT: Final = "report it, with what this says (-o json), card and driver"
MEND: Final = {"driver": "see that a program finds libcuda.so.1 (ldconfig, LD_LIBRARY_PATH)"}
