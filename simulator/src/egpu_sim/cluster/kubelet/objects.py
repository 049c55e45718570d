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
    sub_path_expr: str = ""
    read_only: bool = False


class HostPath(Wire, frozen=True, kw_only=True):
    path: str = ""
    type: str = ""


class KeyToPath(Wire, frozen=True, kw_only=True):
    key: str = ""
    path: str = ""
    mode: int | None = None


class FilesOf(Wire, frozen=True, kw_only=True):
    """Files of a ConfigMap or Secret: of all its keys, or of `items`."""

    name: str = ""
    secret_name: str = ""
    items: list[KeyToPath] | None = None
    default_mode: int = 0o644
    optional: bool = False


class DownwardFile(Wire, frozen=True, kw_only=True):
    path: str = ""
    field_ref: kubernetes.ObjectFieldSelector | None = None
    resource_field_ref: ResourceSelector | None = None
    mode: int | None = None


class DownwardFiles(Wire, frozen=True, kw_only=True):
    """Files of what the pod says of itself."""

    items: list[DownwardFile] = field(default_factory=list[DownwardFile])
    default_mode: int = 0o644


class Projection(Wire, frozen=True, kw_only=True):
    """One source of files."""

    config_map: FilesOf | None = None
    secret: FilesOf | None = None
    downward_api: DownwardFiles | None = field(default=None, name="downwardAPI")
    service_account_token: dict[str, Any] | None = None


class Projected(Wire, frozen=True, kw_only=True):
    sources: list[Projection] = field(default_factory=list[Projection])
    default_mode: int = 0o644


class Volume(Wire, frozen=True, kw_only=True):
    """Kinds that are not supported are recognised by having none of these."""

    name: str
    empty_dir: dict[str, Any] | None = None
    host_path: HostPath | None = None
    config_map: FilesOf | None = None
    secret: FilesOf | None = None
    downward_api: DownwardFiles | None = field(default=None, name="downwardAPI")
    projected: Projected | None = None


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
    binary_data: dict[str, str] | None = None
    """In base64."""
