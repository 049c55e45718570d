"""Pods as a kubelet reads them, with more fields than elsewhere. Unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import field

from egpu_base.api import kubernetes
from egpu_base.api.objects import Object
from egpu_base.api.wire import Resource, Wire


class KeySelector(Wire, frozen=True, kw_only=True):
    name: str = ""
    key: str = ""
    optional: bool = False


class ResourceSelector(Wire, frozen=True, kw_only=True):
    resource: str = ""
    container_name: str = ""
    divisor: str | int | float = ""


class ValueFrom(kubernetes.EnvVarSource, frozen=True, kw_only=True):
    resource_field_ref: ResourceSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(kubernetes.EnvVar, frozen=True, kw_only=True):
    value_from: ValueFrom | None = None


class SourceRef(Wire, frozen=True, kw_only=True):
    name: str = ""
    optional: bool = False


class EnvFrom(Wire, frozen=True, kw_only=True):
    prefix: str = ""
    config_map_ref: SourceRef | None = None
    secret_ref: SourceRef | None = None


class VolumeMount(Wire, frozen=True, kw_only=True):
    name: str
    mount_path: str = ""
    sub_path: str = ""
    read_only: bool = False


class HostPath(Wire, frozen=True, kw_only=True):
    path: str = ""
    type: str = ""


class Volume(Wire, frozen=True, kw_only=True):
    """`unsupported` kinds are recognised by having neither of the two."""

    name: str
    empty_dir: dict[str, Any] | None = None
    host_path: HostPath | None = None
    config_map: dict[str, Any] | None = None
    secret: dict[str, Any] | None = None
    projected: dict[str, Any] | None = None


class Container(kubernetes.Container, frozen=True, kw_only=True):
    env: Sequence[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    volume_mounts: list[VolumeMount] | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False

    @property
    def restartable(self) -> bool:
        """True for a sidecar among init containers."""
        return self.restart_policy == "Always"


class PodSpec(kubernetes.PodSpec, frozen=True, kw_only=True):
    containers: Sequence[Container] | None = None
    init_containers: Sequence[Container] | None = None
    volumes: list[Volume] | None = None
    hostname: str = ""


class Pod(kubernetes.Pod, frozen=True, kw_only=True):
    """A pod with everything that is needed to run it."""

    spec: PodSpec = field(default_factory=PodSpec)

    @property
    def containers(self) -> Sequence[Container]:
        return self.spec.containers or []

    @property
    def init_containers(self) -> Sequence[Container]:
        return self.spec.init_containers or []

    @property
    def restart_policy(self) -> str:
        return self.spec.restart_policy or "Always"

    @property
    def grace_seconds(self) -> float:
        """The seconds between SIGTERM and SIGKILL of its containers."""
        if self.metadata.deletion_grace_period_seconds is not None:
            return float(self.metadata.deletion_grace_period_seconds)
        given = self.spec.termination_grace_period_seconds
        return 30.0 if given is None else float(given)


class ConfigMap(Object, frozen=True, kw_only=True, tag_field="kind", tag="ConfigMap"):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    data: dict[str, str] | None = None
