"""The cards of a ledger and their hosts as a `Fleet`, which policies use in a cluster as in a simulation.

Rows are updated as they change; the fleet is rebuilt when nodes or cards come and go. Its rows and columns are the
ledger's. A card in MIG mode has nothing free for a policy, which knows amounts and no places: instances are ranked
without one (`egpu.core.placement.ranking`).
"""

import numpy as np

from egpu.core.placement.card_usage import CONFLICT, EXCLUSIVE
from egpu.core.placement.hosts import Hosts, Room
from egpu.core.placement.ledger import Ledger
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.shapes import WHOLE_CARD, Machine

MILLI_PER_PERCENT = WHOLE_CARD // 100


class Mirror:
    """A fleet that is updated from ledger and hosts on demand."""

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self._ledger = ledger
        self._hosts = hosts
        self._fleet = Fleet([])
        self._version = ledger.changes.version
        self._hosts_version = hosts.version

    def fleet(self) -> Fleet:
        """Return the fleet as of now: a new object if nodes or cards came or went."""
        ledger, hosts, fleet = self._ledger, self._hosts, self._fleet
        if (self._version, self._hosts_version) == (ledger.changes.version, hosts.version):
            return fleet
        if len(ledger.changes) != len(fleet):
            return self._build()
        rows: set[int] = set(ledger.changes.since(self._version).tolist())
        for name in hosts.changed_since(self._hosts_version):
            row = ledger.row(name)
            if row is not None and self._room(row) != (fleet.cpu[row], fleet.ram[row]):
                rows.add(row)
        self._hosts_version = hosts.version
        if any(self._machine(row) != fleet.machines[row] for row in rows):
            return self._build()
        for row in rows:
            self._copy(row)
        self._version = ledger.changes.version
        return fleet

    def _build(self) -> Fleet:
        rows = range(len(self._ledger.changes))
        departures = self._fleet.departures
        self._fleet = Fleet([self._machine(row) for row in rows])
        for row in rows:
            self._copy(row)
        self._fleet.departures = departures
        self._version = self._ledger.changes.version
        self._hosts_version = self._hosts.version
        return self._fleet

    def _machine(self, row: int) -> Machine:
        name = self._ledger.names[row]
        cards, total = self._ledger.cards(name), self._hosts.total(name)
        whole = [card for card in cards if card.mig is None]
        memory = max((card.memory_mib for card in whole), default=0)
        model = (whole or cards)[0].model if cards else ""
        return Machine(name, total.cpu_milli, total.ram_mib, len(cards), model, memory)

    def _room(self, row: int) -> Room:
        name = self._ledger.names[row]
        return self._hosts.free(name) if name else Room(0, 0)

    def _copy(self, row: int) -> None:
        ledger, fleet, room = self._ledger, self._fleet, self._room(row)
        usable = ledger.healthy[row] & (ledger.mode[row] != EXCLUSIVE) & (ledger.mode[row] != CONFLICT)
        if any(kind.profiles for kind in ledger.kinds):
            usable &= ledger.totals(row).whole()
        core = np.where(usable, ledger.core_free[row] * MILLI_PER_PERCENT, 0)
        memory = np.where(usable, ledger.memory_free[row], 0)
        fleet.set_row(row, core[: fleet.width], memory[: fleet.width], room.cpu_milli, room.ram_mib)
