#!/usr/bin/env python3
# ruff: noqa: E402  the path is set before the imports; tables read better unbroken
"""Generate or check what the remote client and the executor have in common.

scripts/generate_remote.py            write native/wire/ops.{txt,h}; of native/driver/driver_table.json
                                      native/remote/stubs.{c,h}, native/executor/decoders.c, docs/wire-functions.md;
                                      of native/libraries/*.yaml the stand-ins, the executor's library_decoders.c,
                                      what records them for tests, docs/library-functions.md
scripts/generate_remote.py --check    change nothing; exit 1 and name what differs
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from library_codec import client, document, executor, recording
from library_codec import table as library_table
from remote_codec import functions, ops, render

DEFINED = re.compile(r"^API CUresult (cu\w+)\(", re.MULTILINE)
FORWARDED = re.compile(r"\bforward_(cu\w+)\(")
FILLED = re.compile(r"^FILL\w*\((cu\w+), [\w ]+, (cu\w+)\)", re.MULTILINE)  # memory.c's macro for the kinds of memset


def hand_written() -> tuple[set[str], set[str]]:
    """Symbols that the client's own sources define, the exported names as the linker sees them; and the functions whose
    generated part they call."""
    defined: set[str] = set()
    forwarded: set[str] = set()
    for source in sorted((ROOT / "native" / "remote").glob("*.c")):
        if source.name != "stubs.c":
            text = source.read_text()
            filled = {name for pair in FILLED.findall(text) for name in pair}
            defined |= set(DEFINED.findall(text)) | filled
            forwarded |= set(FORWARDED.findall(text)) | filled
    return defined, forwarded


NOTED = re.compile(r"\b(\w+)_noted\(")


def libraries(found: list[library_table.Library]) -> dict[str, str]:
    """The files of the forwarded libraries."""
    noted = frozenset(NOTED.findall((ROOT / "native/libraries/client.h").read_text()))
    files = {
        "native/executor/library_decoders.c": executor.source(found),
        "native/executor/library_ids.h": executor.identities(found),
        "native/tests/libraries/recording_all.h": recording.everything(found),
        "docs/library-functions.md": document.document(found),
    }
    for library in found:
        stem = library.name.lower()
        files[f"native/libraries/{stem}_stubs.c"] = client.source(library, noted)
        files[f"native/libraries/exports_{stem}.h"] = client.exports(library)
        files[f"native/libraries/{library.soname}.map"] = client.version_script(library)
        files[f"native/tests/libraries/recording_{stem}.h"] = recording.source(library, noted)
    return files


def formatted(name: str, text: str) -> str:
    """C laid out as all other C is (.clang-format); anything else as it stands."""
    if not name.endswith((".c", ".h")):
        return text
    tool = [Path(sys.executable).parent / "clang-format", f"--assume-filename={ROOT / name}"]
    return subprocess.run(tool, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something is not up to date")
    check: bool = parser.parse_args().check
    table = json.loads((ROOT / "native/driver/driver_table.json").read_text())["functions"]
    hand, forwarded = hand_written()
    carried = [f for f in functions.carried(table) if f.symbol not in hand or f.symbol in forwarded]
    numbers = ops.read(ROOT / "native/wire/ops.txt")
    found = library_table.read_all(ROOT / "native/libraries")
    ops.extend(
        numbers,
        [f.symbol for f in carried] + library_table.operations(found),
        functions.kinds(table) + library_table.kinds(found),
    )
    files = {
        "native/wire/ops.txt": numbers.text(),
        "native/wire/ops.h": render.ops_header(numbers),
        "native/remote/stubs.c": render.client(carried, table, hand),
        "native/remote/stubs.h": render.client_header(carried, hand),
        "native/executor/decoders.c": render.executor(carried),
        "docs/wire-functions.md": render.document(carried, table, hand),
        **libraries(found),
    }
    files = {name: formatted(name, text) for name, text in files.items()}
    stale = [name for name, text in files.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if check:
        for name in stale:
            print(f"{name} is not up to date: run scripts/generate_remote.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(files[name])
    print(f"{len(carried)} functions carried, {len(hand)} by hand, {len(stale)} files written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
