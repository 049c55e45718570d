"""From a container's image, command and args to the program that is run. `images.yaml` says what the images run of
containers without a command."""

from __future__ import annotations

import fnmatch
from functools import cache
from importlib import resources
from typing import Any, cast

import yaml

from egpu.adapters import native
from egpu.embedded.kubelet.objects import Container
from egpu.errors import NotSupported


def argv(container: Container) -> list[str]:
    """What to run. `args` follow the image's program, or the command, as in Kubernetes.

    Raises:
        NotSupported: no command, and no such image in the table.
        NativeMissing: the image's program was not built.
    """
    args = container.args or []
    if container.command:
        return [*container.command, *args]
    for pattern, run in _table():
        if fnmatch.fnmatchcase(container.image, pattern):
            program, *rest = run
            return [str(native.path(program)) if "/" in program else program, *(args or rest)]
    raise NotSupported(
        f"image {container.image!r}: nothing is pulled here and no shipped program stands for it; "
        "give the container a command, or use an image of the table in egpu/embedded/kubelet/images.yaml"
    )


@cache
def _table() -> tuple[tuple[str, tuple[str, ...]], ...]:
    text = resources.files("egpu.embedded.kubelet").joinpath("images.yaml").read_text()
    entries = cast(list[dict[str, Any]], yaml.safe_load(text))
    return tuple((entry["image"], tuple(entry["run"])) for entry in entries)
