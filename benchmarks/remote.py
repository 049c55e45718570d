#!/usr/bin/env python3
# ruff: noqa: E402, E501  the path is set before the imports; tables read better unbroken
"""The remote pair against what it is made of, in the same run.

    benchmarks/remote.py [--json FILE] [--quick]

Each line is a figure, its baseline, their ratio and the goal. The program under test is C (remote_client.c): it measures calls of
`libcuda.so.1` over a lease, or bare sends and ping-pongs over the same kind of socket or ring.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from remotegpu import remote
from simgpu import environment, machine


def build(folder: Path) -> Path:
    """Compile the measuring program."""
    program = folder / "remote_client"
    sources = [ROOT / "benchmarks/remote_client.c", ROOT / "native/wire/ring.c"]
    subprocess.run(["cc", "-O2", "-o", program, *sources, f"-I{ROOT / 'native/wire'}", "-ldl", "-lpthread"], check=True)
    return program


def measure(program: Path, what: str, env: dict[str, str], *arguments: str) -> dict[str, float]:
    """One run of the program; it prints one JSON object."""
    done = subprocess.run(
        [program, what, *arguments], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise SystemExit(f"{what}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main() -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    options = parser.parse_args()
    scale = "0.1" if options.quick else "1"
    rows: list[dict[str, Any]] = []

    def row(name: str, value: float, baseline: float, unit: str, goal: str, *, higher: bool = False) -> None:
        rows.append(
            {"name": name, "value": value, "baseline": baseline, "unit": unit, "ratio": value / baseline, "goal": goal}
        )
        print(f"{name:44} {value:12.2f} {baseline:12.2f} {unit:8} {value / baseline:7.2f}   {goal}", flush=True)

    print(f"{'':44} {'ours':>12} {'baseline':>12} {'':8} {'ratio':>7}   goal")
    with tempfile.TemporaryDirectory() as temporary, machine(Path(temporary), "A100-80G", 1) as sim:
        folder = Path(temporary)
        program = build(folder)
        local = measure(program, "client", environment(sim.driver_dir), scale)
        for transport in ("shm", "tcp"):
            bare = measure(program, f"bare-{transport}", dict(os.environ), scale)
            with remote(sim, folder / transport, transport) as (client, _, _):
                far = measure(program, "client", environment(client), scale)
            row(
                f"{transport}: asynchronous call",
                far["async_ns"],
                bare["async_ns"],
                "ns",
                "<= 1.5" if transport == "shm" else "<= 2",
            )
            row(f"{transport}: synchronous call", far["sync_ns"], bare["sync_ns"], "ns", "<= 1.15")
            row(f"{transport}: copy to the device, 64 MiB", far["in_gbps"], bare["copy_gbps"], "GB/s", ">= 0.90")
            row(f"{transport}: copy from the device, 64 MiB", far["out_gbps"], bare["copy_gbps"], "GB/s", ">= 0.90")
            row(f"{transport}: pinned copy to the device", far["pinned_in_gbps"], bare["copy_gbps"], "GB/s", ">= 0.90")
            row(
                f"{transport}: training-like loop",
                far["steps_per_second"],
                local["steps_per_second"],
                "steps/s",
                ">= 0.97",
            )
            row(
                f"{transport}: start-up of a small program",
                far["start_ms"],
                local["start_ms"],
                "ms",
                "(<= 4 round trips)",
            )
        for delay_us, goal in ((50, ">= 0.97"), (200, ">= 0.93")):
            with remote(sim, folder / f"delay{delay_us}", "tcp") as (client, executor, _):
                port = executor.ready["port"]
                delayer = subprocess.Popen(
                    [program, "delay", str(port), str(delay_us)], stdout=subprocess.PIPE, text=True
                )
                assert delayer.stdout
                (client / "lease.addr").write_text(f"127.0.0.1:{delayer.stdout.readline().strip()}\n")
                far = measure(program, "client", environment(client), scale)
                delayer.kill()
                delayer.wait()
            row(
                f"tcp + {delay_us} us: training-like loop",
                far["steps_per_second"],
                local["steps_per_second"],
                "steps/s",
                goal,
            )
            row(f"tcp + {delay_us} us: synchronous call", far["sync_ns"], local["sync_ns"], "ns", "")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
