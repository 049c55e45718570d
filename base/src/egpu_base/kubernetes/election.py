"""Leader election by a Lease, in the way of client-go.

`verify` asks the API server itself, so unlike a look at the clock it is true at that moment. The extender's guard
against double booking (see `egpu.apps.extender.fence`) relies on it.
"""

import asyncio
import time
from datetime import UTC, datetime

import structlog

from egpu_base.api.kubernetes import Lease, LeaseSpec
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import AlreadyExists, Conflict, ElasticGPUError, LeadershipLost, RetryableError
from egpu_base.kubernetes.client import Client

LEASE_SECONDS = 15
RENEW_SECONDS = 4.0
RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)


class LeaseElection:
    """One candidate. Call `acquire`, then `renew` beside the work, and `release` for a clean stop."""

    def __init__(self, client: Client, *, name: str, namespace: str, identity: str) -> None:
        self._client = client
        self.name, self.namespace, self.identity = name, namespace, identity
        self._lease: Lease | None = None
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquire(self, *, wait: bool) -> None:
        """Return as the leader. With `wait`, first let the holder's lease run out; otherwise take it at once."""
        told = ""
        while True:
            try:
                holder = await self._try(wait=wait)
            except RetryableError as error:
                log.warning("lease not reachable", lease=self.name, reason=str(error))
            else:
                if holder is None:
                    log.info("leading", lease=self.name, identity=self.identity)
                    return
                if holder != told:
                    log.info("waiting for the leader", lease=self.name, leader=holder)
                    told = holder
            await asyncio.sleep(RETRY_SECONDS)

    async def renew(self) -> None:
        """Keep the lease for ever. Raises LeadershipLost."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self.verify()
                await self._write(took_over=False)
            except LeadershipLost:
                raise
            except ElasticGPUError as error:
                if time.monotonic() - renewed > LEASE_SECONDS - RENEW_SECONDS:
                    raise LeadershipLost(f"lease {self.name}: not renewed in time: {error}") from error
                log.warning("lease not renewed", lease=self.name, reason=str(error))
            else:
                renewed = time.monotonic()

    async def verify(self) -> None:
        """Ask the API server whether this process still leads. Raises LeadershipLost, Unavailable."""
        lease = await self._client.find(Lease, self.name, namespace=self.namespace)
        holder = None if lease is None else lease.spec.holder_identity
        if holder != self.identity:
            raise LeadershipLost(f"lease {self.name} is held by {holder or 'nobody'}, not by {self.identity}")
        self._lease = lease

    async def release(self) -> None:
        """Let the next candidate in without waiting. A failure is harmless: the lease runs out by itself."""
        try:
            await self.verify()
            assert self._lease is not None
            patch = {
                "spec": {"holderIdentity": ""},
                "metadata": {"resourceVersion": self._lease.metadata.resource_version},
            }
            await self._client.patch(Lease, self.name, patch, namespace=self.namespace)
        except ElasticGPUError as error:
            log.info("lease not released", lease=self.name, reason=str(error))

    async def _try(self, *, wait: bool) -> str | None:
        """Try once. Return None when this process leads now, otherwise the leader."""
        self._lease = await self._client.find(Lease, self.name, namespace=self.namespace)
        if wait and (holder := await self._first(self._lease)):
            return holder
        try:
            await self._write(took_over=True)
        except Conflict:
            return "another candidate"
        return None

    async def _first(self, lease: Lease | None) -> str | None:
        """Return the candidate whose turn it is instead of ours, if any. `lease` is ours, just read."""
        return None if lease is None else self._living_holder(lease)

    def _living_holder(self, lease: Lease) -> str | None:
        """Return a living holder. It lives while its lease keeps changing, by our clock: no two clocks are compared."""
        holder = lease.spec.holder_identity
        if not holder or holder == self.identity:
            return None
        version, since = self._seen
        if lease.metadata.resource_version != version:
            self._seen = (lease.metadata.resource_version, time.monotonic())
            return holder
        ttl = lease.spec.lease_duration_seconds or LEASE_SECONDS
        return holder if time.monotonic() - since < ttl else None

    async def _write(self, *, took_over: bool) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        if self._lease is None:
            spec = LeaseSpec(
                holder_identity=self.identity,
                lease_duration_seconds=LEASE_SECONDS,
                acquire_time=now,
                renew_time=now,
                lease_transitions=0,
            )
            new = Lease(metadata=ObjectMeta(name=self.name, namespace=self.namespace), spec=spec)
            try:
                self._lease = await self._client.create(Lease, new)
            except AlreadyExists:
                raise Conflict(f"lease {self.name}: another candidate made it first") from None
            return
        spec_patch: dict[str, object] = {"renewTime": now}
        if took_over:
            spec_patch |= {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "acquireTime": now,
                "leaseTransitions": (self._lease.spec.lease_transitions or 0) + 1,
            }
        patch = {"metadata": {"resourceVersion": self._lease.metadata.resource_version}, "spec": spec_patch}
        self._lease = await self._client.patch(Lease, self.name, patch, namespace=self.namespace)
