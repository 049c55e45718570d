"""`python -m benchmarks [NAME]... [--out FILE] [--quick]`: what is named, or all; `--help` has the rest."""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import Options, Report

#: Modules of this package with `run(report) -> dict`, in the order in which they run.
MODULES = (
    "isolation",
    "latency",
    "parking",
    "moving",
    "placement",
    "hollow",
    "overfill",
    "extender",
    "view",
    "remote",
    "idle",
    "looks",
    "repartitioning",
    "priced_claims",
    "allocators",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    parser.add_argument("--quick", action="store_true", help="a part of the cases: less than a minute for isolation")
    parser.add_argument("--peer", type=Path, help="another interposer (.so) to measure beside ours")
    parser.add_argument("--kubernetes", type=Path, help="Kubernetes's own programs, to place pods with as well")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MODULES):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}")
    if options.peer and not options.peer.is_file():
        parser.error(f"--peer: {options.peer} does not exist")
    found: dict[str, Any] = {}
    cores = os.cpu_count()
    print(f"{cores} processor cores, load {os.getloadavg()[0]:.1f}; simulated GPUs, no real one", flush=True)
    for name in options.names or MODULES:
        report = Report(
            Options(options.quick, *(path and path.absolute() for path in (options.peer, options.kubernetes)))
        )
        report.progress(name)
        found[name] = importlib.import_module(f"benchmarks.{name}").run(report)
        report.summary()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
