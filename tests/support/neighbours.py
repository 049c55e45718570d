"""Pods of other projects' groups."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from egpu.api import names
from egpu_base.api.kubernetes import Pod
from support.objects import container, pod

SLICE: Mapping[str, int] = {names.GPU_CORE: 60}


def grouped(
    name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    *,
    limits: Mapping[str, int] = SLICE,
    **spec: Any,
) -> Pod:
    """Return a pod with these labels, that asks for a slice by default."""
    one = pod(name, container("app", dict(limits)))
    given = {key: dict(found) if found else None for key, found in (("labels", labels), ("annotations", annotations))}
    return replace(one, metadata=replace(one.metadata, **given), spec=replace(one.spec, **spec))
