"""A slot as a CDI device: Allocate answers with its name, and what that means is written when the container starts.

kubelet's order (Kubernetes' pkg/kubelet: `startContainer` of kuberuntime, `GetDeviceRunContainerOptions` of
cm/devicemanager): Allocate when the pod is admitted; PreStartContainer before every start of a container, while its
configuration is put together; then the runtime's CreateContainer, with the names that Allocate answered with. The
runtime looks them up there and nowhere else. So a specification that is written in PreStartContainer is in time, and
can name exactly the device files of the cards that were granted.

Runtimes learn by inotify that a file has changed, which may be a moment late. What they must not find is what the slot
was before: its file is removed in Allocate and again when PreStartContainer begins, so who is late finds nothing, the
container is not created, and kubelet asks again. No file is ever believed: an agent that starts removes them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from egpu.adapters import cdi
from egpu.adapters.files import write_atomically
from egpu.adapters.mig import FoundInstance
from egpu.api import names
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.devices import DeviceFiles, name
from egpu.core.provisioners.preparation import Preparation
from egpu.errors import CorruptData, NotSupported

log = structlog.get_logger(__name__)

KIND = names.SLOT
#: The kind of specifications of NVIDIA's tools, or its end: GPU Operator has them write management.nvidia.com/gpu, say.
NVIDIA_KIND = "nvidia.com/gpu"
_SHARED_MEMORY = Path("/dev") / "shm"
_FILE_PREFIX = f"{names.GROUP}-slot_"


def device_name(slot_id: str) -> str:
    """What Allocate answers with."""
    return f"{KIND}={slot_id}"


class SlotSpecs:
    """The specification files of one node's slots, in the last of `directories`; others write into any of them."""

    def __init__(self, directories: Sequence[Path], devices: DeviceFiles, *, mps_shm: Path | None = None) -> None:
        """`mps_shm` is what MPS control daemons have as /dev/shm, and their clients get; None: they get none."""
        self._mps_shm = mps_shm
        self._directories = directories
        self._directory = directories[-1]
        self._devices = devices

    def open(self) -> None:
        """Make the directory, and remove what an earlier agent has left. Raises NotSupported: we may not."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for left in self._directory.glob(f"{_FILE_PREFIX}*.json"):
                left.unlink(missing_ok=True)
        except OSError as error:
            raise NotSupported(
                f"{self._directory}: no CDI device can be made here ({error}); go --cdi never"
            ) from error

    def remove(self, slot_id: str) -> None:
        self._file(slot_id).unlink(missing_ok=True)

    def write(
        self,
        slot_id: str,
        plan: Preparation,
        *,
        by_environment: bool,
        instance: FoundInstance | None = None,
        pipes: Path | None = None,
    ) -> None:
        """Say what the container of this slot gets. `by_environment`: what is preloaded stands in LD_PRELOAD, too.
        `instance`: of its card it gets this one. `pipes`: where its programs find their MPS server. Raises NotSupported
        where an instance has no device files."""
        env = self._env(plan, by_environment=by_environment)
        if instance is not None:
            env += (f"{names.NVIDIA_VISIBLE_DEVICES}={instance.uuid}",)
        if pipes is not None:
            env += (f"CUDA_MPS_PIPE_DIRECTORY={pipes}",)
        mounts = () if pipes is None else self._mounts(pipes)
        own = cdi.ContainerEdits(env=env, device_nodes=self._nodes(plan, instance), mounts=mounts)
        driver = nvidia_spec(self._directories) if plan.minors else None
        edits, version = own, cdi.VERSION
        if driver is not None:
            edits, version = with_driver(own, driver), cdi.newer(cdi.VERSION, driver.cdi_version)
        spec = cdi.Spec(cdi_version=version, kind=KIND, devices=(cdi.Device(name=slot_id, container_edits=edits),))
        # Renamed within the directory: that is what runtimes watch for, not the appearance of a file.
        write_atomically(self._file(slot_id), msgspec.json.encode(spec), mode=0o600)

    def _file(self, slot_id: str) -> Path:
        return self._directory / f"{_FILE_PREFIX}{slot_id}.json"

    def _env(self, plan: Preparation, *, by_environment: bool) -> tuple[str, ...]:
        env: list[str] = []
        if not plan.minors:
            # Whatever the image or the pod says there, NVIDIA's runtime adds no card.
            env.append(f"{names.NVIDIA_VISIBLE_DEVICES}={names.NO_DEVICES}")
        if by_environment and plan.libraries:
            env.append("LD_PRELOAD=" + ":".join(layout.preloaded(plan)))
        return tuple(env)

    def _mounts(self, pipes: Path) -> tuple[cdi.Mount, ...]:
        """What a client of an MPS server shares with it."""
        shown = {str(pipes): str(pipes)}
        if self._mps_shm is not None:
            shown[str(_SHARED_MEMORY)] = str(self._mps_shm)
        return tuple(
            cdi.Mount(host_path=here, container_path=there, options=("rw", "rbind", "nosuid", "nodev"))
            for there, here in shown.items()
        )

    def _nodes(self, plan: Preparation, instance: FoundInstance | None) -> tuple[cdi.DeviceNode, ...]:
        """The cards that were granted, and what a program needs beside them: a container without cards gets neither."""
        if not plan.minors:
            return ()
        cards = {name(minor): self._devices.card(minor) for minor in plan.minors}
        control = {path.name: path for path in self._devices.control()}
        instances = self._devices.instance(plan.minors[0], instance) if instance is not None else {}
        return tuple(
            cdi.DeviceNode(path=f"/dev/{file}", host_path=str(path), permissions="rw")
            for file, path in {**cards, **control, **instances}.items()
        )


def nvidia_spec(directories: Sequence[Path]) -> cdi.Spec | None:
    """What NVIDIA's tools wrote for this node, if they did; the last directory counts first."""
    for path in reversed(list(cdi.files(directories, but=_FILE_PREFIX))):
        try:
            spec = cdi.read(path)
        except (CorruptData, OSError) as error:
            log.warning("a CDI specification cannot be read", reason=str(error))
            continue
        if f".{spec.kind}".endswith(f".{NVIDIA_KIND}") and spec.container_edits.mounts:
            return spec
    return None


def with_driver(own: cdi.ContainerEdits, driver: cdi.Spec) -> cdi.ContainerEdits:
    """`own`, and the driver's libraries as NVIDIA's specification brings them with any device of it: mounts, and hooks
    that make them known to the loader. Its device files stay out: ours are those of what was granted."""
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
