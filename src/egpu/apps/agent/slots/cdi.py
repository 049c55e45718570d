"""A slot as a CDI device: Allocate answers with its name, and its meaning is written when the container starts.

kubelet's order is (Kubernetes' pkg/kubelet: `startContainer` of kuberuntime, `GetDeviceRunContainerOptions` of
cm/devicemanager): Allocate when the pod is admitted; PreStartContainer before every start of a container, while its
configuration is built; then the runtime's CreateContainer, with the names from Allocate. Only there does the runtime
look them up. So a specification written in PreStartContainer is in time, and can name exactly the device files of
the granted cards.

Runtimes notice a changed file by inotify, perhaps a moment late. They must not find the slot's old meaning. So
Allocate removes the file, and PreStartContainer removes it again first: a late runtime finds nothing, the container
is not created, and kubelet asks again. No file is trusted: a starting agent removes them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import structlog

from egpu.adapters.cards.mig import FoundInstance
from egpu.adapters.cards.mps import Shown
from egpu.api import names
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.core.provisioners.preparation import Preparation
from egpu_base.errors import CorruptData, NotSupported
from egpu_base.kubelet import cdi
from egpu_base.system.files import write_atomically

log = structlog.get_logger(__name__)

KIND = names.SLOT
# : The kind of specifications of NVIDIA's tools, or its end: GPU Operator has them write management.nvidia.com/gpu,
# say.
NVIDIA_KIND = "nvidia.com/gpu"
_SHARED_MEMORY = Path("/dev") / "shm"
_OUR_FILES = f"{names.GROUP}-"
"""The beginning of the names of our files, of slots and of claims."""


def device_name(slot_id: str) -> str:
    """Return the name for Allocate's answer."""
    return f"{KIND}={slot_id}"


class SlotSpecs:
    """The specification files of one node's slots, in the last of `directories`; other programs write into all of
    them."""

    kind: ClassVar[str] = KIND
    _prefix: ClassVar[str] = f"{_OUR_FILES}slot_"

    def __init__(self, directories: Sequence[Path], devices: DeviceFiles) -> None:
        self._directories = directories
        self._directory = directories[-1]
        self._devices = devices

    def open(self) -> None:
        """Create the directory, and remove an earlier agent's files. Raises NotSupported if that is not permitted."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._begin()
        except OSError as error:
            raise NotSupported(
                f"{self._directory}: no CDI device can be created here ({error}); run with --cdi never"
            ) from error

    def _begin(self) -> None:
        for left in self._directory.glob(f"{self._prefix}*.json"):
            left.unlink(missing_ok=True)

    def remove(self, slot_id: str) -> None:
        self._file(slot_id).unlink(missing_ok=True)

    def write(
        self,
        slot_id: str,
        plan: Preparation,
        *,
        by_environment: bool,
        instance: FoundInstance | None = None,
        shown: Shown | None = None,
        visible: str = "",
    ) -> None:
        """Write what the slot's container gets.

        `by_environment`: preloaded libraries are in LD_PRELOAD as well. `instance`: the MIG instance of its card.
        `shown`: what its programs share with their MPS server. `visible`: its cards for NVIDIA's runtime.
        Raises NotSupported: an instance has no device files."""
        env = self._env(plan, by_environment=by_environment, visible=visible)
        if instance is not None:
            env += (f"{names.NVIDIA_VISIBLE_DEVICES}={instance.uuid}",)
        if shown is not None:
            env += (f"CUDA_MPS_PIPE_DIRECTORY={shown.pipes}",)
        mounts = (*self._files(slot_id, plan), *(() if shown is None else _mounts(shown)))
        own = cdi.ContainerEdits(env=env, device_nodes=self._nodes(plan, instance), mounts=mounts)
        driver = nvidia_spec(self._directories) if plan.minors else None
        edits, version = own, cdi.VERSION
        if driver is not None:
            edits, version = with_driver(own, driver), cdi.newer(cdi.VERSION, driver.cdi_version)
        spec = cdi.Spec(cdi_version=version, kind=self.kind, devices=(cdi.Device(name=slot_id, container_edits=edits),))
        # Renamed within the directory: runtimes watch for that, not for new files.
        write_atomically(self._file(slot_id), msgspec.json.encode(spec), mode=0o600)

    def _file(self, slot_id: str) -> Path:
        return self._directory / f"{self._prefix}{slot_id}.json"

    def _files(self, slot_id: str, plan: Preparation) -> tuple[cdi.Mount, ...]:
        """Return the mounts of the slot's files: none, because Allocate has answered with them."""
        return ()

    def _env(self, plan: Preparation, *, by_environment: bool, visible: str) -> tuple[str, ...]:
        """Return variables. Of `visible` none: the webhook has set it in the pod."""
        env: list[str] = []
        if not plan.minors:
            # With this value NVIDIA's runtime adds no card, whatever the image or the pod says.
            env.append(f"{names.NVIDIA_VISIBLE_DEVICES}={names.NO_DEVICES}")
        if by_environment and plan.libraries:
            env.append("LD_PRELOAD=" + ":".join(layout.preloaded(plan)))
        return tuple(env)

    def _nodes(self, plan: Preparation, instance: FoundInstance | None) -> tuple[cdi.DeviceNode, ...]:
        """Return the granted cards, and the device files beside them: a container without cards gets neither."""
        if not plan.minors:
            return ()
        cards, control = self._devices.cards(plan.minors), self._devices.control()
        instances = self._devices.instance(plan.minors[0], instance) if instance is not None else {}
        return tuple(
            cdi.DeviceNode(path=f"/dev/{file}", host_path=str(path), permissions="rw")
            for file, path in {**cards, **control, **instances}.items()
        )


