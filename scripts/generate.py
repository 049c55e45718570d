"""Write the generated files; with --check, name those that are not up to date, and change nothing.

Usage: python scripts/generate.py [--check] [NAME | FILE ...]

Without arguments all generators run; otherwise those of these names, and those that read or write these files.
`make generate`, `make check` and the hook of pre-commit all run this list.

A generator NAME is the module generate_NAME. Its function `files` returns the text of each file that it writes, and
None for a file that must not exist.
"""

import argparse
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
GENERATORS: Final[Mapping[str, tuple[str, ...]]] = {
    "crds": ("src/egpu/api/", "deploy/crds/"),
    "webhooks": ("src/egpu/", "deploy/admission/"),
    "chart": ("src/egpu/", "deploy/"),
    "scheduler_config": ("src/egpu/api/", "src/egpu/apps/extender/", "deploy/scheduler/"),
    "protos": ("base/src/egpu_base/kubelet/", "simulator/src/egpu_sim/cluster/apiserver/"),
    "driver_table": ("native/driver/", "scripts/driver_table/"),
    "remote": ("native/", "docs/", "scripts/library_codec/", "scripts/remote_codec/", "src/egpu/core/provisioners/"),
    "runtime_table": ("native/driver/", "native/runtime/", "docs/internals/runtime.md", "scripts/runtime_table/"),
    "latency_table": ("benchmarks/recorded/", "docs/internals/isolation-measured.md"),
    "walks_table": ("scripts/walks/", "scripts/wheel_walks.yaml", "docs/reference/program"),
    "metrics_table": ("src/egpu/", "docs/reference/metrics.md"),
    "reference": ("src/egpu/", "native/variables.yaml", "base/src/egpu_base/errors.py", "docs/reference/"),
    "sbom": ("requirements/", "pyproject.toml", "scripts/locks.py"),
}
"""Each generator, and where it reads and writes, in the order in which they run: a later one may read what an earlier
one writes."""


class ToolError(Exception):
    """A generator cannot work: the message is for the user."""


def chosen(arguments: list[str]) -> list[str]:
    """Return the generators of these names and files; all without arguments."""
    return [
        name
        for name, places in GENERATORS.items()
        if not arguments
        or any(each == name or each.startswith((*places, f"scripts/generate_{name}.py")) for each in arguments)
    ]


def update(files: Mapping[Path, str | None], *, check: bool) -> list[str]:
    """Write or remove each file that differs, unless `check`; return their names."""
    stale = [path for path, text in files.items() if (path.read_text() if path.exists() else None) != text]
    for path in [] if check else stale:
        if (text := files[path]) is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return [str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path) for path in stale]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is not up to date")
    parser.add_argument("chosen", nargs="*", metavar="NAME|FILE", help=", ".join(GENERATORS))
    options = parser.parse_args()
    failed = False
    for name in chosen(options.chosen):
        try:
            stale = update(importlib.import_module(f"generate_{name}").files(), check=options.check)
        except ToolError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        for path in stale:
            print(f"{path} is not up to date. Run `make generate`." if options.check else f"wrote {path}")
        failed |= options.check and bool(stale)
    return int(failed)


if __name__ == "__main__":
    sys.exit(importlib.import_module("generate").main())  # the module that the generators import: one ToolError
