"""Pods as a kubelet reads them: wider than what the rest of the program knows of a pod. Unknown fields are ignored."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import field

from egpu.api.kubernetes import PodStatus, ResourceRequirements
from egpu.api.objects import Object
from egpu.api.wire import Resource, Wire


class KeySelector(Wire, frozen=True, kw_only=True):
    """A key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class FieldSelector(Wire, frozen=True, kw_only=True):
    field_path: str = ""


class ResourceSelector(Wire, frozen=True, kw_only=True):
    resource: str = ""
    container_name: str = ""
    divisor: str | int | float = ""


class ValueFrom(Wire, frozen=True, kw_only=True):
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(Wire, frozen=True, kw_only=True):
    name: str
    value: str = ""
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


class Container(Wire, frozen=True, kw_only=True):
    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str = ""
    env: list[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    resources: ResourceRequirements | None = None
    volume_mounts: list[VolumeMount] | None = None
    restart_policy: str = ""

    @property
    def restartable(self) -> bool:
        """As an init container: a sidecar."""
        return self.restart_policy == "Always"


class PodSpec(Wire, frozen=True, kw_only=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    node_name: str = ""
    hostname: str = ""
    restart_policy: str = ""
    service_account_name: str = ""
    termination_grace_period_seconds: int | None = None


class Pod(Object, frozen=True, kw_only=True, tag_field="kind", tag="Pod"):
    """A pod with everything that is needed to run it."""

    resource: ClassVar[Resource] = Resource("", "v1", "pods", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def containers(self) -> list[Container]:
        return self.spec.containers or []

    @property
    def init_containers(self) -> list[Container]:
        return self.spec.init_containers or []

    @property
    def restart_policy(self) -> str:
        return self.spec.restart_policy or "Always"

    @property
    def grace_seconds(self) -> float:
        """How long its containers have between SIGTERM and SIGKILL."""
        if self.metadata.deletion_grace_period_seconds is not None:
            return float(self.metadata.deletion_grace_period_seconds)
        given = self.spec.termination_grace_period_seconds
        return 30.0 if given is None else float(given)


class ConfigMap(Object, frozen=True, kw_only=True, tag_field="kind", tag="ConfigMap"):
    resource: ClassVar[Resource] = Resource("", "v1", "configmaps", namespaced=True)

    api_version: str = field(default_factory=lambda: "v1")
    data: dict[str, str] | None = None
