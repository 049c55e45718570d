"""Removes slots that no container holds any more, whoever forgot them and whenever we were killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from egpu.adapters.kubelet.podresources import PodHoldings
from egpu.api import names
from egpu.apps.agent.slots.directories import SlotRecord, Slots
from egpu.apps.agent.slots.owners import PodReader
from egpu.errors import CorruptData, ElasticGPUError

log = structlog.get_logger(__name__)


class Sweeper:
    """A slot stays while kubelet lists its token, or its pod is on this node and has not finished: init containers'
    tokens are not listed, and a restarted kubelet lists nothing at first."""

    def __init__(
        self,
        *,
        slots: Slots,
        holdings: Callable[[], Awaitable[Sequence[PodHoldings]]],
        pods: PodReader,
        token_lock: Callable[[str], asyncio.Lock],
        interval_seconds: float,
    ) -> None:
        self._slots = slots
        self._holdings = holdings
        self._pods = pods
        self._token_lock = token_lock
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                await self.sweep()
            except ElasticGPUError as error:
                log.info("not swept", reason=str(error))

    async def sweep(self) -> tuple[str, ...]:
        """Remove what nobody holds; returns the tokens. Raises Unavailable when kubelet or the API do not answer."""
        before = {token: self._record(token) for token in self._slots.tokens()}
        if not before:
            return ()
        held = {
            token
            for pod in await self._holdings()
            for container in pod.containers
            for token in container.devices.get(names.SLOT, ())
        }
        alive = {pod.uid for pod in await self._pods.on_node() if not pod.finished}
        removed: list[str] = []
        for token, record in before.items():
            if token in held or (record is not None and record.pod_uid in alive):
                continue
            async with self._token_lock(token):
                if self._record(token) == record:
                    await asyncio.to_thread(self._slots.remove, token)
                    removed.append(token)
        if removed:
            log.info("slots swept", tokens=removed)
        return tuple(removed)

    def _record(self, token: str) -> SlotRecord | None:
        try:
            return self._slots.record(token)
        except CorruptData as error:
            log.warning("a slot with a bad record", token=token, reason=str(error))
            return None
