#!/usr/bin/env python3
"""Generate or check native/runtime/runtime_table.{inc,json}, its lists of exports and the table of docs/runtime.md.

    scripts/generate_runtime_table.py                    add what the installed headers declare, and write
    scripts/generate_runtime_table.py --include DIR ...  the same for other releases' headers
    scripts/generate_runtime_table.py --check            change nothing; exit 1 and say what is missing or differs

What headers of the other major version taught stays: the checked-in JSON is read first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from generate_driver_table import ToolError, installed_include
from runtime_table import classes, headers, render

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "native" / "runtime"
DOCUMENT = ROOT / "docs" / "runtime.md"
BEGIN, END = "<!-- coverage -->\n", "<!-- end of coverage -->\n"

Symbols = dict[tuple[int, str], headers.Function]


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(description="Generate the table of CUDA runtime functions.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table is not up to date")
    parser.add_argument("--include", action="append", type=Path, metavar="DIR", help="a folder with cuda_runtime_api.h")
    options = parser.parse_args(arguments)
    try:
        return run(options.include or [installed_include()], check=options.check)
    except (ToolError, headers.HeaderError, classes.ClassError, render.RenderError, OSError) as error:
        print(f"{error}\nThe table of the runtime is not up to date; see docs/runtime.md.", file=sys.stderr)
        return 1


def run(includes: list[Path], *, check: bool) -> int:
    """Merge the headers of `includes` into the table; write it, or with `check` compare."""
    symbols, versions, errors = _checked_in(FOLDER / "runtime_table.json")
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
    outputs = {
        FOLDER / "runtime_table.inc": render.c_table(rows, errors),
        FOLDER / "runtime_table.json": render.json_table(rows, versions, errors),
        DOCUMENT: _document(DOCUMENT.read_text(), render.markdown(rows, listed.compiler)),
    }
    outputs |= {
        FOLDER / f"libcudart{major}.map": render.exports(rows, major, listed.compiler) for major in render.MAJORS
    }
    stale = [path for path, text in outputs.items() if not path.exists() or path.read_text() != text]
    if check and stale:
        raise ToolError(f"{', '.join(path.name for path in stale)}: not what the headers and classes.yaml give")
    for path in stale:
        path.write_text(outputs[path])
        print(f"wrote {path}")
    print(f"{len(rows)} symbols of the runtime, all classified")
    return 0


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
    """Parameter types of the newest ABI of each driver function that has so many of them."""
    table = json.loads((ROOT / "native" / "driver" / "driver_table.json").read_text())["functions"]
    newest = sorted((f for f in table if f["threads"] == "legacy"), key=lambda f: f["version"])
    return {(f["name"], len(f["parameters"])): tuple(parameter[0] for parameter in f["parameters"]) for f in newest}


def _document(text: str, table: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ToolError(f"{DOCUMENT}: no place for the table")
    return f"{before}{begin}\n{table}\n\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