def _mounts(shown: Shown) -> tuple[cdi.Mount, ...]:
    """Return what a client of an MPS server shares with it. A client writes to its sockets, and changes no name."""
    pipes = mount(shown.pipes, shown.pipes, "ro")
    return (pipes,) if shown.memory is None else (pipes, mount(shown.memory, _SHARED_MEMORY, "rw"))


def mount(here: Path, there: Path, access: str) -> cdi.Mount:
    """Return a file or folder of the node in a container; `access` is "ro" or "rw"."""
    options = (access, "rbind", "nosuid", "nodev")
    return cdi.Mount(host_path=str(here), container_path=str(there), options=options)


def nvidia_spec(directories: Sequence[Path]) -> cdi.Spec | None:
    """Return the specification of NVIDIA's tools for this node, or None. The last directory has priority."""
    for path in reversed(list(cdi.files(directories, but=_OUR_FILES))):
        try:
            spec = cdi.read(path)
        except (CorruptData, OSError) as error:
            log.warning("CDI specification not readable", reason=str(error))
            continue
        if f".{spec.kind}".endswith(f".{NVIDIA_KIND}") and spec.container_edits.mounts:
            return spec
    return None


def with_driver(own: cdi.ContainerEdits, driver: cdi.Spec) -> cdi.ContainerEdits:
    """Return `own` with the driver's libraries from NVIDIA's specification: mounts, and hooks that register them
    with the loader. NVIDIA's device files stay out: ours are those that were granted."""
    edits = driver.container_edits
    others = tuple(each for each in edits.env if not each.startswith(f"{names.NVIDIA_VISIBLE_DEVICES}="))
    return msgspec.structs.replace(
        own,
        # NVIDIA's runtime, should it run as well, has nothing left to do.
        env=(*others, *own.env, f"{names.NVIDIA_VISIBLE_DEVICES}={names.NO_DEVICES}"),
        mounts=(*edits.mounts, *own.mounts),
        hooks=edits.hooks,
        additional_gids=edits.additional_gids,
    )
