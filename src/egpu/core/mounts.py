"""A pod's own mounts at the paths where a container with a GPU gets its slice.

A volume over the slice's directory, or over a file in it, takes the interposer or its limits away. Runtimes mount
parents first, but not all promise it: a volume over a parent is refused too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from egpu.api import names
from egpu_base.api.kubernetes import ResourceRequirements
from egpu_base.api.wire import Wire


class VolumeMount(Wire, frozen=True, kw_only=True):
    mount_path: str = ""


class VolumeDevice(Wire, frozen=True, kw_only=True):
    device_path: str = ""


class MountingContainer(Wire, frozen=True, kw_only=True):
    name: str = ""
    resources: ResourceRequirements | None = None
    volume_mounts: Sequence[VolumeMount] | None = None
    volume_devices: Sequence[VolumeDevice] | None = None


class MountingSpec(Wire, frozen=True, kw_only=True):
    containers: Sequence[MountingContainer] | None = None
    init_containers: Sequence[MountingContainer] | None = None


class MountingPod(Wire, frozen=True, kw_only=True):
    """What a new pod mounts. No cache keeps it, so it is read only when a pod is created."""

    spec: MountingSpec


def covering_mounts(pod: MountingPod) -> Iterator[tuple[str, str]]:
    """Yield the field and the problem of each mount that would cover the slice of its container."""
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for container in containers or ():
            if names.SLOT not in ((container.resources and container.resources.limits) or {}):
                continue
            mounts = [("volumeMounts", one.mount_path) for one in container.volume_mounts or ()]
            mounts += [("volumeDevices", one.device_path) for one in container.volume_devices or ()]
            for field, path in mounts:
                if (covered := _covered(path)) is not None:
                    yield (
                        f"spec.{kind}[{container.name}].{field}[{path}]",
                        f"would cover {covered}, where a container with a GPU gets its slice; mount it elsewhere",
                    )


def _covered(path: str) -> str | None:
    """Return the path of the slice that a mount at `path` is above, at, or below."""
    at = posixpath.normpath(f"/{path}").lstrip("/").split("/")
    for ours in names.SLICE_PATHS:
        parts = ours.lstrip("/").split("/")
        common = min(len(at), len(parts))
        if at == [""] or at[:common] == parts[:common]:
            return ours
    return None
