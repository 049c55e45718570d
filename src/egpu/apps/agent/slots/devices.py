"""Device files: which a container may open. A granted name links to the real file, any other leads nowhere.

Without CDI, Allocate must name every file of the node before the slot has an owner. So each name is a link that is
filled in when the container starts. "Nowhere" is a device number that no driver serves: opening it is ENXIO."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egpu.adapters.cards.mig import FoundInstance
from egpu_base.errors import NotSupported
from egpu_base.system.files import link_like


@dataclass(frozen=True)
class Naming:
    """A vendor's names of device files, below /dev. `card` has {} in place of a card's minor number, `control` names
    the files that a program needs beside its card, if the node has them."""

    card: str
    control: tuple[str, ...]

    def of(self, minor: int) -> str:
        """Return the name of a card's file."""
        return self.card.format(minor)


NVIDIA: Final = Naming("nvidia{}", ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"))

# : The driver's list of the device files of MIG instances (on a simulated machine it is beside those files), and :
# their folder below /dev.
MIG_MINORS = Path("/proc/driver/nvidia-caps/mig-minors")
CAPABILITIES = "nvidia-caps"

#: Character majors that Linux leaves to local and experimental use (Documentation/admin-guide/devices.txt).
_LOCAL_MAJORS = (*range(60, 64), *range(120, 128))
_UNSERVED_TEXT = b"This card was not granted to this container.\n"


class DeviceFiles:
    """The device files of one node under `root`, and the file that leads nowhere, below `state_dir`."""

    def __init__(
        self, root: Path, state_dir: Path, *, naming: Naming = NVIDIA, proc_devices: Path = Path("/proc/devices")
    ) -> None:
        self._root = root
        self._naming = naming
        self._nowhere = state_dir / "unserved"
        self._links = state_dir / "links"
        """Directories of links, with one link to each; the links of slots are further names of it."""
        self._whole: set[Path] = set()
        """The directories that were checked."""
        self._proc_devices = proc_devices

    def cards(self, minors: Iterable[int]) -> dict[str, Path]:
        """Return the files of these cards, by their path below /dev."""
        return {file: self._root / file for file in map(self._naming.of, minors)}

    def control(self) -> dict[str, Path]:
        """Return the control devices that this node has, by their path below /dev."""
        return {file: path for file in self._naming.control if (path := self._root / file).exists()}

    def instance(self, minor: int, found: FoundInstance) -> dict[str, Path]:
        """Return the files that a program must open to use an instance of the card, by their path below /dev.

        Raises NotSupported if the driver does not name these files, or has not created them."""
        wanted = f"gpu{minor}/gi{found.gpu_id}/access", f"gpu{minor}/gi{found.gpu_id}/ci{found.compute_id}/access"
        own = self._root / CAPABILITIES / MIG_MINORS.name
        minors = own if own.exists() else MIG_MINORS
        try:
            numbers = dict(line.split() for line in minors.read_text().splitlines())
            files = [f"{CAPABILITIES}/nvidia-cap{numbers[each]}" for each in wanted]
        except (OSError, ValueError, KeyError) as error:
            raise NotSupported(f"{minors} does not name the device files of {wanted[0]}: {error}") from error
        if missing := [file for file in files if not (self._root / file).exists()]:
            made = f"nvidia-modprobe -f {Path('/proc/driver/nvidia/capabilities') / wanted[0]}"
            raise NotSupported(f"{self._root / missing[0]} does not exist; NVIDIA's tools create it: {made}")
        return {file: self._root / file for file in files}

    def links(self, granted: Collection[int], minors: Iterable[int]) -> dict[str, Path]:
        """Return the target of each name for a container with these minors. Without minors it gets no control device
        either: that device answers about every card of the node.

        Raises NotSupported as `nowhere` does."""
        control = self.control() if granted else {}
        cards = self.cards(granted)
        nowhere = self.nowhere()
        names = {*self._naming.control, *self.cards(minors), *cards}
        return {each: cards.get(each) or control.get(each) or nowhere for each in sorted(names)}

    def link(self, at: Path, granted: Collection[int], minors: Iterable[int]) -> None:
        """Make `at` a link to a directory of `links`. Raises NotSupported, OSError."""
        folder = self._folder(self.links(granted, minors))
        link_like(at, folder, like=_link_to(folder))

    def discard_unused(self, slots: Iterable[Path]) -> None:
        """Remove directories that none of these links, made by `link`, points to."""
        used = {os.path.basename(os.readlink(slot)) for slot in slots if slot.is_symlink()}
        for each in self._links.iterdir() if self._links.is_dir() else ():
            if each.name.partition(".")[0] in used:
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)

    def _folder(self, links: Mapping[str, Path]) -> Path:
        """Return a directory with exactly these links, which never changes: there is one per kind of slot."""
        content = "".join(f"{file}\0{target}\0" for file, target in links.items())
        folder = self._links / hashlib.sha256(content.encode()).hexdigest()[:32]
        if folder not in self._whole:
            if not folder.is_dir() or _links_in(folder) != links:
                shutil.rmtree(folder, ignore_errors=True)
                for file, target in links.items():
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).symlink_to(target)
            with contextlib.suppress(FileExistsError):
                _link_to(folder).symlink_to(folder)
            self._whole.add(folder)
        return folder

    def nowhere(self) -> Path:
        """Return the file that nothing serves: a device node on a real node, a plain file on a simulated one.

        Raises NotSupported if the node's cards are device files and the agent may not create one."""
        real = any(path.is_char_device() for path in self._root.glob(self._naming.card.format("[0-9]*")))
        if self._fits(real=real):
            return self._nowhere
        self._nowhere.parent.mkdir(parents=True, exist_ok=True)
        self._nowhere.unlink(missing_ok=True)
        if not real:
            self._nowhere.write_bytes(_UNSERVED_TEXT)
            return self._nowhere
        try:
            os.mknod(self._nowhere, 0o666 | stat.S_IFCHR, os.makedev(self._unused_major(), 0))
        except PermissionError as error:
            raise NotSupported(
                f"{self._nowhere}: a device node cannot be created ({error}); the agent needs CAP_MKNOD to keep "
                "containers away from other cards"
            ) from error
        return self._nowhere

    def _fits(self, *, real: bool) -> bool:
        try:
            found = self._nowhere.lstat()
        except FileNotFoundError:
            return False
        if not real:
            return stat.S_ISREG(found.st_mode)
        return stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) not in self._majors_in_use()

    def _unused_major(self) -> int:
        used = self._majors_in_use()
        for major in _LOCAL_MAJORS:
            if major not in used:
                return major
        raise NotSupported("every device major for local use is taken on this node")

    def _majors_in_use(self) -> set[int]:
        try:
            lines = self._proc_devices.read_text().splitlines()
        except OSError:
            return set()
        return {int(words[0]) for line in lines if (words := line.split()) and words[0].isdigit()}


def _link_to(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.link")


def _links_in(folder: Path) -> dict[str, Path]:
    """Return the links of a directory and its folders. Any other file is one that nobody asked for."""
    files = [each for each in folder.rglob("*") if each.is_symlink() or not each.is_dir()]
    return {str(each.relative_to(folder)): each.readlink() if each.is_symlink() else each for each in files}
