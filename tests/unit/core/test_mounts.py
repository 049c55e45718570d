"""A pod's own mounts over the paths where its container gets a slice, however they are written."""

from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.core.mounts import MountingPod, covering_mounts

GPU = {"limits": {names.SLOT: "1"}}


def problems(kind: str = "containers", resources: object = None, **container: Any) -> list[tuple[str, str]]:
    one = {"name": "app", "resources": GPU if resources is None else resources, **container}
    return list(covering_mounts(msgspec.convert({"spec": {kind: [one]}}, MountingPod)))


@pytest.mark.parametrize(
    "path",
    [
        *("/opt/egpu", "/opt/egpu/", "opt/egpu", "//opt//egpu", "/opt/./egpu", "/opt/x/../egpu", "/x/../../opt/egpu"),
        *("/opt/egpu/policy", "/opt/egpu/usage", "/opt", "/", "/.", ".."),
        *("/etc/ld.so.preload", "/etc", "/etc/x/.."),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_volume_over_the_slice_is_named(kind: str, path: str) -> None:
    """Whatever the volume is: an emptyDir, a path of the node, a projected one, a part of any."""
    mount = {"name": "v", "mountPath": path, "subPath": "a"}
    ((field, reason),) = problems(kind, volumeMounts=[{"name": "w", "mountPath": "/data"}, mount])
    assert field == f"spec.{kind}[app].volumeMounts[{path}]"
    assert "gets its slice" in reason


def test_a_device_over_the_slice_is_named() -> None:
    ((field, _),) = problems(volumeDevices=[{"name": "v", "devicePath": "/opt/egpu/policy"}])
    assert field == "spec.containers[app].volumeDevices[/opt/egpu/policy]"


@pytest.mark.parametrize(
    "path", ["/opt/egpus", "/opt/data", "/etc/config", "/data/opt/egpu", "/dev/shm", "/etc/ld.so.preload.d"]
)
def test_other_places_are_free(path: str) -> None:
    assert problems(volumeMounts=[{"name": "v", "mountPath": path}]) == []


@pytest.mark.parametrize("resources", [{}, {"limits": {"cpu": "1"}}, {"requests": {"cpu": "1"}}])
def test_a_container_without_a_gpu_mounts_what_it_likes(resources: object) -> None:
    assert problems(resources=resources, volumeMounts=[{"name": "v", "mountPath": "/opt/egpu"}]) == []
