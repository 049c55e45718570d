"""What the dashboard knows: objects followed by watches, the ledger that follows from them, and the view of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeVar

import structlog

from egpu.adapters.kubernetes import Change, Client
from egpu.adapters.kubernetes.followed import FollowedView
from egpu.adapters.kubernetes.job_mix import kept_mix
from egpu.api.kubernetes import Pod
from egpu.api.objects import Object
from egpu.apps.dashboard.advice import Advice
from egpu.apps.dashboard.config import DashboardConfig
from egpu.apps.dashboard.history import SAMPLE_SECONDS, History
from egpu.apps.dashboard.sources import Sources
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.prices import Prices, compute_prices
from egpu.core.policies.registry import Policies
from egpu.core.policies.shapes import Mix
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu.core.view import ClusterView, SliceKey, SliceUsage
from egpu.errors import ElasticGPUError
from egpu.runtime.latest import Latest

VIEW_SECONDS: Final = 1.0
"""A view serves everybody who asks within so long."""
MIX_SECONDS: Final = 60.0
REST: Final = 4.0
"""After what is used was read, so many times the processor time that the process has spent meanwhile."""

T = TypeVar("T", bound=Object)

log = structlog.get_logger(__name__)


class Knowledge:
    """`run` for ever; `view` when nothing is `not_ready`."""

    def __init__(self, client: Client, config: DashboardConfig) -> None:
        self._client = client
        self._config = config
        self.policies = Policies.named(config.node_policy, config.card_policy)
        self._followed = followed = FollowedView(client)
        self.cache, self.caches = followed.cache, followed.caches
        self.pods, self.claims, self.nodes = followed.pods, followed.claims, followed.nodes
        self.history = History()
        self._namespaces: Counter[str] = Counter()
        """How many pods and claims each has."""
        self._population = Population(self.pods.by_uid)
        self.sources = Sources(config)
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
        """The cluster, at most VIEW_SECONDS old."""
        now = time.monotonic()
        if self._view is None or now - self._view[0] >= VIEW_SECONDS:
            self._view = now, self._followed.view()
        return self._view[1]

    def not_ready(self) -> str | None:
        """Why nothing is shown yet; None when it is."""
        return self._followed.not_ready()

    def scene(self) -> Scene:
        """What an explanation looks at. Disruption budgets are not read: nobody is evicted from here."""
        return Scene(self.cache, self.nodes.snapshot(), self._population, (), self.policies)

    def namespaces(self) -> set[str]:
        """Those that have pods or claims."""
        return {name for name, count in self._namespaces.items() if count}

    async def run(self) -> None:
        """For ever: follows objects, prices and the job mix, and keeps history."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.caches.run())
            group.create_task(self._prices.run())
            group.create_task(self._keep_history())
            group.create_task(self._follow_mix())
            group.create_task(self._follow_usage())
            group.create_task(self.advice.run())

    async def _keep_history(self) -> None:
        await self._followed.listed()
        while True:
            for _ in self.history.sample(self.view, time.time()):
                await asyncio.sleep(0)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _follow_usage(self) -> None:
        """Of a large cluster it is much to read: then there is a rest for the pages."""
        while self._config.usage or self._config.ask_agents:
            before = time.process_time()
            await self.use(await self.sources.ask())
            await asyncio.sleep(max(SAMPLE_SECONDS, REST * (time.process_time() - before)))

    async def use(self, usage: Mapping[SliceKey, SliceUsage]) -> None:
        """Take in what slices use by now; whoever asks for a page does not wait for all nodes."""
        for _ in self._followed.live.use(usage):
            await asyncio.sleep(0)
        self._view = None  # the one that is kept for a second does not show it

    async def _follow_mix(self) -> None:
        """Places are scored as the extender scores them, by the job mix that it keeps."""
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
