"""native/driver/generated/driver_table.{inc,json}, the one list of CUDA driver functions.

    scripts/generate_driver_table.py --include DIR ...  add what other releases' headers declare, oldest first
    scripts/generate_driver_table.py --check            change nothing; exit 1 and name each function that differs

Earlier headers may be missing: the checked-in JSON remembers them, so that one wheel is enough.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from driver_table import classes, headers, render, table
from generate import ToolError, update

WHEEL = "nvidia-cuda-runtime"
FOLDER = Path(__file__).resolve().parents[1] / "native" / "driver"


def installed_include() -> Path:
    """Return the folder of cuda.h in the installed wheel of NVIDIA's CUDA runtime."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        raise ToolError(f"{WHEEL} is not installed: install it, or give --include DIR") from None
    for file in files:
        if file.name == "cuda.h":
            return Path(str(file.locate())).parent
    raise ToolError(f"{WHEEL} {metadata.version(WHEEL)} has no cuda.h: give --include DIR")


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; return the exit code."""
    parser = argparse.ArgumentParser(description="Generate the table of CUDA driver functions.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table is not up to date")
    parser.add_argument(
        "--include", action="append", type=Path, metavar="DIR", help="a folder with cuda.h (repeatable)"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where classes.yaml and the table are")
    options = parser.parse_args(arguments)
    try:
        found = files(options.include or (), options.folder, check=options.check)
    except ToolError as error:
        print(error, file=sys.stderr)
        return 1
    stale = update(found, check=options.check)
    for path in stale:
        print(f"{path} is not up to date." if options.check else f"wrote {path}", file=sys.stderr)
    return int(options.check and bool(stale))


def files(includes: Sequence[Path] = (), folder: Path = FOLDER, *, check: bool = False) -> dict[Path, str]:
    """Return the table of `folder`, with the declarations in the headers of `includes`, or in the installed ones. With
    `check`, raise ToolError where they differ from the table."""
    try:
        return _files(includes or [installed_include()], folder, check=check)
    except (headers.HeaderError, classes.ClassError, OSError) as error:
        raise ToolError(f"{error}\nSee docs/internals/driver-table.md.") from error


def _files(includes: Sequence[Path], folder: Path, *, check: bool) -> dict[Path, str]:
    known, releases = _checked_in(folder / "generated" / "driver_table.json")
    before = dict(known)
    for include in includes:
        found = headers.read(include, cc=os.environ.get("CC", "cc"))
        known, changed = table.merge(known, found)
        if changed and found.version not in releases:
            releases.append(found.version)
        print(f"CUDA {found.version // 1000}.{found.version % 1000 // 10}: {len(found.functions)} symbols in {include}")
        # Describe a new function, too, instead of only "missing".
        if check and (problems := table.disagreements(before, found)):
            raise ToolError("\n".join([*problems, *_unclassified(known, releases, folder)]))
    built = table.build(known, releases, classes.read(folder / "classes.yaml"))
    outputs = {"driver_table.inc": render.c_table(built), "driver_table.json": render.json_table(built)}
    return {folder / "generated" / name: text for name, text in outputs.items()}


def _checked_in(path: Path) -> tuple[dict[str, table.Known], list[int]]:
    return render.known(path.read_text()) if path.exists() else ({}, [])


def _unclassified(known: dict[str, table.Known], releases: list[int], folder: Path) -> list[str]:
    try:
        table.build(known, releases, classes.read(folder / "classes.yaml"))
    except classes.ClassError as error:
        return error.problems
    return []


if __name__ == "__main__":
    sys.exit(main())
