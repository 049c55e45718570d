"""The volumes of a pod: directories of this machine that are mounted into its containers.

Files of ConfigMaps, Secrets and the pod itself are written when a container starts, as these objects are then. A real
kubelet also follows later changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from egpu_base.errors import InvalidInput, NotSupported
from egpu_base.system.files import write_atomically
from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.environment import Sources, amount, environment, expand, pod_field, references
from egpu_sim.cluster.kubelet.objects import (
    Container,
    DownwardFiles,
    FilesOf,
    HostPath,
    Pod,
    Projected,
    Projection,
    Volume,
    VolumeMount,
)
from egpu_sim.cluster.kubelet.runtime import Bind

SUPPORTED = "emptyDir, hostPath, configMap, secret, downwardAPI and projected"
AUTHORITY = "kube-root-ca.crt"
"""The ConfigMap with the API server's certificate, which Kubernetes makes in every namespace."""
_IS: Mapping[str, Callable[[Path], bool]] = {
    "BlockDevice": Path.is_block_device, "CharDevice": Path.is_char_device, "Directory": Path.is_dir,
    "File": Path.is_file, "Socket": Path.is_socket,
}  # fmt: skip
"""The types of a hostPath, which the API server checks."""
_writing = threading.Lock()
"""Containers of a pod start at the same time, and may have the same volume."""
_File = tuple[str, bytes, int]
"""The path in the volume, the content, and the mode."""


def mounts(config: KubeletConfig, pod: Pod, container: Container, sources: Sources) -> list[Bind]:
    """Return the mounts of the container's volumes, whose directories and files are made.

    Raises:
        InvalidInput: a volume cannot be resolved.
        NotSupported: a kind of volume that this kubelet does not support.
    """
    known = {volume.name: volume for volume in pod.spec.volumes or []}
    binds: list[Bind] = []
    for mount in container.volume_mounts or []:
        volume = known.get(mount.name)
        if volume is None:
            raise InvalidInput("volumeMounts", f"there is no volume {mount.name!r}")
        files = _files(config, pod, volume, sources)
        source = _directory(config, pod, volume) if files is None else _written(config, pod, volume, files)
        if source is not None:
            below = _below(config, pod, container, mount, sources)
            path = _part(source, below, make=files is None) if below else source
            binds.append(Bind(str(path), mount.mount_path, mount.read_only or files is not None))
    return binds


def named_by_volumes(pod: Pod) -> tuple[set[str], set[str]]:
    """Return the names of the ConfigMaps and of the Secrets whose files the pod's volumes have."""
    maps: set[str] = set()
    secrets: set[str] = set()
    for volume in pod.spec.volumes or []:
        for one in _projections(volume):
            maps |= {one.config_map.name} if one.config_map else set[str]()
            secrets |= {_secret_name(one.secret)} if one.secret else set[str]()
    return maps, secrets


def _below(config: KubeletConfig, pod: Pod, container: Container, mount: VolumeMount, sources: Sources) -> str:
    """Return the part of the volume that is mounted: a path in it, or nothing for all of it."""
    if not mount.sub_path_expr:
        return mount.sub_path
    env = environment(pod, container, node_ip=config.node_ip, devices={}, sources=sources)
    path = expand(mount.sub_path_expr, env)
    if missing := references(mount.sub_path_expr) - env.keys():
        raise InvalidInput("subPathExpr", f"the container has no variable {min(missing)!r}")
    return path


def _directory(config: KubeletConfig, pod: Pod, volume: Volume) -> Path | None:
    """Return a directory or file of this machine; None for a service account's token, which does not exist here."""
    if volume.host_path is not None:
        return _host_path(volume.host_path)
    if volume.empty_dir is not None:
        path = config.volume_dir(pod.uid, volume.name, medium=str(volume.empty_dir.get("medium")))
        path.mkdir(parents=True, exist_ok=True)
        return path
    if volume.projected is not None:
        return None
    raise NotSupported(f"volume {volume.name!r}: this kubelet supports only {SUPPORTED}")


def _host_path(wanted: HostPath) -> Path:
    """Return a path of this machine, which is of its type. Without a type it has to exist."""
    path = Path(wanted.path)
    if wanted.type == "DirectoryOrCreate" and not path.exists():
        path.mkdir(parents=True, exist_ok=True)
    elif wanted.type == "FileOrCreate" and path.parent.is_dir():
        path.touch(mode=0o644)
    if not path.exists():
        raise InvalidInput("volumes", f"hostPath {path} does not exist")
    if wanted.type and not _IS[wanted.type.removesuffix("OrCreate")](path):
        raise InvalidInput("volumes", f"hostPath {path} is not of the type {wanted.type}")
    return path


