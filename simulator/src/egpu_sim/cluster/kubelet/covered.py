"""Paths of this machine that a container's volumes cover. Its set-up needs some, and shows them in another place.

A container sees this machine's files, except where a volume is mounted. One at /tmp or /dev/shm may cover the simulated
driver, its state or a shipped program, which no real container looks for there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from egpu_sim import native
from egpu_sim.cluster.kubelet.runtime import Bind

PLACE: Final = "/opt/egpu-machine"
MOST_LINKS: Final = 40
"""As many as Linux follows in one path."""


class Covered:
    """The paths of one container. `binds` are the mounts for the paths that `shown` was asked for."""

    def __init__(self, volumes: Sequence[Bind]) -> None:
        self._volumes = [os.path.realpath(volume.target) for volume in volumes]
        self._places: dict[str, str] = {}

    @property
    def binds(self) -> list[Bind]:
        return [Bind(source, place) for source, place in self._places.items()]

    def shown(self, path: str | Path) -> str:
        """Return where the container sees `path`, a file or directory of this machine."""
        if not any(map(self._covers, _steps(path) if self._volumes else ())):
            return str(path)
        real = os.path.realpath(path)
        if not self._covers(real):
            return real  # a link on the way is covered, and its target is not
        return self._places.setdefault(real, f"{PLACE}/{len(self._places)}/{Path(real).name}")

    def _covers(self, path: str) -> bool:
        return any(Path(path).is_relative_to(volume) for volume in self._volumes)

    def link_anew(self, directory: Path) -> None:
        """Lead the links of a directory to where the container sees their targets."""
        for link in directory.iterdir() if self._volumes else ():
            if link.is_symlink() and (place := self.shown(target := os.readlink(link))) != target:
                link.unlink()
                link.symlink_to(place)

    def search_path(self, text: str) -> str:
        """Return a PATH whose folders of shipped programs are seen."""
        ours = tuple(f"{folder}/" for folder in native.directories())
        return ":".join(self.shown(each) if each.startswith(ours) else each for each in text.split(":"))


def _steps(path: str | Path) -> list[str]:
    """Return the places that lead to a path's target: of its links and of their targets, as far as they lead."""
    places: list[str] = []
    rest = [os.path.abspath(path)]
    for _ in range(MOST_LINKS):
        if not rest:
            break
        whole = Path(rest.pop())
        for each in (whole, *whole.parents):
            place = os.path.join(os.path.realpath(each.parent), each.name)
            places.append(place)
            if os.path.islink(place):
                rest.append(os.path.join(os.path.dirname(place), os.readlink(place)))
    return [*places, os.path.realpath(path)]
