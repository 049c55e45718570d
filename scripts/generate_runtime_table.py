"""native/runtime/generated: the runtime's table and its lists of exports; and the table of docs/internals/runtime.md.

    scripts/generate_runtime_table.py --include DIR ...  add what other releases' headers declare

Headers of the other major version may be missing: the checked-in JSON remembers them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from generate import ToolError, update
from generate_driver_table import installed_include
from markdown_table import put_between
from runtime_table import classes, headers, render

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "native" / "runtime"
DOCUMENT = ROOT / "docs" / "internals" / "runtime.md"
BEGIN, END = "<!-- coverage -->\n", "<!-- end of coverage -->\n"

Symbols = dict[tuple[int, str], headers.Function]


def files(includes: Sequence[Path] = ()) -> dict[Path, str]:
    """Return the table, with the declarations in the headers of `includes`, or in the installed ones."""
    try:
        return _files(includes or [installed_include()])
    except (headers.HeaderError, classes.ClassError, render.RenderError, OSError) as error:
        raise ToolError(f"{error}\nSee docs/internals/runtime.md.") from error


def _files(includes: Sequence[Path]) -> dict[Path, str]:
    symbols, versions, errors = _checked_in(FOLDER / "generated" / "runtime_table.json")
    for include in includes:
        found = headers.read(include, cc=os.environ.get("CC", "cc"))
        major = found.version // 1000
        symbols = {key: function for key, function in symbols.items() if key[0] != major}
        symbols |= {(major, symbol): function for symbol, function in found.functions.items()}
        versions = sorted({version for version in versions if version // 1000 != major} | {found.version})
        errors |= found.errors
    listed = classes.read(FOLDER / "classes.yaml")
    rows = _rows(symbols, listed)
    if unknown := listed.unknown({row.name for row in rows}):
        raise ToolError(f"{', '.join(unknown)}: in classes.yaml, and no header declares it")
    return {
        FOLDER / "generated" / "runtime_table.inc": render.c_table(rows, errors),
        FOLDER / "generated" / "runtime_table.json": render.json_table(rows, versions, errors),
        DOCUMENT: put_between(DOCUMENT, BEGIN, END, f"\n{render.markdown(rows, listed.compiler)}\n\n"),
    } | {
        FOLDER / "generated" / f"libcudart{major}.map": render.exports(rows, major, listed.compiler)
        for major in render.MAJORS
    }


def _checked_in(path: Path) -> tuple[Symbols, list[int], dict[str, int]]:
    if not path.exists():
        return {}, [], {}
    data = json.loads(path.read_text())
    symbols = {
        (f["major"], f["symbol"]): headers.Function(
            f["symbol"], tuple((type_, name) for type_, name in f["parameters"])
        )
        for f in data["functions"]
    }
    return symbols, data["headers"], data["errors"]


def _rows(symbols: Symbols, listed: classes.Classes) -> list[render.Row]:
    driver = _driver_types()
    rows: list[render.Row] = []
    problems: list[str] = []
    for (major, symbol), function in sorted(symbols.items(), key=lambda item: (item[0][1], item[0][0])):
        if symbol in listed.compiler:
            continue
        try:
            kind = listed.of(function.name, major)
        except classes.ClassError as error:
            problems.append(str(error))
            continue
        types = driver.get((kind.driver, len(function.parameters)), ())
        rows.append(render.Row(symbol, function.name, major, kind, function.parameters, types))
    if problems:
        raise ToolError("\n".join(problems))
    return rows


def _driver_types() -> dict[tuple[str, int], tuple[str, ...]]:
    """Return parameter types of the newest ABI of each driver function that has so many of them."""
    table = json.loads((ROOT / "native/driver/generated/driver_table.json").read_text())["functions"]
    newest = sorted((f for f in table if f["threads"] == "legacy"), key=lambda f: f["version"])
    return {(f["name"], len(f["parameters"])): tuple(parameter[0] for parameter in f["parameters"]) for f in newest}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Generate the table of CUDA runtime functions.")
    parser.add_argument("--include", action="append", type=Path, metavar="DIR", help="a folder with cuda_runtime_api.h")
    try:
        update(files(parser.parse_args().include or ()), check=False)
    except ToolError as error:
        sys.exit(str(error))
