"""What CDI names mean, looked up as container runtimes do it: at a container's creation, in the files that are there.

As strict as theirs: a name that no file explains, or that two files of one directory do, is not resolved, and the
container is not created; a device file must be one and no link to it. A simulated card is a plain file, and counts as
one.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence, Set
from pathlib import Path

import structlog

from egpu.adapters import cdi
from egpu.adapters.kubelet.deviceplugin import ContainerDevices, DeviceNode, Mount
from egpu.errors import CorruptData, TerminalError

log = structlog.get_logger(__name__)

_FAILED = "failed to generate spec: CDI device injection failed"
_DEFAULT_PERMISSIONS = "rwm"


def resolve(names: Sequence[str], directories: Sequence[Path]) -> ContainerDevices:
    """What a container with these devices gets. Raises TerminalError as containerd words it."""
    if not names:
        return ContainerDevices()
    known = _devices(frozenset(names), directories)
    missing = [name for name in names if name not in known]
    if missing:
        raise TerminalError(f"{_FAILED}: unresolvable CDI devices {', '.join(missing)}")
    edits = [each for name in names for each in known[name]]
    hooks = [str(hook.get("hookName")) for each in edits for hook in each.hooks]
    if hooks:
        raise TerminalError(f"{_FAILED}: this kubelet runs no hooks, and these are asked for: {', '.join(hooks)}")
    mounts = [_mount(mount) for each in edits for mount in each.mounts]
    return ContainerDevices(
        envs=dict(variable.split("=", 1) for each in edits for variable in each.env),
        mounts=tuple(sorted(mounts, key=lambda mount: mount.container_path.count("/"))),
        devices=tuple(_node(node) for each in edits for node in each.device_nodes),
    )


def _devices(names: Set[str], directories: Sequence[Path]) -> dict[str, tuple[cdi.ContainerEdits, ...]]:
    """The edits of these devices by name: those of its file, and its own."""
    known: dict[str, tuple[cdi.ContainerEdits, ...]] = {}
    for directory in directories:
        here: dict[str, tuple[cdi.ContainerEdits, ...]] = {}
        conflicts: set[str] = set()
        for path in cdi.files([directory]):
            try:
                spec = cdi.read(path)
            except (CorruptData, OSError) as error:
                log.warning("a CDI specification is not loaded", reason=str(error))
                continue
            for device in spec.devices:
                name = f"{spec.kind}={device.name}"
                if name not in names:
                    continue
                if name in here:
                    conflicts.add(name)
                here[name] = (spec.container_edits, device.container_edits)
        known = {name: edits for name, edits in (known | here).items() if name not in conflicts}
    return known


def _mount(mount: cdi.Mount) -> Mount:
    if not Path(mount.host_path).exists():
        raise TerminalError(
            f"failed to mount {mount.host_path!r} to {mount.container_path!r}: no such file or directory"
        )
    return Mount(mount.container_path, mount.host_path, read_only="ro" in mount.options)


def _node(node: cdi.DeviceNode) -> DeviceNode:
    host_path = node.host_path or node.path
    try:
        mode = Path(host_path).lstat().st_mode
    except OSError as error:
        raise TerminalError(f'{_FAILED}: failed to stat CDI host device "{host_path}": {error.strerror}') from error
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISREG(mode)):
        raise TerminalError(f'{_FAILED}: failed to stat CDI host device "{host_path}": not a device node')
    return DeviceNode(node.path, host_path, node.permissions or _DEFAULT_PERMISSIONS)
