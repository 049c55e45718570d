"""The pause of a move beside plain copies of as many bytes.

The cards and their memory are simulated in this computer's memory. A plain copy stands beside each move: from the card
into pinned memory, through a socket to another process, and from pinned memory to the card, one after the other.
"""

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Report, median
from egpu_sim.machines.machine import create_machine, destroy
from support.moving import movable
from support.simulated_gpu import Program

MIB: Final = 1 << 20
ASIDE_SECONDS: Final = 0.1
"""A pause takes as long as the copy, and this time besides."""

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
wait()
say([plain() for _ in range({rounds})])
"""


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return everything as plain values."""
    rounds, size = (3, 64 * MIB) if report.options.quick else (7, 256 * MIB)
    moved_bytes = size
    found: dict[str, list[float]] = {what: [] for what in ("from the card", "link", "to the card", "stop", "copy")}
    with tempfile.TemporaryDirectory(prefix="egpu-bench-") as scratch:
        machine = create_machine(Path(scratch) / "machine", "A100-40G", 1, context_mib=0, driver_mib=0)
        code = PROGRAM.replace("{bytes}", str(size)).replace("{rounds}", str(rounds))
        try:
            report.progress("plain copies")
            with Program(machine, code) as plain:
                plain.hear()
                plain.go()
                for times in plain.hear():
                    for what, seconds in zip(("from the card", "link", "to the card"), times, strict=True):
                        found[what].append(seconds)
            with movable(machine, Path(scratch) / "lease") as moved, Program(moved.client, code) as program:
                program.hear()
                for at in range(rounds):
                    report.progress(f"move {at + 1} of {rounds}")
                    time.sleep(0.2)
                    said = moved.move(machine)
                    found["stop"].append(said["quiesced_ns"] / 1e9)
                    found["copy"].append(said["copied_ns"] / 1e9)
                    moved_bytes = said["bytes"]
        finally:
            destroy(machine)
    middle = {what: median(times) for what, times in found.items()}
    legs = [middle[what] / size * moved_bytes for what in ("from the card", "link", "to the card")]
    pause, slowest = middle["stop"] + middle["copy"], max(legs)
    rows = [(what, 1e3 * seconds) for what, seconds in middle.items()]
    report.table(f"plain copies of {size // MIB} MiB, and a move of {moved_bytes // MIB} MiB, ms", ("", "median"), rows)
    goal = slowest + ASIDE_SECONDS
    report.verdict("the pause of a move", f"{pause:.3f} s", f"≤ {goal:.3f} s (the slowest leg + 0.1 s)", pause <= goal)
    report.figures |= {"seconds": middle, "moved_bytes": moved_bytes, "pause_over_plain": pause / sum(legs)}
    report.table("a move as a part of the three legs together", ("", "part"), [("pause", pause / sum(legs))])
    return report.figures
