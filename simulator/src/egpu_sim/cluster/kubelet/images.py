"""The program of a container, by image, command and args. `images.yaml` maps images to programs for containers without
a command; a table of the user's, in the same form, comes first."""

from __future__ import annotations

import fnmatch
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from egpu_base.errors import InvalidInput, NotSupported
from egpu_sim import native
from egpu_sim.cluster.kubelet.objects import Container

_Words = Annotated[list[str], msgspec.Meta(min_length=1)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`image` with * for anything, and one of `run` and `cmd`. Both start with a program: by its path, by a name on
    PATH, or by the name of a native program that is shipped (`samples/…`, see `egpu_sim.native`)."""

    image: str
    run: _Words | None = None
    """An entry point: a container's args follow the program."""
    cmd: _Words | None = None
    """A default command: a container's args are another command."""

    def __post_init__(self) -> None:
        if (self.run is None) == (self.cmd is None):
            raise ValueError("give one of run and cmd")

    def argv(self, args: list[str]) -> list[str]:
        if self.cmd is not None and args:
            return args
        program, *rest = self.run or self.cmd or []
        shipped = "/" in program and not program.startswith("/")
        return [str(native.path(program)) if shipped else program, *(args or rest)]


def argv(container: Container, own: Path | None = None) -> list[str]:
    """Return the argv. `args` follow the container's command or the image's entry point, or replace the image's default
    command, as in Kubernetes. `own`: the user's table.

    Raises:
        NotSupported: no command, and no such image in the tables.
        InvalidInput: the user's table cannot be read.
        NativeMissing: the image's program was not built.
    """
    args = container.args or []
    if container.command:
        return [*container.command, *args]
    for entry in (*(read(own) if own is not None else ()), *_shipped()):
        if fnmatch.fnmatchcase(container.image, entry.image):
            return entry.argv(args)
    raise NotSupported(
        f"image {container.image!r}: images are not pulled, and no shipped program stands for this one; "
        "give the container a command, use an image from the table in egpu_sim/cluster/kubelet/images.yaml, "
        "or add a table of your own: egpu up --images FILE"
    )


def read(path: Path) -> tuple[Entry, ...]:
    """Read a user's table. Raises InvalidInput."""
    try:
        return _entries(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        form = "each entry is {image: PATTERN, run: [PROGRAM, …]}, or with cmd for run"
        raise InvalidInput("images", f"{path}: {error}; {form}") from error


@cache
def _shipped() -> tuple[Entry, ...]:
    return _entries(resources.files("egpu_sim.cluster.kubelet").joinpath("images.yaml").read_bytes())


def _entries(text: bytes) -> tuple[Entry, ...]:
    return msgspec.yaml.decode(text, type=tuple[Entry, ...])
