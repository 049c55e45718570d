"""The job mix behind the prices: computes prices in another process, and keeps the mix across restarts.

The mix is stored in an annotation of the extender's own Lease, which the extender may write anyway. It is bounded,
written with every change of prices and otherwise at most once a minute, and harmless to lose: a new extender learns
again."""

import asyncio
import contextlib

import structlog

from egpu.adapters.kubernetes.job_mix import ANNOTATION, kept_mix
from egpu.core.placement.ranking import Ranking
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.shapes import Mix
from egpu_base.api.kubernetes import Lease
from egpu_base.errors import CorruptData, ElasticGPUError
from egpu_base.kubernetes import Client
from egpu_base.runtime import worker_process
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.runtime.latest import Latest

KEEP_SECONDS = 60.0
PRICES_REST = 9.0
"""Prices take at most a tenth of a processor. New prices are due after each few of a cluster's first pods, and these
may all arrive at once, together with all other work for them."""

log = structlog.get_logger(__name__)


class JobMix:
    """Call `load` once, then run `run` beside the server."""

    def __init__(self, client: Client, ranking: Ranking, *, lease: str, namespace: str) -> None:
        self._client = client
        self._ranking = ranking
        self._lease, self._namespace = lease, namespace
        self._prices: Latest[tuple[Mix, Fleet], Prices] = Latest(
            lambda asked: worker_process.call(compute_prices, *asked), self._computed, rest=PRICES_REST
        )
        self._changed = asyncio.Event()
        self._priced = asyncio.Event()
        self._kept = 0
        ranking.background = lambda mix, fleet: self._prices.ask((mix, fleet))

    async def load(self) -> None:
        """Continue with the stored mix, if it can be read."""
        try:
            learned = await kept_mix(self._client, lease=self._lease, namespace=self._namespace)
            if learned is not None:
                self._ranking.use_mix(learned)
                self._kept = learned.arrivals
                log.info("job mix read", arrivals=learned.arrivals)
        except CorruptData as error:
            log.warning("job mix not read", reason=str(error))

    async def run(self) -> None:
        """Compute prices when they are due. Store the mix then, and each minute in which it changed."""
        async with EndlessTasks() as group:
            group.start(self._prices.run())
            group.start(self._freshen())
            group.start(self._keep())

    def _computed(self, prices: Prices) -> None:
        self._ranking.use_prices(prices)
        self._priced.set()
        log.info("prices computed", shapes=len(prices.mix.weights))
        # A successor then starts with the prices that this extender uses, not with older ones.
        self._changed.set()

    async def _freshen(self) -> None:
        """Apply new prices to all known kinds of pods, one after the other. Otherwise the first pod of each kind would
        wait."""
        while True:
            await self._priced.wait()
            self._priced.clear()
            for _ in iter(self._ranking.catch_up, False):
                await asyncio.sleep(0)

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), KEEP_SECONDS)
            self._changed.clear()
            await self.keep()

    async def keep(self) -> None:
        """Store the mix if it changed."""
        learned = self._ranking.learned
        if learned.arrivals == self._kept:
            return
        patch = {"metadata": {"annotations": {ANNOTATION: learned.dump()}}}
        try:
            await self._client.patch(Lease, self._lease, patch, namespace=self._namespace)
            self._kept = learned.arrivals
        except ElasticGPUError as error:
            log.warning("job mix not stored", reason=str(error))
