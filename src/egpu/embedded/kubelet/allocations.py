"""Which container holds which device ids, and what the plugin answered for them: in a checkpoint, as kubelet has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from egpu.adapters.files import write_atomically
from egpu.adapters.kubelet.deviceplugin import ContainerDevices


class Grant(msgspec.Struct, frozen=True):
    """Ids of one resource given to one container."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: ContainerDevices


class _Checkpoint(msgspec.Struct):
    version: int = 1
    grants: list[Grant] = msgspec.field(default_factory=list[Grant])
    resources: list[str] = msgspec.field(default_factory=list[str])


class Allocations:
    """All grants of the node. Written whole and renamed at every change."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._grants: dict[tuple[str, str], dict[str, Grant]] = {}
        """By pod and container, then by resource."""
        self.resources: set[str] = set()
        """Every resource that some plugin ever registered here."""
        try:
            saved = msgspec.json.decode(checkpoint.read_bytes(), type=_Checkpoint)
        except FileNotFoundError:
            return
        for grant in saved.grants:
            self._put(grant)
        self.resources = set(saved.resources)

    def remember(self, resource: str) -> None:
        if resource not in self.resources:
            self.resources.add(resource)
            self._save()

    def get(self, pod_uid: str, container: str, resource: str) -> Grant | None:
        return self._grants.get((pod_uid, container), {}).get(resource)

    def of_container(self, pod_uid: str, container: str) -> list[Grant]:
        return list(self._grants.get((pod_uid, container), {}).values())

    def held(self, resource: str) -> set[str]:
        """Every id of `resource` that some container holds."""
        return {each for grant in self if grant.resource == resource for each in grant.ids}

    def pods(self) -> set[str]:
        """UIDs of the pods that hold anything."""
        return {pod_uid for pod_uid, _ in self._grants}

    def __iter__(self) -> Iterator[Grant]:
        return iter([grant for held in self._grants.values() for grant in held.values()])

    def add(self, grant: Grant) -> None:
        self._put(grant)
        self._save()

    def _put(self, grant: Grant) -> None:
        self._grants.setdefault((grant.pod_uid, grant.container), {})[grant.resource] = grant

    def release(self, pod_uid: str) -> None:
        """The pod holds nothing any more. Does nothing where it did not."""
        kept = {key: held for key, held in self._grants.items() if key[0] != pod_uid}
        if len(kept) != len(self._grants):
            self._grants = kept
            self._save()

    def _save(self) -> None:
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        saved = _Checkpoint(grants=list(self), resources=sorted(self.resources))
        write_atomically(self._checkpoint, msgspec.json.encode(saved))
