"""An extender that ends at any request to the API server, done there or not: nothing that it would still do happens."""

import asyncio
import contextlib
import random

import httpx2

from egpu.apps.extender import Extender, ExtenderConfig
from egpu.core.placement.node_names import NodeNames
from egpu_base.api.extender import ExtenderBindingArgs
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client
from support.fake_api import FakeAPI, Json
from support.waiting import until

MOST_REQUESTS = 12
"""Until one that is to die does."""


class _Connection(httpx2.AsyncBaseTransport):
    """One process's to the API server. Once `left` requests were sent, no answer comes back any more."""

    def __init__(self, api: FakeAPI) -> None:
        self._api = api
        self.left: int | None = None
        self.does_the_last = False
        self.keeps_late = False
        self.late: list[httpx2.Request] = []
        """What a frozen process had sent, and what the API server has not read yet."""
        self.dead = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.left is not None and not self.dead.is_set() and "watch" not in request.url.params:
            self.left -= 1
            if self.left < 0:
                self.dead.set()
                if self.does_the_last:
                    await self._api.handle_async_request(request)
        if self.dead.is_set():
            if self.keeps_late and request.method != "GET" and not self.does_the_last:
                self.late.append(request)
            await asyncio.Event().wait()
        return await self._api.handle_async_request(request)


class MortalExtender:
    """`start` it, and again whenever it `is_dead`; `killed` counts."""

    def __init__(self, api: FakeAPI, rng: random.Random) -> None:
        self._api = api
        self._rng = rng
        self.killed = 0

    async def start(self) -> None:
        self._connection = _Connection(self._api)
        client = Client(httpx2.AsyncClient(base_url="http://api.test", transport=self._connection))
        self.extender = Extender(ExtenderConfig(node_policy="best-fit", card_policy="best-fit"), client)
        self._task = asyncio.create_task(self.extender.lead())
        await until(lambda: self.extender.not_ready() is None or self._task.done())

    @property
    def is_dead(self) -> bool:
        return self._connection.dead.is_set()

    def will_die(self) -> None:
        """After some more requests."""
        self._connection.left = self._rng.randrange(MOST_REQUESTS)
        self._connection.does_the_last = self._rng.random() < 0.5

    def will_freeze(self) -> list[httpx2.Request]:
        """After some more requests. Return the list of those that arrive later, when the caller serves them."""
        self.will_die()
        self._connection.does_the_last, self._connection.keeps_late = False, True
        return self._connection.late

    def will_live(self) -> None:
        self._connection.left = None

    async def stop(self) -> None:
        self.killed += self.is_dead
        self._connection.dead.set()
        await _end(self._task)

    async def place(self, pod: Json, nodes: list[str]) -> bool:
        """Bind the pod as kube-scheduler would; False where it does not know the pod, or finds no room."""
        uid = pod["metadata"]["uid"]
        known = self.extender.view.pods.by_uid(uid)
        if known is None or self.is_dead:
            return False
        verdict = self.extender.placing.filter(known, NodeNames(nodes))
        fitting = [node for node, fits in zip(nodes, verdict.ok.tolist(), strict=True) if fits]
        if not fitting:
            return False
        args = ExtenderBindingArgs(
            pod_name=known.name, pod_namespace=known.namespace, pod_uid=uid, node=self._rng.choice(fitting)
        )
        bind = asyncio.create_task(self.extender.binder.bind(args))
        dead = asyncio.create_task(self._connection.dead.wait())
        await asyncio.wait({bind, dead}, return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        if not bind.done():
            await _end(bind)
            return False
        with contextlib.suppress(ElasticGPUError):  # it may find out only now that there is no room
            await bind
            return True
        return False


async def _end(task: asyncio.Task[None]) -> None:
    """Without anything that it would do at its end: what it asks for then gets no answer either."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(task, return_exceptions=True)
