"""Names, versions and hashes of the lock files, for the scripts beside it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIREMENTS: Final = Path(__file__).resolve().parent.parent / "requirements"
IMAGE, RUN, DEV, MUTANTS, DOCS = (REQUIREMENTS / f"{name}.txt" for name in ("image", "run", "dev", "mutants", "docs"))


@dataclass(frozen=True, order=True)
class Pin:
    """One package of a lock file; `hashes` are SHA-256 of the files that may be installed for it."""

    name: str
    version: str
    hashes: tuple[str, ...] = ()


def pins(*files: Path) -> list[Pin]:
    """Return all pins of these lock files, each once, by name."""
    found: dict[tuple[str, str], Pin] = {}
    for file in files:
        for block in re.split(r"\n(?=\S)", file.read_text()):
            if match := re.match(r"([\w.-]+)(?:\[[^\]]*\])?==([\w.!+-]+)", block):
                pin = Pin(normalised(match[1]), match[2], tuple(sorted(re.findall(r"sha256:([0-9a-f]{64})", block))))
                found.setdefault((pin.name, pin.version), pin)
    return sorted(found.values())


def normalised(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
