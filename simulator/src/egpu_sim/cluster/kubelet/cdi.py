"""CDI devices, resolved as container runtimes do: when a container is created, from the present files.

The rules are as strict: a name in no file, or in two files of one directory, fails the container's creation, and a
device file must be no link. A simulated card is a plain file, and counts as a device file.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence, Set
from pathlib import Path

import structlog

from egpu_base.errors import CorruptData, TerminalError
from egpu_base.kubelet import cdi
from egpu_base.kubelet.deviceplugin import ContainerDevices, DeviceNode, Mount

log = structlog.get_logger(__name__)

_FAILED = "failed to generate spec: CDI device injection failed"
_DEFAULT_PERMISSIONS = "rwm"


def resolve(names: Sequence[str], directories: Sequence[Path]) -> ContainerDevices:
    """Return the edits for a container with these devices. Raises TerminalError with containerd's words."""
    if not names:
        return ContainerDevices()
    known = _devices(frozenset(names), directories)
    missing = [name for name in names if name not in known]
    if missing:
        raise TerminalError(f"{_FAILED}: unresolvable CDI devices {', '.join(missing)}")
    edits = [each for name in names for each in known[name]]
    hooks = [str(hook.get("hookName")) for each in edits for hook in each.hooks]
    if hooks:
        raise TerminalError(f"{_FAILED}: this kubelet does not support hooks; the files have {', '.join(hooks)}")
    mounts = [_mount(mount) for each in edits for mount in each.mounts]
    return ContainerDevices(
        envs=dict(variable.split("=", 1) for each in edits for variable in each.env),
        mounts=tuple(sorted(mounts, key=lambda mount: mount.container_path.count("/"))),
        devices=tuple(_node(node) for each in edits for node in each.device_nodes),
    )


def _devices(names: Set[str], directories: Sequence[Path]) -> dict[str, tuple[cdi.ContainerEdits, ...]]:
    """Return the edits of these devices by name: those of its file, and its own."""
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
