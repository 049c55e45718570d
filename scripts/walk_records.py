"""The ways of programs through their steps: what scripts/wheel_walks.py finds, and the record of its last runs."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from counting_driver import KERNELS

RECORDED: Final = Path(__file__).parent / "walks" / "recorded.json"
THROUGH: Final = "through"
_LOADS: Final = ("cuLibraryLoadData", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary")


@dataclass
class Walk:
    """The way of a program through its steps in one place."""

    steps: dict[str, str] = field(default_factory=dict[str, str])
    """By step: `through`, or the error."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Of the card's driver, by function; empty over the pool."""
    sessions: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """Over the pool: calls, bytes in, bytes out, images and kernels of each session."""
    refused: list[str] = field(default_factory=list[str])

    def figures(self) -> dict[str, int]:
        """Return the sums of the table's columns."""
        if not self.sessions:
            functions = self.functions()
            return {
                "functions": len(functions), "calls": sum(functions.values()),
                "images": sum(self.calls[name] for name in _LOADS), "kernels": self.calls[KERNELS],
            }  # fmt: skip
        calls, come, gone, images, kernels = (sum(column) for column in zip(*self.sessions, strict=True))
        return {"calls": calls, "bytes": come + gone, "images": images, "kernels": kernels}

    def functions(self) -> dict[str, int]:
        """Return the calls by function."""
        return {name: count for name, count in self.calls.items() if name != KERNELS}

    def lost(self) -> dict[str, str]:
        """Return the steps that did not go through, with their errors."""
        return {step: error for step, error in self.steps.items() if error != THROUGH}


def store(name: str, *, version: str, date: str, found: Mapping[str, Walk]) -> None:
    """Write the walks of a program into the record: those of its other places stay."""
    recorded = read_text()
    program = recorded.setdefault(name, {"places": {}})
    program["version"] = version
    for place, walk in found.items():
        program["places"][place] = {"date": date} | vars(walk)
    RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def read_text() -> dict[str, Any]:
    """Return the record as it is written; empty where there is none."""
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def walk_of(recorded: Mapping[str, Any]) -> Walk:
    """Return a walk of the record."""
    sessions = [tuple(each) for each in recorded["sessions"]]
    return Walk(recorded["steps"], Counter(recorded["calls"]), sessions, recorded["refused"])
