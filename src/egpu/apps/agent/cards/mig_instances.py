"""Creates the MIG instances of containers, and destroys instances of its own that are in their way.

A file records the instances of this agent: it is written before an instance is created, and cleared after it is
destroyed. So after a kill the next agent knows what may be half made, and removes it. Instances that are not in the
file belong to others, and stay. An instance is destroyed only when its place is needed, because the next container
may want the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from egpu.adapters.cards.mig import FoundInstance, MigReading
from egpu.api.mig import InstancePlace
from egpu_base.errors import ElasticGPUError, Unavailable
from egpu_base.system.files import write_atomically

log = structlog.get_logger(__name__)

RECORD_FILE = "instances.json"


class InstanceSource(Protocol):
    """Reads and changes the instances of this machine's cards, by card UUID; blocks. Each method raises Unavailable
    if the driver refuses now, and NotSupported if it always refuses."""

    def instances(self, uuid: str) -> MigReading: ...

    def create_gpu_instance(self, uuid: str, place: InstancePlace) -> None: ...

    def create_compute_instance(self, uuid: str, place: InstancePlace) -> None: ...

    def destroy_compute_instances(self, uuid: str, place: InstancePlace) -> None: ...

    def destroy_gpu_instance(self, uuid: str, place: InstancePlace) -> None: ...


class Instances:
    """The instances of this agent. `record` is the file; unreadable parts of it count as empty."""

    def __init__(self, source: InstanceSource, record: Path) -> None:
        self._source = source
        self._record = record
        self._lock = asyncio.Lock()
        self._own = _read(record)

    def own(self, uuid: str) -> frozenset[InstancePlace]:
        """Return the places on a card that have this agent's instances."""
        return frozenset(self._own.get(uuid, ()))

    async def recover(self) -> None:
        """Remove instances that an earlier agent left half made. Raises Unavailable, NotSupported."""
        async with self._lock:
            for uuid in list(self._own):
                await asyncio.to_thread(self._mend, uuid)

    async def have(self, uuid: str, place: InstancePlace) -> FoundInstance:
        """Return the instance at this place, and create it if needed.

        Raises Unavailable if an instance in its place is in use or belongs to others, and NotSupported."""
        async with self._lock:
            return await asyncio.to_thread(self._have, uuid, place)

    def _have(self, uuid: str, place: InstancePlace) -> FoundInstance:
        self._mend(uuid)
        if (found := self._find(uuid, place)) is not None:
            return found
        for other in self._source.instances(uuid).instances:
            if not other.place.mask & place.mask:
                continue
            if other.place not in self.own(uuid):
                raise Unavailable(
                    f"{other.place} of card {uuid}, which was not created by this agent, is where {place} should be"
                )
            self._destroy(uuid, other.place)
        self._make(uuid, place)
        found = self._find(uuid, place)
        if found is None:
            raise Unavailable(f"{place} of card {uuid} was created, but does not exist")
        return found

    def _find(self, uuid: str, place: InstancePlace) -> FoundInstance | None:
        return next((one for one in self._source.instances(uuid).instances if one.place == place and one.whole), None)

    def _make(self, uuid: str, place: InstancePlace) -> None:
        self._write(uuid, (*self.own(uuid), place))
        try:
            self._source.create_gpu_instance(uuid, place)
            self._source.create_compute_instance(uuid, place)
        except ElasticGPUError:
            self._mend(uuid)  # a refused instance is not ours: someone else may create it next
            raise
        log.info("MIG instance created", card=uuid, instance=str(place))

    def _destroy(self, uuid: str, place: InstancePlace) -> None:
        self._source.destroy_compute_instances(uuid, place)
        self._source.destroy_gpu_instance(uuid, place)
        self._write(uuid, self.own(uuid) - {place})
        log.info("MIG instance destroyed", card=uuid, instance=str(place))

    def _mend(self, uuid: str) -> None:
        """Make the instances and the record agree."""
        if not self.own(uuid):
            return
        there = {one.place: one for one in self._source.instances(uuid).instances}
        for place in self.own(uuid):
            if place not in there:
                self._write(uuid, self.own(uuid) - {place})
            elif not there[place].whole:
                self._destroy(uuid, place)

    def _write(self, uuid: str, places: Iterable[InstancePlace]) -> None:
        own = {**self._own, uuid: sorted(places, key=lambda place: (place.start, place.profile))}
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._record, msgspec.json.encode(own))
        self._own = own


def _read(record: Path) -> dict[str, list[InstancePlace]]:
    try:
        return msgspec.json.decode(record.read_bytes(), type=dict[str, list[InstancePlace]])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("the record of this agent's MIG instances is unreadable; all instances stay", reason=str(error))
        return {}
