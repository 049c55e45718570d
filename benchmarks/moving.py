"""The pause of a move beside plain copies of as many bytes.

Three programs move: one that only has its memory, one that writes all of it again and again, and one with many modules.
The cards and their memory are simulated in this computer's memory. A plain copy stands beside the moves: from the card
into pinned memory, through a socket to another process, and from pinned memory to the card, one after the other.
"""

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report, median
from egpu_sim.machines.machine import Machine, create_machine, destroy
from support.moving import movable
from support.simulated_gpu import STORE_SEVEN, Program

MIB: Final = 1 << 20
ASIDE_SECONDS: Final = 0.1
"""A pause takes as long as the copy, and this time besides."""

IMAGES: Final = 32
LEGS: Final = ("from the card", "link", "to the card")
STEPS: Final = ("stop", "copy", "with all before and after")

WRITES: Final = """
import itertools, select
for value in itertools.count():
    ok(d.cuMemsetD32(mine, value, BYTES // 4)); ok(d.cuMemsetD32(other, value, BYTES // 4))
    if select.select([sys.stdin], [], [], 0)[0]:
        break
"""
HAS_MODULES: Final = f"""
context()
say([ok(d.cuModuleLoadData(({STORE_SEVEN.replace("sm_80", "sm_70")!r} + f"// {{i}} " + "x" * {MIB}).encode() + b"\\0"))
     for i in range({IMAGES})] and 0)
wait()
"""
PROGRAM: Final = """
import socket, threading
context()
BYTES = {bytes}
PIECE = 4 << 20
mine, other = ok(d.cuMemAlloc(BYTES)), ok(d.cuMemAlloc(BYTES))
ok(d.cuMemsetD32(mine, 7, BYTES // 4)); ok(d.cuMemsetD32(other, 7, BYTES // 4))
host = ok(d.cuMemHostAlloc(PIECE, 0))
view = memoryview((ctypes.c_uint8 * PIECE).from_address(int(host))).cast("B")
def plain():
    ours, theirs = socket.socketpair()
    into = bytearray(PIECE)
    def receive():
        left = BYTES
        while left:
            left -= theirs.recv_into(into, min(left, PIECE))
    reader = threading.Thread(target=receive)
    began = time.monotonic()
    for at in range(0, BYTES, PIECE):
        ok(d.cuMemcpyDtoH(host, int(mine) + at, PIECE))
    down = time.monotonic()
    reader.start()
    for at in range(0, BYTES, PIECE):
        ours.sendall(view)
    reader.join()
    through = time.monotonic()
    for at in range(0, BYTES, PIECE):
        ok(d.cuMemcpyHtoD(int(other) + at, host, PIECE))
    return [down - began, through - down, time.monotonic() - through]
say(0)
{then}
wait()
say([plain() for _ in range({rounds})])
"""


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return everything as plain values."""
    rounds, size = (3, 64 * MIB) if report.options.quick else (7, 256 * MIB)
    code = PROGRAM.replace("{bytes}", str(size)).replace("{rounds}", str(rounds))
    programs = {
        "the memory stays as it is": code.replace("{then}", ""),
        "all memory changes": code.replace("{then}", WRITES),
        f"{IMAGES} modules of 1 MiB": HAS_MODULES,
    }
    with tempfile.TemporaryDirectory(prefix="egpu-bench-") as scratch:
        machine = create_machine(Path(scratch) / "machine", "A100-40G", 1, context_mib=0, driver_mib=0)
        try:
            report.progress("plain copies")
            plain = _plain_copies(machine, code.replace("{then}", ""))
            moves: dict[str, dict[str, float]] = {}
            for at, (what, program) in enumerate(programs.items()):
                report.progress(what)
                moves[what] = _moves(machine, Path(scratch) / f"lease{at}", program, rounds)
        finally:
            destroy(machine)
    bytes_of = {what: IMAGES * MIB if program is HAS_MODULES else 2 * size for what, program in programs.items()}
    slowest = {what: max(plain.values()) / size * count for what, count in bytes_of.items()}
    report.table(f"plain copies of {size // MIB} MiB, ms", ("", "median"), [(leg, 1e3 * plain[leg]) for leg in LEGS])
    rows = [(what, *(1e3 * took[step] for step in STEPS)) for what, took in moves.items()]
    report.table(f"moves of {2 * size // MIB} MiB, or of {IMAGES} modules, ms", ("", *STEPS), rows)
    for what, took in moves.items():
        pause, goal = took["stop"] + took["copy"], slowest[what] + ASIDE_SECONDS
        said = f"≤ {goal:.3f} s (the slowest leg + 0.1 s)"
        report.verdict(f"the pause of a move: {what}", f"{pause:.3f} s", said, pause <= goal)
    report.figures |= {"plain": plain, "moves": moves}
    return report.figures


def _plain_copies(machine: Machine, code: str) -> dict[str, float]:
    with Program(machine, code) as program:
        program.hear()
        program.go()
        return {leg: median(list(times)) for leg, times in zip(LEGS, zip(*program.hear(), strict=True), strict=True)}


def _moves(machine: Machine, folder: Path, code: str, rounds: int) -> dict[str, float]:
    """Return the medians of a move's steps."""
    found: dict[str, list[float]] = {step: [] for step in STEPS}
    with movable(machine, folder) as moved, Program(moved.client, code) as program:
        program.hear()
        for _ in range(rounds):
            time.sleep(0.2)
            began = time.monotonic()
            said = moved.move(machine)
            found["stop"].append(said["quiesced_ns"] / 1e9)
            found["copy"].append(said["copied_ns"] / 1e9)
            found["with all before and after"].append(time.monotonic() - began)
    return {step: median(times) for step, times in found.items()}
