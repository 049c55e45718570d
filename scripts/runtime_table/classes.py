"""The classes of functions in `native/runtime/classes.yaml`: done, forwarded to the driver, or refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DONE = "done"
FORWARDED = "forwarded"
REFUSED = "refused"


class ClassError(Exception):
    """A function belongs to no class, or to two, or a name in the file is in no header."""


@dataclass(frozen=True)
class Class:
    """A class. `driver` is the driver function with the same parameters; `reason` is why it is refused."""

    kind: str
    driver: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Classes:
    """The file as read. `compiler` are the functions that compiled programs call and crt/host_runtime.h declares."""

    compiler: tuple[str, ...]
    exact: dict[str, Class]
    patterns: tuple[tuple[re.Pattern[str], Class], ...]

    def of(self, name: str, major: int) -> Class:
        """Return the class of the function in that major version. Raises ClassError: none, or two."""
        for key in (f"{name}@{major}", name):
            if key in self.exact:
                return self.exact[key]
        found = [kind for pattern, kind in self.patterns if pattern.fullmatch(name)]
        if len(found) != 1:
            raise ClassError(f"{name} (CUDA {major}): {'no class' if not found else 'two classes'} in classes.yaml")
        return found[0]

    def unknown(self, names: set[str]) -> list[str]:
        """Return names of the file that no header declares."""
        return sorted(key for key in self.exact if key.partition("@")[0] not in names)


def read(path: Path) -> Classes:
    """Read the file. Raises ClassError: a name is in it twice."""
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    exact: dict[str, Class] = {}
    patterns: list[tuple[re.Pattern[str], Class]] = []

    def add(key: str, kind: Class) -> None:
        if key in exact:
            raise ClassError(f"{key}: twice in {path}")
        exact[key] = kind

    for name in data[DONE]:
        add(name, Class(DONE))
    for name, driver in data[FORWARDED].items():
        add(name, Class(FORWARDED, driver=driver))
    for reason, group in data[REFUSED].items():
        for name in group.get("names", ()):
            add(name, Class(REFUSED, reason=reason))
        for pattern in group.get("patterns", ()):
            patterns.append((re.compile(pattern), Class(REFUSED, reason=reason)))
    return Classes(tuple(data["compiler"]), exact, tuple(patterns))
