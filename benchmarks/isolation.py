"""What the interposer costs per call, and how exactly it holds a share; against the bare driver in the same run.

    python -m benchmarks.isolation [--json FILE] [--peer INTERPOSER.so]

The driver is the tests' (native/tests/interposer): it does next to nothing itself, so what is added can be seen. Costs
are the best of several rounds, because whatever else the computer does only adds. Shares are measured in virtual time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from egpu.adapters import native
from egpu.adapters.pages import DevicePolicy, Mode, create_usage, write_policy

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "native" / "tests" / "interposer"
INTERPOSER = ROOT / "native" / "interposer"
UUID = "GPU-" + "-".join("1" * length for length in (8, 4, 4, 4, 12))
LIVE = (0, 1_000, 100_000)
PROCESSES = (1, 64)
ROUNDS = 5


def run(peer: Path | None = None) -> dict[str, Any]:
    """Measure; nanoseconds and milliseconds by name, and the table of shares."""
    with tempfile.TemporaryDirectory(prefix="egpu-bench-") as scratch:
        directory = Path(scratch)
        _build(directory)
        rivals: dict[str, Path | None] = {"bare": None, "egpu": _slice(directory)}
        if peer is not None:
            rivals["peer"] = peer
        found: dict[str, Any] = {}
        for name, library in rivals.items():
            found[name] = {
                **{f"alloc_free_ns_{live}_live": _best(directory, library, 100, "cost", live) for live in LIVE},
                "launch_ns_uncapped": _best(directory, library, 100, "launch_cost"),
                "launch_ns_capped": _best(directory, library, 90, "launch_cost"),
                **{f"start_ms_{count}_processes": _start_ms(directory, library, count) for count in PROCESSES},
            }
        found["shares"] = _shares(directory)
        return found


def _include() -> Path:
    for entry in sys.path:
        for header in Path(entry).glob("nvidia/*/include/cuda.h"):
            return header.parent
    raise SystemExit("cuda.h was not found: install requirements/dev.txt")


def _build(directory: Path) -> None:
    common = [shutil.which("gcc") or "cc", "-O2", f"-I{_include()}", "-pthread"]
    shared = ["-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]
    subprocess.run([*common, *shared, "-o", directory / "libcuda.so.1", SOURCES / "fake_libcuda.c"], check=True)
    subprocess.run([*common, "-o", directory / "probe", SOURCES / "probe.c"], check=True)
    virtual = ["-DEGPU_VIRTUAL_TIME", f"-I{ROOT / 'native' / 'include'}", f"-I{ROOT / 'native' / 'driver'}"]
    parts = [SOURCES / "pace_test.c", INTERPOSER / "compute.c", INTERPOSER / "bucket.c"]
    subprocess.run([*common, *virtual, "-o", directory / "pace", *parts, "-lm"], check=True)


def _slice(directory: Path) -> Path:
    place = directory / "slice"
    place.mkdir()
    shutil.copy(native.path("libegpu-interposer.so"), place)
    return place / "libegpu-interposer.so"


def _environment(directory: Path, library: Path | None, core: int) -> dict[str, str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(directory)}
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
        if library.parent == directory / "slice":
            policy = DevicePolicy(uuid=UUID, minor=0, mode=Mode.CAP, core_ppm=core * 10_000, memory_limit_bytes=1 << 29)
            write_policy(library.parent / "policy", [policy])
            create_usage(library.parent / "usage")
    return environment


def _best(directory: Path, library: Path | None, core: int, *arguments: object) -> float:
    environment = _environment(directory, library, core)
    command = [str(directory / "probe"), *map(str, arguments)]
    outputs = [
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        for _ in range(ROUNDS)
    ]
    return min(float(output.split()[1]) for output in outputs)


def _start_ms(directory: Path, library: Path | None, count: int) -> float:
    """Until `count` processes, started at once, have all asked for the free memory and ended."""
    environment = _environment(directory, library, 100)
    rounds: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        children = [
            subprocess.Popen([directory / "probe", "info"], env=environment, stdout=subprocess.DEVNULL)
            for _ in range(count)
        ]
        for child in children:
            child.wait()
        rounds.append((time.monotonic() - began) * 1e3)
    return min(rounds)


def _shares(directory: Path) -> list[dict[str, Any]]:
    """Each line of pace_test: what was to be had, what was got, in percent of the GPU's time."""
    output = subprocess.run([directory / "pace"], check=False, capture_output=True, text=True).stdout
    rows: list[dict[str, Any]] = []
    for line in output.splitlines()[1:]:
        wanted, got, _error = line[58:].split()[:3]
        rows.append({"case": line[:58].strip(), "limit": float(wanted), "got": float(got)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--peer", type=Path, help="another interposer (.so) to measure beside ours")
    options = parser.parse_args()
    found = run(options.peer)
    names = [name for name in found if name != "shares"]
    print(f"{'':34}" + "".join(f"{name:>12}" for name in names) + f"{'added':>12}")
    for figure in found["bare"]:
        values = [found[name][figure] for name in names]
        print(f"{figure:34}" + "".join(f"{value:12.1f}" for value in values) + f"{values[1] - values[0]:12.1f}")
    print()
    for kind, bound in (("alone", 1.0), ("contended", 3.0), ("200 ms after", 2.0)):
        errors = [abs(row["got"] - row["limit"]) for row in found["shares"] if row["case"].startswith(kind)]
        print(f"share, {kind}: {len(errors)} cases, worst error {max(errors):.2f} points (goal {bound})")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
