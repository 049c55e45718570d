"""The slot of a ResourceClaim as a CDI device.

kubelet asks a DRA driver for names of CDI devices alone, so the slot's files are mounts of the device. Unlike those of
the device plugin's slots, these specifications are kept by a starting agent: a container that starts again is not
prepared again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from egpu.api import names
from egpu.apps.agent.slots import directories as layout
from egpu.apps.agent.slots.cdi import SlotSpecs, mount
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.core.provisioners.preparation import Preparation
from egpu_base.kubelet import cdi


class ClaimSpecs(SlotSpecs):
    """The specification files of one node's claims. `slots`: the folder of their slots."""

    kind: ClassVar[str] = f"{names.GROUP}/claim"
    _prefix: ClassVar[str] = f"{names.GROUP}-claim_"

    def __init__(self, directories: Sequence[Path], devices: DeviceFiles, slots: Path) -> None:
        super().__init__(directories, devices)
        self._slots = slots

    def device_name(self, slot_id: str) -> str:
        """Return the name for kubelet."""
        return f"{self.kind}={slot_id}"

    def written(self, slot_id: str) -> bool:
        """Return whether the slot has its file."""
        return self._file(slot_id).exists()

    def ids(self) -> list[str]:
        """Return the slots that have a file."""
        found = self._directory.glob(f"{self._prefix}*.json")
        return [path.name.removeprefix(self._prefix).removesuffix(".json") for path in found]

    def _begin(self) -> None:
        """Keep all files: see above."""

    def _files(self, slot_id: str, plan: Preparation) -> tuple[cdi.Mount, ...]:
        """Return the mounts of the slot's files. A container without limits gets none: should it have a second claim
        with limits, these stay in force, and name no other card."""
        if not plan.policy and not plan.libraries:
            return ()
        slot, target = self._slots / slot_id, Path(names.SLICE_DIRECTORY)
        return (
            mount(slot, target, "ro"),
            mount(slot / layout.USAGE_FILE, target / layout.USAGE_FILE, "rw"),
            mount(slot / layout.PRELOAD_FILE, Path(names.PRELOAD_LIST), "ro"),
        )

    def _env(self, plan: Preparation, *, by_environment: bool, visible: str) -> tuple[str, ...]:
        """Return variables, with the cards for NVIDIA's runtime: an image may ask it for all of them."""
        own = super()._env(plan, by_environment=by_environment, visible=visible)
        return (*own, f"{names.NVIDIA_VISIBLE_DEVICES}={visible}") if plan.minors else own
