"""Generate the code that the remote client and the executor share.

native/driver/generated/driver_table.json  →  native/wire/ops.txt, the client's stubs, the executor's decoders,
                                              docs/reference/wire-functions.md
native/driver/moves.yaml                   →  the executor's table of what a moving session keeps
native/libraries/*.yaml                    →  the stand-ins, the executor's library_decoders.c, their names for Python,
                                              a recording library for tests, docs/reference/library-functions.md
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from library_codec import client, document, executor, recording
from library_codec import table as library_table
from remote_codec import functions, moves, ops, render

ROOT = Path(__file__).resolve().parents[1]
DEFINED = re.compile(r"^API CUresult (cu\w+)\(", re.MULTILINE)
FORWARDED = re.compile(r"\bforward_(cu\w+)\(")
FILLED = re.compile(r"^FILL\w*\((cu\w+), [\w ]+, (cu\w+)\)", re.MULTILINE)  # memory.c's macro for the kinds of memset


def hand_written() -> tuple[set[str], set[str]]:
    """Return the symbols that the client's own sources define, with exported names as the linker sees them, and the
    functions whose generated part they call."""
    defined: set[str] = set()
    forwarded: set[str] = set()
    for source in sorted((ROOT / "native" / "remote").glob("*.c")):
        text = source.read_text()
        filled = {name for pair in FILLED.findall(text) for name in pair}
        defined |= set(DEFINED.findall(text)) | filled
        forwarded |= set(FORWARDED.findall(text)) | filled
    return defined, forwarded


NOTED = re.compile(r"\b(\w+)_noted\(")


def libraries(found: list[library_table.Library]) -> dict[str, str]:
    """Return the files of the forwarded libraries."""
    noted = frozenset(NOTED.findall((ROOT / "native/libraries/client.h").read_text()))
    files = {
        "native/executor/generated/library_decoders.c": executor.source(found),
        "native/executor/generated/library_ids.h": executor.identities(found),
        "native/tests/libraries/generated/recording_all.h": recording.everything(found),
        "src/egpu/core/provisioners/generated/__init__.py": document.names(found),
        "simulator/src/egpu_sim/machines/generated/__init__.py": document.names(found),
        "docs/reference/library-functions.md": document.document(found),
    }
    for library in found:
        stem = library.name.lower()
        files[f"native/libraries/generated/{stem}_stubs.c"] = client.source(library, noted)
        files[f"native/libraries/generated/exports_{stem}.h"] = client.exports(library)
        files[f"native/libraries/generated/{library.soname}.map"] = client.version_script(library)
        files[f"native/tests/libraries/generated/recording_{stem}.h"] = recording.source(library, noted)
    return files


def formatted(name: str, text: str) -> str:
    """Return C in the layout of all other C (.clang-format); anything else unchanged."""
    if not name.endswith((".c", ".h")):
        return text
    tool = [Path(sys.executable).parent / "clang-format", f"--assume-filename={ROOT / name}"]
    return subprocess.run(tool, input=text, capture_output=True, text=True, check=True).stdout


def files() -> dict[Path, str]:
    table = json.loads((ROOT / "native/driver/generated/driver_table.json").read_text())["functions"]
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
        "native/wire/generated/ops.h": render.ops_header(numbers),
        "native/remote/generated/stubs.c": render.client(carried, table, hand),
        "native/remote/generated/stubs.h": render.client_header(carried, hand),
        "native/executor/generated/decoders.c": render.executor(carried),
        "native/executor/generated/moves.c": moves.table(
            numbers, carried, moves.read(ROOT / "native/driver/moves.yaml")
        ),
        "docs/reference/wire-functions.md": render.document(carried, table, hand),
        **libraries(found),
    }
    return {ROOT / name: formatted(name, text) for name, text in files.items()}
