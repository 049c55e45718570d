"""From a container and what device plugins answered to the process that is run: paths, libraries, environment.

Here this program plays the container runtime's part: as `nvidia-container-toolkit` does on a real node, it gives the
driver's libraries to containers that were given devices, together with a directory of exactly those device files. And
as their cards are simulated, here or on the node that serves them, compilers are led to what such a card runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from egpu.adapters import compilers
from egpu.adapters.kubelet.deviceplugin import ContainerDevices, DeviceNode
from egpu.adapters.simulator import machine as simulator
from egpu.api import names
from egpu.embedded.kubelet import images
from egpu.embedded.kubelet.config import KubeletConfig
from egpu.embedded.kubelet.environment import Sources, environment, expand_all
from egpu.embedded.kubelet.objects import Container, Pod, Volume
from egpu.embedded.kubelet.runtime import Bind, RunSpec
from egpu.errors import InvalidInput, NotSupported, TerminalError

PRELOAD = "/etc/ld.so.preload"
DRIVER = "/opt/egpu-driver"
"""Where a container sees its driver directory: a path that the loader can be told, whatever our own is called."""


def log_file(config: KubeletConfig, pod: Pod, container: str, number: int) -> Path:
    """Where the output of one run goes; the API server reads it there."""
    return config.logs_dir / pod_log_name(pod) / container / f"{number}.log"


def pod_log_name(pod: Pod) -> str:
    return f"{pod.namespace}_{pod.name}_{pod.uid}"


def run_spec(
    config: KubeletConfig,
    pod: Pod,
    container: Container,
    *,
    directory: Path,
    number: int,
    answers: Sequence[ContainerDevices],
    edits: ContainerDevices,
    sources: Sources,
    volumes: Sequence[Bind] = (),
    private_mounts: bool,
) -> RunSpec:
    """Everything for one run; makes what it needs under `directory`, its own. `edits` are what the CDI devices of
    `answers` mean now; the runtime applies them last. `volumes`: those of the container.

    Raises:
        InvalidInput: a reference of the environment cannot be resolved.
        NotSupported: an image that this kubelet cannot do.
        NativeMissing: a program or library of ours was not built.
    """
    argv = images.argv(container, config.images)
    devices = {key: value for answer in answers for key, value in answer.envs.items()}
    env = environment(pod, container, node_ip=config.node_ip, devices=devices, sources=sources) | edits.envs
    given = (*answers, edits)
    binds = [Bind(m.host_path, m.container_path, m.read_only) for answer in given for m in answer.mounts]
    preload_files = [bind.source for bind in binds if bind.target == PRELOAD]
    preload = [line for path in preload_files for line in _lines(path)]
    nodes = [node for answer in given for node in answer.devices]
    if answers and config.driver_dir is not None:
        env |= compilers.giving_ptx(env)
    if nodes and config.driver_dir is not None and env.get(names.NVIDIA_VISIBLE_DEVICES) != names.NO_DEVICES:
        driver = driver_dir(config.driver_dir, directory, nodes, group=config.pod_group(pod.uid))
        binds.append(Bind(str(driver), DRIVER, read_only=True))
        preload += [f"{DRIVER}/{name}" for name in simulator.PRELOADED]
        found = simulator.loader_files(driver) if private_mounts else {}
        binds += [Bind(str(file), str(path), read_only=True) for path, file in found.items()]
        if not found:
            env["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(driver), env.get("LD_LIBRARY_PATH"))))
    binds = [bind for bind in binds if bind.target != PRELOAD]
    if private_mounts:
        binds += [Bind(os.path.realpath(node.host_path), node.container_path) for node in nodes]
    else:
        preload = _outside(preload, binds)
        env = _without_mounts(env, preload)
    return RunSpec(
        argv=expand_all(argv, env),
        env=env,
        working_dir=container.working_dir,
        binds=(*binds, *volumes),
        preload=tuple(preload),
        log=log_file(config, pod, container.name, number),
        input=container.stdin,
        terminal=container.tty,
    )


def driver_dir(node_driver: Path, directory: Path, nodes: Sequence[DeviceNode], *, group: Path) -> Path:
    """A driver directory of one run: the node's simulated machine with the device files as they resolve now, in the
    control group that the directory `group` stands for.

    A device that was not granted resolves to a file that nothing serves, and so is not there for the driver.
    """
    devices = _fresh(directory) / "dev"
    devices.mkdir()
    for node in nodes:
        file = devices / Path(node.container_path).relative_to("/dev")
        file.parent.mkdir(exist_ok=True)
        file.symlink_to(os.path.realpath(node.host_path))
    machine = simulator.open_machine(node_driver.parent)
    return simulator.make_driver_dir(machine, directory / "driver", devices, group=group)


def _fresh(directory: Path) -> Path:
    """Made anew: an earlier try may have left one."""
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        shutil.rmtree(directory)
        directory.mkdir()
    return directory


def _lines(path: str) -> list[str]:
    try:
        return [line.strip() for line in Path(path).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise TerminalError(f"{path}: {error}") from error


def _outside(preload: Sequence[str], binds: Sequence[Bind]) -> list[str]:
    """Paths as this machine sees them, for a container that cannot have its own view of them."""
    mapped: list[str] = []
    for library in preload:
        for bind in binds:
            if library.startswith(bind.target.rstrip("/") + "/"):
                mapped.append(bind.source + library.removeprefix(bind.target.rstrip("/")))
                break
        else:
            mapped.append(library)
    return mapped


def _without_mounts(env: Mapping[str, str], preload: Sequence[str]) -> dict[str, str]:
    """Weaker: a program that clears its environment gets out of its slice. The kubelet says so in an event."""
    given = [env["LD_PRELOAD"]] if env.get("LD_PRELOAD") else []
    return {**env, "LD_PRELOAD": ":".join([*preload, *given])} if preload else dict(env)


def volumes(config: KubeletConfig, pod: Pod, container: Container) -> list[Bind]:
    """What the container mounts of the pod's volumes, whose directories are made.

    Raises:
        InvalidInput: a volume cannot be resolved.
        NotSupported: one that this kubelet cannot do.
    """
    known = {volume.name: volume for volume in pod.spec.volumes or []}
    binds: list[Bind] = []
    for mount in container.volume_mounts or []:
        volume = known.get(mount.name)
        if volume is None:
            raise InvalidInput("volumeMounts", f"there is no volume {mount.name!r}")
        source = _source(config, pod, volume)
        if source is not None:
            path = source / mount.sub_path if mount.sub_path else source
            if mount.sub_path:
                path.mkdir(parents=True, exist_ok=True)
            binds.append(Bind(str(path), mount.mount_path, mount.read_only))
    return binds


def _source(config: KubeletConfig, pod: Pod, volume: Volume) -> Path | None:
    """The directory or file of this machine; None for a service account's token, which nobody has here."""
    if volume.host_path is not None:
        path = Path(volume.host_path.path)
        if volume.host_path.type == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            raise InvalidInput("volumes", f"hostPath {path} does not exist")
        return path
    if volume.empty_dir is not None:
        path = config.volumes_dir / pod.uid / volume.name
        path.mkdir(parents=True, exist_ok=True)
        return path
    if volume.projected is not None:
        return None
    raise NotSupported(f"volume {volume.name!r}: this kubelet has only emptyDir and hostPath")
