"""A second scheduler with a name of its own, as components bring along. It leads by a Lease, as kube-scheduler does."""

import asyncio
import contextlib
import socket
import uuid
from dataclasses import dataclass, field

from egpu_base.kubernetes import Client, LeaseElection
from egpu_sim.cluster.scheduler.extender import Extender
from egpu_sim.cluster.scheduler.loop import Scheduler


@dataclass(frozen=True)
class OwnScheduler:
    """`name` is what pods write into schedulerName. Its client has the kubeconfig `user`. It leads by `lease` in
    `namespace`, with an identity as kube-scheduler's: host, underscore, UUID."""

    name: str
    user: str
    namespace: str
    lease: str
    host: str = field(default_factory=socket.gethostname)

    async def run(self, client: Client, extender: Extender) -> None:
        """Wait for the Lease, then schedule until it is lost. Raises LeadershipLost."""
        identity = f"{self.host}_{uuid.uuid4()}"
        election = LeaseElection(client, name=self.lease, namespace=self.namespace, identity=identity)
        await election.acquire(wait=True)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(election.renew())
                group.create_task(Scheduler(client, extender, name=self.name).run())
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(election.release(), 1.0)
