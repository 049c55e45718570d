"""Container Device Interface: the specification files by which a container runtime adds devices to a container.

Format and rules: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. A device is named
VENDOR/CLASS=NAME; what it means stands in a file of a directory that the runtime reads whenever a container is created.
A file with a field that nobody knows is no specification, here as there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from egpu.adapters.files import change_of
from egpu.errors import CorruptData

DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes look, the last one first; programs write into the last."""
VERSION: Final = "0.5.0"
"""The oldest that knows `hostPath` of device nodes and device names that begin with a digit."""
SUFFIXES: Final = (".json", ".yaml")
MAX_BYTES: Final = 4 << 20
"""Of one file: NVIDIA's has some 100 kB."""
KEPT: Final = 1024
"""Files that are not decoded again until somebody writes them: a slot has one, and every container needs all read."""


class DeviceNode(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """A device file for the container: `path` there, `host_path` here (no link). `permissions` is some of "rwm"."""

    path: str
    host_path: str = ""
    permissions: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class Mount(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A file or directory of this machine, shown in the container; `options` as mount(8) has them."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class ContainerEdits(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What is added to a container. `env` are NAME=VALUE, `hooks` programs that the runtime runs, as they were read."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[dict[str, Any], ...] = ()
    additional_gids: tuple[int, ...] = msgspec.field(name="additionalGids", default=())
    net_devices: tuple[dict[str, Any], ...] = ()
    intel_rdt: dict[str, Any] | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    name: str
    container_edits: ContainerEdits
    annotations: dict[str, str] = {}


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """One file. `container_edits` come with every device of it."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = {}


def read(path: os.PathLike[str]) -> Spec:
    """The specification in a file. Raises CorruptData for one that is none, and OSError."""
    status = os.stat(path)
    return _read(os.fspath(path), change_of(status), status.st_ino)


@lru_cache(KEPT)
def _read(path: str, _changed: int, _inode: int) -> Spec:
    with open(path, "rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise CorruptData(f"{path}: more than {MAX_BYTES} bytes")
    try:
        plain = msgspec.json.decode(text) if path.endswith(".json") else yaml.safe_load(text)
        return msgspec.convert(plain, Spec)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise CorruptData(f"{path}: {error}") from error


def files(directories: Sequence[Path], *, but: str = "") -> Iterator[os.DirEntry[str]]:
    """Every file that may hold a specification, in the order in which the directories are given; without those whose
    names begin with `but`, if that is given."""
    for directory in directories:
        try:
            with os.scandir(directory) as found:
                entries = [
                    each for each in found if each.name.endswith(SUFFIXES) and not (but and each.name.startswith(but))
                ]
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from sorted(entries, key=lambda each: each.name)


def newer(one: str, other: str) -> str:
    """The newer of two versions, such as "0.5.0"."""
    return max(one, other, key=lambda text: tuple(int(part) for part in text.split(".") if part.isdigit()))
