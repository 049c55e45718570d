"""`python -m benchmarks [NAME]... [--json FILE]`: run the benchmarks that are named, or all; a table each."""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

#: Modules of this package with `run() -> dict`, in the order in which they run.
MODULES = ("isolation", "placement")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MODULES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    found: dict[str, Any] = {}
    for name in options.names or MODULES:
        print(f"# {name}", file=sys.stderr)
        found[name] = importlib.import_module(f"benchmarks.{name}").run()
        print(json.dumps(found[name], indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
