"""What people see of a card in `kubectl get egpu`: how much of it is given out, to whom, and whether it is bound.

Written here because the ledger knows it. Only cards whose row of the ledger changed are looked at, a few at a time,
and only those written that differ, so a busy cluster costs no more writes a second than a small one: the columns then
lag behind. They are for people; nothing is decided by them.
"""

import asyncio
from typing import Any, Final

import structlog
from msgspec.structs import replace

from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUStatus
from egpu.apps.extender.view import View
from egpu.core.placement.cache import SchedulerCache
from egpu.errors import ElasticGPUError, NotFound

ROUND_SECONDS: Final = 1.0
MOST_WRITES: Final = 5
"""Cards written in one round."""
MOST_ROWS: Final = 64
"""Nodes looked at in one round: after a start they are all new."""
PAUSE_SECONDS: Final = 0.002
"""Between two nodes, for kube-scheduler's questions to be answered."""
MOST_NAMED: Final = 3
"""Holders that are named; a table has no room for more."""

log = structlog.get_logger(__name__)


class CardStatusWriter:
    """`run` until it is cancelled; one of these in a cluster, that of the extender that leads."""

    def __init__(self, client: Client, view: View) -> None:
        self._client = client
        self._view = view
        self._seen = -1
        self._changed: dict[int, None] = {}
        """Rows to look at, those that have waited longest first."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                await self.write_some()
            except ElasticGPUError as error:
                log.info("cards not brought up to date", reason=str(error))

    async def write_some(self) -> int:
        """Writes what differs, within the bounds of a round, and says how many cards were written. Raises what the API
        server answers; that node's cards are looked at again."""
        ledger, written = self._view.cache.ledger, 0
        self._changed |= dict.fromkeys(ledger.changes.since(self._seen).tolist())
        self._seen = ledger.changes.version
        for row in list(self._changed)[:MOST_ROWS]:
            for gpu in self._view.cards(ledger.names[row]):
                wanted = card_status(gpu, self._view.cache)
                if wanted == gpu.status:
                    continue
                if written == MOST_WRITES:
                    return written
                await self._write(gpu, wanted)
                written += 1
            self._changed.pop(row, None)
            await asyncio.sleep(PAUSE_SECONDS)
        return written

    async def _write(self, gpu: ElasticGPU, status: ElasticGPUStatus) -> None:
        told: dict[str, Any] = {"given": status.given, "heldBy": status.held_by}
        if status.phase != gpu.status.phase:
            told["phase"] = status.phase
        patch = {"metadata": {"uid": gpu.uid}, "status": told}
        try:
            self._view.gpus.absorb(await self._client.patch(ElasticGPU, gpu.name, patch, subresource="status"))
        except NotFound:
            return  # gone meanwhile


def card_status(gpu: ElasticGPU, cache: SchedulerCache) -> ElasticGPUStatus:
    """What the status of a published card should say: its agent's word on its health, and the ledger's on its use."""
    card = gpu.spec.physical_gpu
    assert card is not None
    held = cache.ledger.card_holders(gpu.spec.node_name, card.uuid)
    used = [one for holder, one in held.items() if holder.kind != "reservation"]
    core, memory = sum(one.core for one in used), sum(one.memory_mib for one in used)
    holders = sorted(cache.holder_name(holder) for holder in held)
    named = holders if len(holders) <= MOST_NAMED else [*holders[:MOST_NAMED], f"{len(holders) - MOST_NAMED} more"]
    phase = gpu.status.phase
    if gpu.healthy and phase != "Failed":
        phase = "Bound" if held else "Available"
    given = {names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory)}
    return replace(gpu.status, phase=phase, given=given, held_by=", ".join(named))
