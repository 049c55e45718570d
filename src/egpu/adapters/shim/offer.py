"""What a node offers kubelet: its slots, and how Allocate is answered. That depends on nothing but the slot's id, so
whoever has the offer can answer, whether an agent runs or not."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from egpu.adapters.files import last_change, write_atomically
from egpu.adapters.kubelet.deviceplugin import ContainerDevices, PluginDevice
from egpu.errors import TerminalError

SLOT_ID: Final = "{slot}"
"""Stands for the slot's id in an offer's answer."""


class Offer(msgspec.Struct, frozen=True):
    """The slots, and the answer to Allocate for any one of them, with SLOT_ID in the place of its id."""

    slots: tuple[PluginDevice, ...]
    answer: ContainerDevices

    def answered(self, ids: tuple[str, ...]) -> ContainerDevices:
        """Raises TerminalError: a container holds exactly one slot, by its number."""
        text = msgspec.json.encode(self.answer).decode().replace(SLOT_ID, only(ids))
        return msgspec.json.decode(text, type=ContainerDevices)


def only(ids: tuple[str, ...]) -> str:
    """The one slot that a container holds. Raises TerminalError for another number of them, or another kind of id."""
    if len(ids) != 1:
        raise TerminalError(f"a GPU container holds exactly one slot, this one asks for {len(ids)}")
    if not ids[0].isdigit():
        raise TerminalError(f"{ids[0]!r} is not a slot of this node")
    return ids[0]


def write(file: Path, offer: Offer) -> None:
    write_atomically(file, msgspec.json.encode(offer), mode=0o600)


def read(file: Path) -> Offer | None:
    """None where there is none, or none that this version can read: the agent writes it anew when it starts."""
    try:
        return _read(file, last_change(file), file.stat().st_ino)
    except (OSError, msgspec.MsgspecError):
        return None


@lru_cache(maxsize=1)
def _read(file: Path, _changed: int, _inode: int) -> Offer:
    """It is asked for several times a second, has hundreds of slots, and hardly ever changes."""
    return msgspec.json.decode(file.read_bytes(), type=Offer)