def _projections(volume: Volume) -> Sequence[Projection]:
    """Return the sources of a volume of files; none of another. There are no tokens of service accounts here. What
    Kubernetes mounts beside one, the authority and the namespace, is left out with it."""
    found = [*(volume.projected or Projected()).sources]
    if any(one.service_account_token is not None for one in found):
        beside = [one for one in found if one.service_account_token is None and not _is_authority(one)]
        found = beside if any(one.config_map or one.secret for one in beside) else []
    if volume.config_map is not None:
        found.append(Projection(config_map=volume.config_map))
    if volume.secret is not None:
        found.append(Projection(secret=volume.secret))
    if volume.downward_api is not None:
        found.append(Projection(downward_api=volume.downward_api))
    return found


def _is_authority(source: Projection) -> bool:
    return source.config_map is not None and source.config_map.name == AUTHORITY


def _files(config: KubeletConfig, pod: Pod, volume: Volume, sources: Sources) -> list[_File] | None:
    """Return the files of a volume; None if it is a directory."""
    projections = _projections(volume)
    if not projections:
        return None
    default = volume.projected.default_mode if volume.projected is not None else None
    found: list[_File] = []
    for one in projections:
        if one.config_map is not None:
            found += _keys(one.config_map, one.config_map.name, sources.config_maps, "ConfigMap", default)
        elif one.secret is not None:
            found += _keys(one.secret, _secret_name(one.secret), sources.secrets, "Secret", default)
        elif one.downward_api is not None:
            found += _fields(config, pod, one.downward_api, default)
        else:
            raise NotSupported(f"volume {volume.name!r}: this kubelet does not support one of its sources")
    return found


def _secret_name(files: FilesOf) -> str:
    """Return the Secret's name, which only a volume of its own calls so."""
    return files.secret_name or files.name


def _keys(
    files: FilesOf, name: str, objects: Mapping[str, Mapping[str, bytes]], kind: str, default: int | None
) -> Iterator[_File]:
    if name not in objects and not files.optional:
        raise InvalidInput("volumes", f"{kind} {name!r} was not found")
    content, mode = objects.get(name, {}), files.default_mode if default is None else default
    if files.items is None:
        for key, value in content.items():
            yield key, value, mode
        return
    for item in files.items:
        if item.key in content:
            yield item.path, content[item.key], mode if item.mode is None else item.mode
        elif not files.optional:
            raise InvalidInput("volumes", f"{kind} {name!r} has no key {item.key!r}")


def _fields(config: KubeletConfig, pod: Pod, files: DownwardFiles, default: int | None) -> Iterator[_File]:
    mode = files.default_mode if default is None else default
    containers = {container.name: container for container in (*pod.init_containers, *pod.containers)}
    for item in files.items:
        where = f"volumes, file {item.path}"
        if item.field_ref is not None:
            text = pod_field(pod, item.field_ref.field_path, node_ip=config.node_ip, where=where)
        elif item.resource_field_ref is not None:
            container = containers.get(item.resource_field_ref.container_name)
            if container is None:
                raise InvalidInput(where, f"there is no container {item.resource_field_ref.container_name!r}")
            text = amount(container, item.resource_field_ref, where)
        else:
            raise InvalidInput(where, "names no source")
        yield item.path, text.encode(), mode if item.mode is None else item.mode


def _written(config: KubeletConfig, pod: Pod, volume: Volume, files: Sequence[_File]) -> Path:
    """Write the files, in memory, and return their directory."""
    directory = config.volume_dir(pod.uid, volume.name, medium="Memory")
    directory.mkdir(parents=True, exist_ok=True)
    with _writing:
        for path, content, mode in files:
            file = directory / _inside(path, "volumes")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content, mode=mode)
    return directory


def _part(source: Path, sub_path: str, *, make: bool) -> Path:
    """Return the part of a volume at `sub_path`. `make`: a directory if it is missing. Raises InvalidInput: the path is
    outside of the volume, in which a container of the pod may have made links."""
    whole = source.resolve()
    path = (whole / _inside(sub_path, "subPath")).resolve()
    if not path.is_relative_to(whole):
        raise InvalidInput("subPath", f"{sub_path!r} leads out of the volume")
    if make:
        path.mkdir(parents=True, exist_ok=True)
    return path


def _inside(path: str, where: str) -> PurePosixPath:
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or not found.parts:
        raise InvalidInput(where, f"{path!r} is not a path inside the volume")
    return found
