"""All leases over all servers, with their holds in the ledger: both change together."""

from collections import Counter, OrderedDict
from dataclasses import replace
from typing import Final

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation
from egpu.core.backoff import Backoffs
from egpu.core.leasing.state import Lease, Part, Second, Server
from egpu.core.placement.ledger import Holder, Ledger
from egpu_base.errors import NotFound

MAX_TOMBSTONES: Final = 4096
"""Ended leases that are remembered, so that a server that comes back late is told to end them."""
CONTAINER: Final = "lease"
"""The name of a lease's one container in the ledger."""


class LeaseTable:
    """The parts of all leases, without decisions. `changed`: servers with new orders; `touched`: changed leases."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.leases: dict[str, Lease] = {}
        self.servers: dict[str, Server] = {}
        self.changed: set[str] = set()
        self.touched: set[str] = set()
        self.ended: OrderedDict[str, str] = OrderedDict()
        """The reasons of the last MAX_TOMBSTONES leases that ended."""
        self.backoffs = Backoffs()
        """The backoffs of peers whose leases were ended for overruns."""
        self._by_request: dict[tuple[str, str], str] = {}
        self._per_holder: Counter[tuple[str, str]] = Counter()
        """Counts by peer and holder, and by peer and "" for all of its holders."""

    def live(self, lease: str) -> Lease:
        """Return a live lease. Raises NotFound for one that does not exist or is ending."""
        found = self.leases.get(lease)
        if found is None or found.state == "ending":
            reason = self.why_ended(lease)
            raise NotFound(f"there is no lease {lease}" + (f": it ended, {reason}" if reason else ""))
        return found

    def of_request(self, peer: str, request: str) -> Lease | None:
        """Return the lease of this request of this peer."""
        return self.leases.get(self._by_request.get((peer, request), ""))

    def count(self, peer: str, holder: str = "") -> int:
        """Return how many leases this peer's holder has; without one, all of the peer's."""
        return self._per_holder.get((peer, holder), 0)

    def why_ended(self, lease: str) -> str:
        """Return why a lease that is gone ended; "" if it is not remembered."""
        return self.ended.get(lease, "")

    def add(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        self._by_request[lease.peer, lease.request] = lease.id
        for holder in _counted(lease):
            self._per_holder[holder] += 1
        for server, part in lease.parts.items():
            self.hold(lease, server, part)

    def with_part(self, lease: Lease, server: str, part: Part, *, order: bool = False) -> Lease:
        """Return `lease` with this part, which the ledger holds. `order`: tell the server."""
        if order:
            part = replace(part, ordered=self.next_version(server))
        self.hold(lease, server, part)
        return lease.with_part(server, part)

    def with_second(self, lease: Lease, second: Second, *, order: bool = False) -> Lease:
        """Return `lease` with this second place, which the ledger holds. `order`: tell its server."""
        if second.server not in self.servers:
            return replace(lease, second=second)
        if order:
            second = replace(second, part=replace(second.part, ordered=self.next_version(second.server)))
        self.hold(lease, second.server, second.part)
        return replace(lease, second=second)

    def next_version(self, server: str) -> int:
        """Return the version of the server's next order, and mark the server as changed."""
        known = self.servers[server]
        known.version += 1
        self.changed.add(server)
        return known.version

    def end(self, lease: str, reason: str) -> None:
        """End a lease: released, revoked or expired. Does nothing if it is ending already, or does not exist."""
        found = self.leases.get(lease)
        if found is None or found.state == "ending":
            return
        ending = replace(found, state="ending", reason=reason)
        for server, part in found.parts.items():
            ending = self.with_part(ending, server, replace(part, wanted=()), order=True)
        if ending.second is not None:
            second = replace(ending.second, state="gone", part=replace(ending.second.part, wanted=()))
            ending = self.with_second(ending, second, order=True)
            if second.server not in self.servers:
                ending = replace(ending, second=None)
        self.leases[lease] = ending
        self.touched.add(lease)
        self.ended[lease] = reason
        self.ended.move_to_end(lease)
        while len(self.ended) > MAX_TOMBSTONES:
            self.ended.popitem(last=False)

    def drop_part(self, lease: Lease, server: Server) -> None:
        """Remove a part that does not run on the server any more; the last part takes the lease with it."""
        parts = {name: part for name, part in lease.parts.items() if name != server.name}
        self._drop(lease, server, lease.parts[server.name], replace(lease, parts=parts))

    def drop_second(self, lease: Lease, server: Server) -> None:
        """Remove a second place that does not run on the server any more."""
        assert lease.second is not None
        self._drop(lease, server, lease.second.part, replace(lease, second=None))

    def release_second(self, lease: Lease, server: Server) -> None:
        """Release a second place, which the lease still remembers."""
        assert lease.second is not None
        self.ledger.release(_holder(lease.id, server.name, lease.second.part.place))
        server.leases.discard(lease.id)

    def forget(self, lease: Lease) -> None:
        """Remove a lease without any place."""
        self.touched.add(lease.id)
        del self.leases[lease.id]
        if self._by_request.get((lease.peer, lease.request)) == lease.id:
            del self._by_request[lease.peer, lease.request]
        for holder in _counted(lease):
            self._per_holder[holder] -= 1
            if not self._per_holder[holder]:
                del self._per_holder[holder]

    def _drop(self, lease: Lease, server: Server, part: Part, without: Lease) -> None:
        self.touched.add(lease.id)
        self.ledger.release(_holder(lease.id, server.name, part.place))
        self.leases[lease.id] = without
        if not without.is_at(server.name):
            server.leases.discard(lease.id)
        if not without.parts and without.second is None:
            self.forget(without)

    def hold(self, lease: Lease, server: str, part: Part) -> None:
        """Count a part of a lease on its server's cards."""
        self.servers[server].leases.add(lease.id)
        if shares := part.held:
            granted = ContainerAllocation(provisioner=names.QGPU, mode="shared", cards=shares)
            self.ledger.hold(
                _holder(lease.id, server, part.place), PodAllocation(node=server, containers={CONTAINER: granted})
            )


def _counted(lease: Lease) -> tuple[tuple[str, str], tuple[str, str]]:
    return (lease.peer, lease.holder), (lease.peer, "")


def _holder(lease: str, server: str, place: int) -> Holder:
    return Holder("lease", f"{lease}@{server}" + (f"#{place}" if place else ""))
