"""Container Device Interface: the specification files by which a container runtime adds devices to a container.

Format and rules: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. A device is named
VENDOR/CLASS=NAME. The runtime reads its meaning from a file in a directory whenever a container is created. A file with
an unknown field is invalid, for the runtime and here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from egpu_base.errors import CorruptData
from egpu_base.system.files import change_of

DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The directories that runtimes read, the last one with priority; programs write into the last."""
VERSION: Final = "0.5.0"
"""The oldest version with `hostPath` of device nodes and device names that begin with a digit."""
SUFFIXES: Final = (".json", ".yaml")
MAX_BYTES: Final = 4 << 20
"""The size limit of one file: NVIDIA's has some 100 kB."""
KEPT: Final = 1024
"""The number of decoded files to cache: a slot has one, and each new container needs all of them."""


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
    """A file or directory of this machine, shown in the container; `options` as in mount(8)."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class ContainerEdits(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Additions to a container: `env` as NAME=VALUE, and `hooks`, programs that the runtime runs, as they were read."""

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
    """One specification file. Its `container_edits` apply to all its devices."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = {}


def read(path: os.PathLike[str]) -> Spec:
    """Read the specification in a file. Raises CorruptData for an invalid one, and OSError."""
    status = os.stat(path)
    return _read(os.fspath(path), change_of(status), status.st_ino)


@lru_cache(KEPT)
def _read(path: str, _changed: int, _inode: int) -> Spec:
    with open(path, "rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise CorruptData(f"{path}: larger than {MAX_BYTES} bytes, not a CDI specification")
    try:
        plain = msgspec.json.decode(text) if path.endswith(".json") else yaml.safe_load(text)
        return msgspec.convert(plain, Spec)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise CorruptData(f"{path}: {error}") from error


def files(directories: Sequence[Path], *, but: str = "") -> Iterator[os.DirEntry[str]]:
    """Return every file that may hold a specification, in the order of the directories, without files whose names begin
    with `but`."""
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
    """Return the newer of two versions, such as "0.5.0"."""
    return max(one, other, key=lambda text: tuple(int(part) for part in text.split(".") if part.isdigit()))
