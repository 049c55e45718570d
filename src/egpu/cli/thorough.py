"""The further checks of `egpu selftest --thorough`: every kind of memory, two slices at once, killed programs, PyTorch.

They take some minutes on a real card. The trial for a machine with a GPU (`tests/gpu/trial`) tries the rest.
"""

import importlib.util
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from egpu.cli.findings import Finding, State
from egpu.cli.selfchecks import LEAST_OF_SHARE, MIB, OVER_POINTS, Check, context_mib, judged, rate, sample, slack_mib
from egpu.cli.trial import MEMORY_MIB, Trial

POOL_MIB: Final = 32
"""A pool of stream-ordered memory grows by so much, and keeps the rest of it."""
TOGETHER_PERCENT: Final = (30, 70)
TOGETHER_ROUNDS: Final = 2
SAME_LOSS: Final = 1e-4
"""Relative difference of two losses: a lease may use other builds of libraries."""

_KINDS: Final = """
import ctypes, json
cuda, PIECE = ctypes.CDLL("libcuda.so.1"), 16 << 20
def must(result):
    if result: raise SystemExit(f"CUDA error {result}")
class Property(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handles", "place", "ordinal")] + [
        ("unused", ctypes.c_void_p), ("flags", ctypes.c_uint64)]
class Image(ctypes.Structure):
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint)]
context, pool, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(PIECE)
must(cuda.cuInit(0)), must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)), must(cuda.cuCtxSetCurrent(context))
must(cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0))
pinned, image = Property(type=1, place=1, ordinal=0), Image(1024, 1024, 0x20, 4)
KINDS = {
    "plain": (lambda at: cuda.cuMemAlloc_v2(at, size), cuda.cuMemFree_v2),
    "stream-ordered": (lambda at: cuda.cuMemAllocAsync(at, size, None), lambda at: cuda.cuMemFreeAsync(at, None)),
    "virtual": (lambda at: cuda.cuMemCreate(at, size, ctypes.byref(pinned), ctypes.c_uint64(0)), cuda.cuMemRelease),
    "arrays": (lambda at: cuda.cuArrayCreate_v2(at, ctypes.byref(image)), cuda.cuArrayDestroy),
}
said = {}
for kind, (make, free) in KINDS.items():
    made = []
    while len(made) < 1000:
        at = ctypes.c_uint64()
        if make(ctypes.byref(at)): break
        made.append(at)
    said[kind] = len(made) * PIECE
    for at in made: must(free(at))
    must(cuda.cuCtxSynchronize()), must(cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)))
print(json.dumps({"ok": True, **said}))
"""
_TRAIN: Final = """
import json, torch
torch.manual_seed(1)
card = torch.device("cuda")
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)).to(card)
update = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(128, 256).to(card), torch.randint(10, (128,)).to(card)
for _ in range(20):
    update.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    update.step()
print(json.dumps({"ok": True, "loss": loss.item(), "torch": torch.__version__}))
"""


def _kinds_of_memory(trial: Trial) -> Finding:
    """Allocate each kind of memory up to the limit, in pieces of 16 MiB."""
    said = trial.sliced(sys.executable, "-c", _KINDS, core=50)
    given = {kind: said[kind] // MIB for kind in ("plain", "stream-ordered", "virtual", "arrays")}
    least = MEMORY_MIB - context_mib(trial) - slack_mib(trial) - POOL_MIB
    found = ", ".join(f"{kind} {mib} MiB" for kind, mib in given.items())
    return judged(all(least <= mib <= MEMORY_MIB for mib in given.values()), f"{found} of {MEMORY_MIB} MiB")


def _together(trial: Trial) -> Finding:
    """Compare the work done in two slices at once with the work done bare. Take the best of each, as other load on this
    machine can only lower a rate."""
    rounds: list[tuple[float, ...]] = []
    for _ in range(TOGETHER_ROUNDS):
        bare = rate(trial)
        with ThreadPoolExecutor(len(TOGETHER_PERCENT)) as threads:
            running = [threads.submit(rate, trial, core=core) for core in TOGETHER_PERCENT]
        rounds.append((bare, *(each.result() for each in running)))
    bare, *held = (max(each) for each in zip(*rounds, strict=True))
    had = [100 * each / bare for each in held]
    fits = all(
        core * LEAST_OF_SHARE < each < core + OVER_POINTS for core, each in zip(TOGETHER_PERCENT, had, strict=True)
    )
    told = " and ".join(f"{each:.1f} %" for each in had)
    slices = " and ".join(f"{core} %" for core in TOGETHER_PERCENT)
    return judged(fits, f"{told} of the card's time used in slices of {slices} at once")


def _killed(trial: Trial) -> Finding:
    """Check that a program that dies by SIGKILL leaves all of its slice to the next one."""
    dies = 'import ctypes, os; cuda = ctypes.CDLL("libcuda.so.1"); at, context = ctypes.c_uint64(), ctypes.c_void_p()\n'
    dies += "cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)\n"
    dies += "cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(256 << 20)), os.kill(os.getpid(), 9)"
    both = ("sh", "-c", '"$1" -c "$2"; exec "$3" --json', "both", sys.executable, dies, sample("memory")[0])
    given = trial.sliced(*both, core=50)["given_bytes"] / MIB
    fits = MEMORY_MIB - context_mib(trial) - slack_mib(trial) <= given <= MEMORY_MIB
    return judged(fits, f"{given:g} MiB of {MEMORY_MIB} MiB allocated after a program with 256 MiB was killed")


def _pytorch(trial: Trial) -> Finding:
    """Train a small network bare, in a slice and on a lease."""
    if importlib.util.find_spec("torch") is None:
        return Finding(State.UNSEEN, "PyTorch is not installed for this Python")
    if trial.machine.simulated is not None:
        return Finding(State.UNSEEN, "PyTorch's own kernels are compiled, and need a real card")
    program = (sys.executable, "-c", _TRAIN)
    bare, held = trial.bare(*program), trial.sliced(*program, core=100)
    with trial.pool() as pool:
        leased = trial.leased(pool, *program)
    same = held["loss"] == bare["loss"] and abs(leased["loss"] - bare["loss"]) <= SAME_LOSS * abs(bare["loss"])
    losses = f"{bare['loss']:.6f} bare, {held['loss']:.6f} in a slice, {leased['loss']:.6f} on a lease"
    return judged(same, f"PyTorch {bare['torch']}, loss after 20 steps: {losses}")


THOROUGH: Final[Mapping[str, Check]] = {
    "kinds of memory": _kinds_of_memory,
    "two slices": _together,
    "killed program": _killed,
    "PyTorch": _pytorch,
}
