#!/usr/bin/env python3
"""Generate or check native/driver/driver_table.{inc,json}, the one list of CUDA driver functions.

    scripts/generate_driver_table.py                    add what the installed headers declare, and write
    scripts/generate_driver_table.py --include DIR ...  the same for other releases' headers, oldest first
    scripts/generate_driver_table.py --check            change nothing; exit 1 and say what is missing or differs

What earlier headers taught stays: the checked-in JSON is read first, so that one wheel is enough.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from driver_table import classes, headers, render, table

WHEEL = "nvidia-cuda-runtime"
FOLDER = Path(__file__).resolve().parents[1] / "native" / "driver"


class ToolError(Exception):
    """Something to tell the user and exit 1."""


def installed_include() -> Path:
    """The folder of cuda.h in the installed wheel of NVIDIA's CUDA runtime."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        raise ToolError(f"{WHEEL} is not installed: install it, or give --include DIR") from None
    for file in files:
        if file.name == "cuda.h":
            return Path(str(file.locate())).parent
    raise ToolError(f"{WHEEL} {metadata.version(WHEEL)} has no cuda.h: give --include DIR")


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(description="Generate the table of CUDA driver functions.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table is not up to date")
    parser.add_argument(
        "--include", action="append", type=Path, metavar="DIR", help="a folder with cuda.h (repeatable)"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where classes.yaml and the table are")
    options = parser.parse_args(arguments)
    try:
        return run(options.include or [installed_include()], options.folder, check=options.check)
    except (ToolError, headers.HeaderError, classes.ClassError, OSError) as error:
        print(f"{error}\nThe table is not up to date; see docs/driver-table.md.", file=sys.stderr)
        return 1


def run(includes: list[Path], folder: Path, *, check: bool) -> int:
    """Merge the headers of `includes` into the table of `folder`; write it, or with `check` compare."""
    known, releases = _checked_in(folder / "driver_table.json")
    before = dict(known)
    for include in includes:
        found = headers.read(include, cc=os.environ.get("CC", "cc"))
        known, changed = table.merge(known, found)
        if changed and found.version not in releases:
            releases.append(found.version)
        print(f"CUDA {found.version // 1000}.{found.version % 1000 // 10}: {len(found.functions)} symbols in {include}")
        if check:
            problems = table.disagreements(before, found)
            # A new function is worth more words than "missing": say what it looks like, too.
            if problems:
                raise ToolError("\n".join([*problems, *_unclassified(known, releases, folder)]))
    built = table.build(known, releases, classes.read(folder / "classes.yaml"))
    outputs = {"driver_table.inc": render.c_table(built), "driver_table.json": render.json_table(built)}
    stale = [name for name, text in outputs.items() if _text(folder / name) != text]
    if check and stale:
        raise ToolError(f"{' and '.join(stale)}: not what the headers and classes.yaml give; run the generator")
    for name in stale:
        (folder / name).write_text(outputs[name])
        print(f"wrote {folder / name}")
    print(f"{len(built.rows)} symbols of {len({r.function.name for r in built.rows})} functions, all classified")
    return 0


def _checked_in(path: Path) -> tuple[dict[str, table.Known], list[int]]:
    return render.known(path.read_text()) if path.exists() else ({}, [])


def _unclassified(known: dict[str, table.Known], releases: list[int], folder: Path) -> list[str]:
    try:
        table.build(known, releases, classes.read(folder / "classes.yaml"))
    except classes.ClassError as error:
        return error.problems
    return []


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
