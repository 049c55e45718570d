"""Makes the instances of MIG that containers were given, and destroys those of its own that are in the way.

Which instances are this agent's stands in a file: before one is there, and until it is gone. So whenever the agent is
killed, the next one knows what may be half made, and takes it apart; what is not in the file is somebody else's, and
stays. Nothing is destroyed before its place is wanted for something else: the next one who asks may want the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from egpu.adapters.files import write_atomically
from egpu.adapters.mig import FoundInstance, MigReading
from egpu.api.mig import InstancePlace
from egpu.errors import ElasticGPUError, Unavailable

log = structlog.get_logger(__name__)

RECORD_FILE = "instances.json"


class InstanceSource(Protocol):
    """The instances of this machine's cards, by UUID of the card; blocks. Each raises Unavailable for what the driver
    refuses now, and NotSupported for what it never does."""

    def instances(self, uuid: str) -> MigReading: ...

    def create_gpu_instance(self, uuid: str, place: InstancePlace) -> None: ...

    def create_compute_instance(self, uuid: str, place: InstancePlace) -> None: ...

    def destroy_compute_instances(self, uuid: str, place: InstancePlace) -> None: ...

    def destroy_gpu_instance(self, uuid: str, place: InstancePlace) -> None: ...


class Instances:
    """`record` is the file; what cannot be read of it counts as nothing."""

    def __init__(self, source: InstanceSource, record: Path) -> None:
        self._source = source
        self._record = record
        self._lock = asyncio.Lock()
        self._own = _read(record)

    def own(self, uuid: str) -> frozenset[InstancePlace]:
        """The places of a card at which what is there is this agent's."""
        return frozenset(self._own.get(uuid, ()))

    async def recover(self) -> None:
        """Take apart what an earlier agent left half made. Raises Unavailable, NotSupported."""
        async with self._lock:
            for uuid in list(self._own):
                await asyncio.to_thread(self._mend, uuid)

    async def have(self, uuid: str, place: InstancePlace) -> FoundInstance:
        """The instance at this place, made if it is not there.

        Raises Unavailable where something in its place is in use, or somebody else's, and NotSupported.
        """
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
                raise Unavailable(f"{other.place} of card {uuid}, which somebody else made, is where {place} should be")
            self._destroy(uuid, other.place)
        self._make(uuid, place)
        found = self._find(uuid, place)
        if found is None:
            raise Unavailable(f"{place} of card {uuid} was made, and is not there")
        return found

    def _find(self, uuid: str, place: InstancePlace) -> FoundInstance | None:
        return next((one for one in self._source.instances(uuid).instances if one.place == place and one.whole), None)

    def _make(self, uuid: str, place: InstancePlace) -> None:
        self._write(uuid, (*self.own(uuid), place))
        try:
            self._source.create_gpu_instance(uuid, place)
            self._source.create_compute_instance(uuid, place)
        except ElasticGPUError:
            self._mend(uuid)  # what was refused is not ours: somebody else may make it next
            raise
        log.info("an instance is made", card=uuid, instance=str(place))

    def _destroy(self, uuid: str, place: InstancePlace) -> None:
        self._source.destroy_compute_instances(uuid, place)
        self._source.destroy_gpu_instance(uuid, place)
        self._write(uuid, self.own(uuid) - {place})
        log.info("an instance is destroyed", card=uuid, instance=str(place))

    def _mend(self, uuid: str) -> None:
        """Make what is there, and what the record says of it, the same again."""
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
        log.warning("which instances of MIG are this agent's is not known: all there are stay", reason=str(error))
        return {}
