"""The dashboard's knowledge: objects followed by watches, the ledger that follows from them, and the view of both."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeVar

import structlog

from egpu.adapters.kubernetes.followed import FollowedView
from egpu.adapters.kubernetes.job_mix import kept_mix
from egpu.apps.dashboard.advice import Advice
from egpu.apps.dashboard.config import DashboardConfig
from egpu.apps.dashboard.history import SAMPLE_SECONDS, History
from egpu.apps.dashboard.usage_sources import UsageSources
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.registry import Policies
from egpu.core.policies.shapes import Mix
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu.core.view import ClusterView, SliceKey, SliceUsage
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import Object
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Change, Client
from egpu_base.runtime.endless import EndlessTasks
from egpu_base.runtime.latest import Latest

VIEW_SECONDS: Final = 1.0
"""The time for which one view serves all requests."""
MIX_SECONDS: Final = 60.0
REST: Final = 4.0
"""Pause after reading use, as a multiple of the processor time that the process has spent meanwhile."""

T = TypeVar("T", bound=Object)

log = structlog.get_logger(__name__)


class Knowledge:
    """Runs forever in `run`; `view` works when `not_ready` returns None."""

    def __init__(self, client: Client, config: DashboardConfig) -> None:
        self._client = client
        self._config = config
        self.policies = Policies.named(config.node_policy, config.card_policy)
        self._followed = followed = FollowedView(client)
        self.cache, self.caches = followed.cache, followed.caches
        self.pods, self.claims, self.nodes = followed.pods, followed.claims, followed.nodes
        self.history = History()
        self._namespaces: Counter[str] = Counter()
        """The number of pods and claims in each namespace."""
        self._population = Population(self.pods.by_uid)
        self.sources = UsageSources(config)
        self.pods.on_change(self._count)
        self.pods.on_change(self._populate)
        self.pods.on_change(self.sources.pod_changed)
        self.claims.on_change(self._count)
        self._prices: Latest[tuple[Mix, Fleet], Prices] = Latest(
            lambda asked: compute_prices(*asked), self.cache.ranking.use_prices
        )
        self.cache.ranking.background = lambda mix, fleet: self._prices.ask((mix, fleet))
        self._view: tuple[float, ClusterView] | None = None
        self.advice = Advice(self.cache, pods=self.pods, view=lambda: self.view)

    def _count(self, change: Change[T]) -> None:
        if change.old is None:
            self._namespaces[change.subject.namespace] += 1
        elif change.new is None:
            self._namespaces[change.subject.namespace] -= 1

    def _populate(self, change: Change[Pod]) -> None:
        if change.new is None:
            self._population.gone(change.subject.uid)
        else:
            self._population.changed(change.new)

    @property
    def view(self) -> ClusterView:
        """Return the cluster, at most VIEW_SECONDS old."""
        now = time.monotonic()
        if self._view is None or now - self._view[0] >= VIEW_SECONDS:
            self._view = now, self._followed.view()
        return self._view[1]

    def not_ready(self) -> str | None:
        """Return why nothing is shown yet, or None."""
        return self._followed.not_ready()

    def scene(self) -> Scene:
        """Return the input of an explanation. Disruption budgets are not read, because the dashboard evicts nothing."""
        return Scene(self.cache, self.nodes.snapshot(), self._population, (), self.policies)

    def namespaces(self) -> set[str]:
        """Return the namespaces with pods or claims."""
        return {name for name, count in self._namespaces.items() if count}

    async def run(self) -> None:
        """Run forever: follow objects, prices and the job mix, and keep history."""
        async with EndlessTasks() as group:
            group.start(self.caches.run())
            group.start(self._prices.run())
            group.start(self._keep_history())
            group.start(self._follow_mix())
            if self._config.usage or self._config.ask_agents:
                group.start(self._follow_usage())
            group.start(self.advice.run())

    async def _keep_history(self) -> None:
        await self._followed.listed()
        while True:
            for _ in self.history.sample(self.view, time.time()):
                await asyncio.sleep(0)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _follow_usage(self) -> None:
        """Read use forever. In a large cluster that is much, so pages get a pause in between."""
        while True:
            before = time.process_time()
            await self.use(await self.sources.ask())
            await asyncio.sleep(max(SAMPLE_SECONDS, REST * (time.process_time() - before)))

    async def use(self, usage: Mapping[SliceKey, SliceUsage]) -> None:
        """Read what slices use now; no page request waits for all nodes."""
        for _ in self._followed.live.use(usage):
            await asyncio.sleep(0)
        self._view = None  # the cached view does not show it

    async def _follow_mix(self) -> None:
        """Follow the extender's job mix, so that places are scored as the extender scores them."""
        await self.caches.synced()
        ranking = self.cache.ranking
        while True:
            try:
                mix = await kept_mix(self._client, lease=self._config.lease, namespace=self._config.namespace)
                if mix is not None and mix.arrivals != ranking.learned.arrivals:
                    ranking.use_mix(mix)
                    ranking.prepare(self.policies)
            except ElasticGPUError as error:
                log.warning("job mix not read", reason=str(error))
            await asyncio.sleep(MIX_SECONDS)
