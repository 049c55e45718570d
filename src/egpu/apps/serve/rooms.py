"""Decides which leases have their memory on the cards of this server, where several share room.

It reads records of executors and policy pages only, so a new daemon goes on where the last one stopped."""

from collections import Counter
from collections.abc import Hashable, Mapping

from egpu.adapters.executors.record import MIB
from egpu.adapters.slices.overruns import MemoryWatch
from egpu.adapters.slices.rooms import Rooms, SharedCard, SharedSlice
from egpu.apps.serve.owners import LeaseExecutor
from egpu.apps.serve.supervisor import LeaseSupervisor
from egpu_base.runtime.looking import looking


class LeaseRooms:
    """Runs until cancelled. `watch` compares the leases with the driver's figures."""

    def __init__(self, leases: LeaseSupervisor, watch: MemoryWatch) -> None:
        self._leases = leases
        self._watch = watch
        self._rooms = Rooms(self.cards, driver_bytes=self._driver_bytes)

    @property
    def thrashing(self) -> tuple[str, ...]:
        """Return the UUIDs of cards whose busy leases wait for each other most of the time."""
        return tuple(sorted(self._rooms.totals.thrashing))

    async def run(self) -> None:
        await looking(self._rooms.step)

    def cards(self) -> Mapping[str, SharedCard]:
        """Return the cards with leases that share room, by UUID. All other leases keep what they were promised."""
        promised_mib: Counter[str] = Counter()
        memory_mib: dict[str, int] = {}
        shared: dict[str, list[SharedSlice]] = {}
        for executor in list(self._leases.running.values()):
            for share in executor.record.cards if not executor.moved else ():
                if share.resident_mib:
                    memory_mib[share.uuid] = share.card_memory_mib
                    shared.setdefault(share.uuid, []).append(_slice(executor))
                else:
                    promised_mib[share.uuid] += share.memory_mib
        return {
            uuid: SharedCard((memory_mib[uuid] - promised_mib[uuid]) * MIB, tuple(slices))
            for uuid, slices in shared.items()
        }

    def _driver_bytes(self, key: Hashable, uuid: str) -> int | None:
        finding = self._watch.findings.get((key, uuid))
        return None if finding is None else finding.driver_bytes


def _slice(executor: LeaseExecutor) -> SharedSlice:
    (share,) = executor.record.cards  # a lease that shares room has one card
    return SharedSlice(
        key=executor.name,
        policy=executor.directory / "policy",
        usage=executor.directory / "usage",
        limit_bytes=share.memory_mib * MIB,
        floor_bytes=share.resident_mib * MIB,
        idle_seconds=executor.record.owner.lease.park_idle_seconds,
    )
