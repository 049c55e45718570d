"""The status of a card in `kubectl get egpu`: how much is allocated, to whom, and whether the card is bound.

The extender writes it because it has the ledger. It looks only at changed rows of the ledger, a few at a time, and
writes only cards that differ. So a busy cluster costs no more writes a second than a small one, and its columns lag
behind. They are for people; nothing is decided by them."""

import asyncio
from typing import Any, Final

import structlog
from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUStatus
from egpu.apps.extender.view import View
from egpu.core.placement.cache import SchedulerCache
from egpu_base.errors import ElasticGPUError, NotFound
from egpu_base.kubernetes import Client

ROUND_SECONDS: Final = 1.0
MOST_WRITES: Final = 5
"""Cards written in one round."""
MOST_ROWS: Final = 64
"""Nodes looked at in one round. After a start, all nodes are new."""
PAUSE_SECONDS: Final = 0.002
"""Pause between two nodes, in which kube-scheduler's requests are answered."""
MOST_NAMED: Final = 3
"""Most holders that are named; a table has no room for more."""

log = structlog.get_logger(__name__)


class CardStatusWriter:
    """Runs in the extender that leads, until cancelled."""

    def __init__(self, client: Client, view: View) -> None:
        self._client = client
        self._view = view
        self._seen = -1
        self._changed: dict[int, None] = {}
        """Rows to look at; those that have waited longest come first."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                await self.write_some()
            except ElasticGPUError as error:
                log.info("card status not written", reason=str(error))

    async def write_some(self) -> int:
        """Write cards that differ, within the bounds of a round, and return how many. Raises the API server's errors;
        the cards of that node are then looked at again."""
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
        shown: dict[str, Any] = {"given": status.given, "heldBy": status.held_by}
        if status.phase != gpu.status.phase:
            shown["phase"] = status.phase
        patch = {"metadata": {"uid": gpu.uid}, "status": shown}
        try:
            self._view.gpus.absorb(await self._client.patch(ElasticGPU, gpu.name, patch, subresource="status"))
        except NotFound:
            return  # deleted meanwhile


def card_status(gpu: ElasticGPU, cache: SchedulerCache) -> ElasticGPUStatus:
    """Return a card's status: health from its agent, use from the ledger."""
    card = gpu.spec.physical_gpu
    assert card is not None
    found = cache.ledger.card_holders(gpu.spec.node_name, card.uuid)
    held = {holder: one for holder, one in found.items() if holder.kind != "promise"}  # it may be over in a moment
    used = [one for holder, one in held.items() if holder.kind != "reservation"]
    core, memory = sum(one.core for one in used), sum(one.memory_mib for one in used)
    holders = sorted(cache.holder_name(holder) for holder in held)
    named = holders if len(holders) <= MOST_NAMED else [*holders[:MOST_NAMED], f"{len(holders) - MOST_NAMED} more"]
    phase = gpu.status.phase
    if gpu.healthy and phase != "Failed":
        phase = "Bound" if held else "Available"
    given = {names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory)}
    return replace(gpu.status, phase=phase, given=given, held_by=", ".join(named))
