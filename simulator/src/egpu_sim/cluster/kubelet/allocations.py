"""Device ids by container, and the plugin's answers about them, in a checkpoint, as kubelet keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from egpu_base.kubelet.deviceplugin import ContainerDevices
from egpu_base.system.files import write_atomically


class Grant(msgspec.Struct, frozen=True):
    """Ids of one resource given to one container."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    answer: ContainerDevices


class _Checkpoint(msgspec.Struct):
    version: int = 1
    grants: list[msgspec.Raw] = msgspec.field(default_factory=list[msgspec.Raw])
    resources: list[str] = msgspec.field(default_factory=list[str])


class _Kept(NamedTuple):
    """A grant and its encoding, which the next checkpoints reuse."""

    grant: Grant
    written: msgspec.Raw

    @classmethod
    def of(cls, grant: Grant) -> _Kept:
        return cls(grant, msgspec.Raw(msgspec.json.encode(grant)))


class Allocations:
    """All grants of the node. Every change writes and renames the whole file."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._kept: dict[tuple[str, str], dict[str, _Kept]] = {}
        """Grants by pod and container, then by resource."""
        self.resources: set[str] = set()
        """Every resource that any plugin has registered here."""
        try:
            saved = msgspec.json.decode(checkpoint.read_bytes(), type=_Checkpoint)
        except FileNotFoundError:
            return
        for written in saved.grants:
            self._put(msgspec.json.decode(written, type=Grant))
        self.resources = set(saved.resources)

    def remember(self, resource: str) -> None:
        if resource not in self.resources:
            self.resources.add(resource)
            self._save()

    def get(self, pod_uid: str, container: str, resource: str) -> Grant | None:
        kept = self._kept.get((pod_uid, container), {}).get(resource)
        return None if kept is None else kept.grant

    def of_container(self, pod_uid: str, container: str) -> list[Grant]:
        return [kept.grant for kept in self._kept.get((pod_uid, container), {}).values()]

    def held(self, resource: str) -> set[str]:
        """Return every id of `resource` that a container holds."""
        return {each for grant in self if grant.resource == resource for each in grant.ids}

    def pods(self) -> set[str]:
        return {pod_uid for pod_uid, _ in self._kept}

    def __iter__(self) -> Iterator[Grant]:
        return iter([kept.grant for kept in self._all()])

    def add(self, grant: Grant) -> None:
        self._put(grant)
        self._save()

    def _all(self) -> Iterator[_Kept]:
        return (kept for held in self._kept.values() for kept in held.values())

    def _put(self, grant: Grant) -> None:
        self._kept.setdefault((grant.pod_uid, grant.container), {})[grant.resource] = _Kept.of(grant)

    def release(self, pod_uid: str) -> None:
        kept = {key: held for key, held in self._kept.items() if key[0] != pod_uid}
        if len(kept) != len(self._kept):
            self._kept = kept
            self._save()

    def _save(self) -> None:
        saved = _Checkpoint(grants=[kept.written for kept in self._all()], resources=sorted(self.resources))
        write_atomically(self._checkpoint, msgspec.json.encode(saved))
