"""The native parts as they were built with a sanitizer: EGPU_TEST_SANITIZER=address or thread (see `make sanitize`).

The libraries and programs then come from build/sanitize-KIND, programs that load them get the sanitizer's runtime
first, and what it reports, in whatever process, fails the test during which it appeared.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from egpu_base.native import Artefacts

KIND: Final = os.environ.get("EGPU_TEST_SANITIZER", "")
ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build" / f"sanitize-{KIND}"

_RUNTIMES: Final[Mapping[str, tuple[str, ...]]] = {
    "": (),
    # NVIDIA's bindings are C++: the runtime looks for the library that throws when it starts.
    "address": ("libasan.so", "libubsan.so", "libstdc++.so.6"),
    "thread": ("libtsan.so", "libstdc++.so.6"),
}
#: Leaks are not looked for: what a forked child forgets is lost on purpose. Allocations that fail are the tests'
#: business. A session of the executor has the interposer loaded before the runtime; it takes over nothing that the
#: runtime has.
_OPTIONS: Final = {
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "die_after_fork=0",
}


@cache
def runtime() -> tuple[str, ...]:
    """What has to be loaded before everything else."""
    found: list[str] = []
    for name in _RUNTIMES[KIND]:
        asked = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
        found.append(str(Path(asked.stdout.strip()).resolve()))
    return tuple(found)


def preloaded(*libraries: object) -> dict[str, str]:
    """LD_PRELOAD for a program that is to have these libraries, where it needs any."""
    wanted = [*runtime(), *map(str, libraries)]
    return {"LD_PRELOAD": ":".join(wanted)} if wanted else {}


def use(reports: Path) -> None:
    """From now on everything native is of the sanitized build, and reports go to this folder."""
    if not KIND:
        return
    if not BUILD.is_dir():
        raise SystemExit(f"{BUILD} is missing: make sanitize builds it")
    Artefacts.directories = lambda self: (BUILD / Path(self.build).name,)
    for name, value in _OPTIONS.items():
        os.environ[name] = f"{value}:log_path={reports / name.split('_')[0].lower()}"


def reported(reports: Path) -> Iterator[str]:
    """The reports that are there; they are taken away."""
    for path in sorted(reports.glob("*san.*")):
        text = path.read_text(errors="replace")
        path.unlink()
        if text.strip():
            yield text
