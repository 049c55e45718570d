"""A node's offer to kubelet: its slots, and the answer to Allocate. That depends only on the slot's id, so the shim can
answer from the offer, whether an agent runs or not."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from egpu_base.errors import TerminalError
from egpu_base.kubelet.deviceplugin import ContainerDevices, PluginDevice
from egpu_base.system.files import last_change, write_atomically

SLOT_ID: Final = "{slot}"
"""The place of the slot's id in an offer's answer."""


class Offer(msgspec.Struct, frozen=True):
    """The slots, and the answer to Allocate for any one of them, with SLOT_ID instead of its id."""

    slots: tuple[PluginDevice, ...]
    answer: ContainerDevices

    def answered(self, ids: tuple[str, ...]) -> ContainerDevices:
        """Return the answer for a slot. Raises TerminalError: a container holds exactly one slot."""
        text = msgspec.json.encode(self.answer).decode().replace(SLOT_ID, only(ids))
        return msgspec.json.decode(text, type=ContainerDevices)


def only(ids: tuple[str, ...]) -> str:
    """Return a container's one slot. Raises TerminalError for another number of them, or another kind of id."""
    if len(ids) != 1:
        raise TerminalError(f"a GPU container holds exactly one slot; this one requests {len(ids)}")
    if not ids[0].isdigit():
        raise TerminalError(f"{ids[0]!r} is not a slot of this node")
    return ids[0]


def write(file: Path, offer: Offer) -> None:
    write_atomically(file, msgspec.json.encode(offer), mode=0o600)


def read(file: Path) -> Offer | None:
    """Return the offer, or None without one that this version can read: the agent rewrites it at its start."""
    try:
        return _read(file, last_change(file), file.stat().st_ino)
    except (OSError, msgspec.MsgspecError):
        return None


@lru_cache(maxsize=1)
def _read(file: Path, _changed: int, _inode: int) -> Offer:
    """Read and cache the offer, which is needed several times a second, is large, and hardly ever changes."""
    return msgspec.json.decode(file.read_bytes(), type=Offer)
