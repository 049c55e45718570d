"""Leader election of a process that works for another one on its host, which has an election of its own."""

import asyncio

from egpu_base.api.kubernetes import Lease
from egpu_base.errors import LeadershipLost
from egpu_base.kubernetes.client import Client
from egpu_base.kubernetes.election import LeaseElection


class FollowingElection(LeaseElection):
    """A candidate that works for another process of its host, such as an extender for its kube-scheduler.

    That process has its own election: client-go's, by a Lease in the same namespace whose holder is HOST_UUID. The
    candidate whose host holds that Lease takes its own Lease at once, and no other candidate takes it. Its own Lease
    decides who leads; the followed one only decides who takes it. It is read after the own Lease and before the write,
    so that a candidate that was overtaken in between writes an old version, and is refused.

    While nobody holds the followed Lease (its holder ended cleanly), the leader stays."""

    def __init__(self, client: Client, *, name: str, namespace: str, identity: str, followed: str, host: str) -> None:
        super().__init__(client, name=name, namespace=namespace, identity=identity)
        self.followed, self.host = followed, host

    async def verify(self) -> None:
        """Also ask whether another host holds the followed Lease. Raises LeadershipLost, Unavailable."""
        _, holder = await asyncio.gather(super().verify(), self._followed_holder())
        if holder and _host(holder) != self.host:
            raise LeadershipLost(f"lease {self.followed} is held by {holder}, not by a process of {self.host}")

    async def _first(self, lease: Lease | None) -> str | None:
        holder = await self._followed_holder()
        return None if holder and _host(holder) == self.host else f"whoever is beside {holder or 'no scheduler yet'}"

    async def _followed_holder(self) -> str:
        lease = await self._client.find(Lease, self.followed, namespace=self.namespace)
        return "" if lease is None else lease.spec.holder_identity or ""


def _host(holder: str) -> str:
    """Return the host in an identity of client-go: a name, an underscore and a UUID."""
    return holder.rpartition("_")[0]
