"""Specification of a container's process, from the device plugins' answers: paths, libraries, environment.

This module plays the container runtime's part. As `nvidia-container-toolkit` does on a real node, it gives the driver's
libraries to containers with devices, with a directory of exactly those device files. Cards are simulated here or on the
node that serves them, so compilers are configured to emit PTX.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from egpu_base.errors import TerminalError
from egpu_base.kubelet.deviceplugin import ContainerDevices, DeviceNode
from egpu_sim.cluster.kubelet import images
from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.covered import Covered
from egpu_sim.cluster.kubelet.environment import Sources, environment, expand_all
from egpu_sim.cluster.kubelet.objects import Container, Pod
from egpu_sim.cluster.kubelet.runtime import Bind, RunSpec
from egpu_sim.machines import machine as simulator
from egpu_sim.machines.environment import making_ptx

PRELOAD = "/etc/ld.so.preload"
VISIBLE, NO_DEVICES = "NVIDIA_VISIBLE_DEVICES", "void"
"""The variable of NVIDIA's container runtime, and its value for a container without cards."""
DRIVER = "/opt/egpu-driver"
"""A container's path to its driver directory: the loader accepts it, whatever the real path is."""


def log_file(config: KubeletConfig, pod: Pod, container: str, number: int) -> Path:
    """Return the path of one run's output; the API server reads it there."""
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
    """Return the specification of one run; make what it needs under `directory`, its own. `edits` are the present
    meaning of the CDI devices in `answers`, applied last, as by a runtime. `volumes`: those of the container.

    Raises:
        InvalidInput: a reference of the environment cannot be resolved.
        NotSupported: an image that this kubelet does not support.
        NativeMissing: a native program or library was not built.
    """
    covered = Covered(volumes if private_mounts else ())
    argv = images.argv(container, config.images)
    if not container.command and argv[0].startswith("/"):
        argv[0] = covered.shown(argv[0])
    devices = {key: value for answer in answers for key, value in answer.envs.items()}
    env = environment(pod, container, node_ip=config.node_ip, devices=devices, sources=sources) | edits.envs
    env["PATH"] = covered.search_path(env["PATH"])
    given = (*answers, edits)
    binds = [Bind(m.host_path, m.container_path, m.read_only) for answer in given for m in answer.mounts]
    preload_files = [bind.source for bind in binds if bind.target == PRELOAD]
    preload = [line for path in preload_files for line in _lines(path)]
    nodes = [node for answer in given for node in answer.devices]
    if answers and config.driver_dir is not None:
        env |= making_ptx(env)
    if nodes and config.driver_dir is not None and env.get(VISIBLE) != NO_DEVICES:
        driver = driver_dir(config.driver_dir, directory, nodes, group=config.pod_group(pod.uid), covered=covered)
        binds.append(Bind(str(driver), DRIVER, read_only=True))
        preload += [f"{DRIVER}/{name}" for name in simulator.PRELOADED]
        found = simulator.loader_files(driver, seen_at=Path(DRIVER)) if private_mounts else {}
        binds += [Bind(str(file), str(path), read_only=True) for path, file in found.items()]
        if not found:
            libraries = DRIVER if private_mounts else str(driver)
            env["LD_LIBRARY_PATH"] = ":".join(filter(None, (libraries, env.get("LD_LIBRARY_PATH"))))
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
        binds=(*binds, *covered.binds, *volumes),
        preload=tuple(preload),
        log=log_file(config, pod, container.name, number),
        input=container.stdin,
        terminal=container.tty,
    )


def driver_dir(
    node_driver: Path, directory: Path, nodes: Sequence[DeviceNode], *, group: Path, covered: Covered
) -> Path:
    """Make a driver directory of one run: the node's simulated machine with the present device files, in the control
    group that the directory `group` stands for.

    A device that was not granted resolves to a file without a server, so the driver does not see it.
    """
    devices = _fresh(directory) / "dev"
    devices.mkdir()
    for node in nodes:
        file = devices / Path(node.container_path).relative_to("/dev")
        file.parent.mkdir(exist_ok=True)
        file.symlink_to(covered.shown(os.path.realpath(node.host_path)))
    machine = simulator.open_machine(node_driver.parent)
    made = simulator.make_driver_dir(machine, directory / "driver", devices, group=group)
    covered.link_anew(made)
    return made


def _fresh(directory: Path) -> Path:
    """Make it anew: an earlier try may have left one."""
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
    """Replace container paths by this machine's, for a container without its own view of them."""
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
    """Return a weaker setting: a program that clears its environment leaves its slice. An event of the kubelet
    warns."""
    given = [env["LD_PRELOAD"]] if env.get("LD_PRELOAD") else []
    return {**env, "LD_PRELOAD": ":".join([*preload, *given])} if preload else dict(env)
