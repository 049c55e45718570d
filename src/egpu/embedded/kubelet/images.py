"""From a container's image, command and args to the program that is run. `images.yaml` says what the images run of
containers without a command, and before it a table of the user's own, in the same form."""

from __future__ import annotations

import fnmatch
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec

from egpu.adapters import native
from egpu.embedded.kubelet.objects import Container
from egpu.errors import InvalidInput, NotSupported


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`image` with * for anything. `run` starts with a program: by its path, by a name on PATH, or by the name of a
    native program that is shipped (`samples/…`, see `egpu.adapters.native`)."""

    image: str
    run: Annotated[list[str], msgspec.Meta(min_length=1)]


def argv(container: Container, own: Path | None = None) -> list[str]:
    """What to run. `args` follow the image's program, or the command, as in Kubernetes. `own`: the user's table.

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
            program, *rest = entry.run
            shipped = "/" in program and not program.startswith("/")
            return [str(native.path(program)) if shipped else program, *(args or rest)]
    raise NotSupported(
        f"image {container.image!r}: nothing is pulled here and no shipped program stands for it; "
        "give the container a command, use an image of the table in egpu/embedded/kubelet/images.yaml, "
        "or add to it with a table of your own: egpu up --images FILE"
    )


def read(path: Path) -> tuple[Entry, ...]:
    """A user's table. Raises InvalidInput."""
    try:
        return _entries(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput("images", f"{path}: {error}; each entry is {{image: PATTERN, run: [PROGRAM, …]}}") from error


@cache
def _shipped() -> tuple[Entry, ...]:
    return _entries(resources.files("egpu.embedded.kubelet").joinpath("images.yaml").read_bytes())


def _entries(text: bytes) -> tuple[Entry, ...]:
    return msgspec.yaml.decode(text, type=tuple[Entry, ...])
