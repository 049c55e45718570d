"""Random rounds of a scheduler that places a whole group before it binds the first member, against the extender's own
protocol: no card is promised to two members, and every member is bound where the filter said, at the first try."""

import random
import time
from collections import Counter
from typing import Any

import msgspec
from test_extender_binding import cluster

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.apps.extender import Extender
from egpu.core.placement.promises import PROMISE_SECONDS
from support.extenders import extender
from support.fake_api import FakeAPI, Json
from support.long import or_long
from support.waiting import until

NODES = [f"n{number}" for number in range(3)]
CARDS = 2
ROUNDS = or_long(100, 1000)


class Rounds:
    """One extender, and what the pretend kube-scheduler knows. All pods of a round have equal demands."""

    def __init__(self, api: FakeAPI, one: Extender, seed: int) -> None:
        self.api = api
        self.one = one
        self.random = random.Random(seed)
        self.now = time.monotonic() + 60.0  # the extender's own look at old promises comes too early for them
        one.placing.clock = lambda: self.now
        self.made = 0
        self.core = 100

    def make(self, group: str = "", size: int = 0) -> Json:
        """A pod: alone, of a PodGroup with the policy basic (size 0), or of a gang as the webhook writes it."""
        self.made += 1
        annotations = {names.DEMAND: '{"version":1,"containers":{}}'}
        if size:
            gang = {names.GANG: f"podgroup.{group}", names.GANG_SIZE: f"{size}+", names.GANG_TIMEOUT: "never"}
            annotations |= gang
        container = {"name": "app", "resources": {"limits": {names.GPU_CORE: str(self.core)}}}
        spec: Json = {"containers": [container]}
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        metadata = {"name": f"p{self.made}", "namespace": "ns", "annotations": annotations}
        return self.api.put("pods", {"kind": "Pod", "metadata": metadata, "spec": spec})

    def filter(self, pod: Json) -> str:
        """The node that the filter names for the pod; "" if it refuses. Alone, any of those named."""
        body = msgspec.json.encode({"Pod": self.api.get("pods", pod["metadata"]["name"], "ns"), "NodeNames": NODES})
        found: Any = msgspec.json.decode(self.one.server.filter(body).body)
        assert not found.get("Error"), found
        named = found["NodeNames"] or []
        assert len(named) < 2 or not pod["spec"].get("schedulingGroup"), "a member gets one node"
        return self.random.choice(named) if named else ""

    async def bind(self, pod: Json, node: str) -> str:
        """Bind as kube-scheduler does; the error, or ""."""
        meta = pod["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": "ns", "PodUID": meta["uid"], "Node": node}
        answer = await self.one.server.bind(msgspec.json.encode(asked))
        return str(msgspec.json.decode(answer.body).get("Error") or "")

    async def seen(self) -> None:
        """The extender has seen every pod as it is."""

        def same() -> bool:
            known = {pod.uid: pod.metadata.resource_version for pod in self.one.view.pods}
            return known == {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in self.api.all("pods")}

        await until(same)

    async def clear(self) -> None:
        for pod in self.api.all("pods"):
            self.api.remove("pods", pod["metadata"]["name"], "ns")
        await self.seen()
        self.now += PROMISE_SECONDS
        self.one.view.cache.promises.expire(self.now)
        assert self.one.view.cache.ledger.holders() == {}, "a promise outlived its time"

    def places(self) -> int:
        """Slots of the round's size on one node."""
        return CARDS * (100 // self.core)

    async def play(self) -> tuple[int, int]:
        """One round. Returns how many members it had, and how many of them were placed."""
        self.core = self.random.choice([100, 50])
        busy = [self.make() for _ in range(self.random.randint(0, 4))]
        count = self.random.randint(2, 2 * self.places())
        size = self.random.choice([0, count, max(2, count - 1)])
        group = f"g{self.made}"
        members = [self.make(group, size) for _ in range(count)]
        strangers = [self.make() for _ in range(self.random.randint(0, 3))]
        await self.seen()
        used = Counter[str]()
        for pod in busy:
            if node := self.filter(pod):
                assert await self.bind(pod, node) == ""
                used[node] += 1
        for _ in range(self.random.randint(0, 2)):  # placements that kube-scheduler gives up
            for pod in members:
                self.filter(pod)
            self.now += self.random.choice([0.0, PROMISE_SECONDS])
        chosen: list[tuple[Json, str]] = []
        for pod in members:
            self.now += self.random.choice([0.0, 0.9]) * PROMISE_SECONDS
            if node := self.filter(pod):
                chosen.append((pod, node))
                used[node] += 1
        assert not used or max(used.values()) <= self.places(), "a card is promised twice"
        free = len(NODES) * self.places() - sum(used.values())
        assert len(chosen) == count or free == 0 or size, "a member was refused beside a free card"
        if len(chosen) < size:
            return count, 0  # kube-scheduler does not bind a part of a gang
        # While the bindings are on their way, refused members are tried again.
        for pod in [one for one in members if one not in [placed for placed, _ in chosen]]:
            if self.random.random() < 0.5 and (node := self.filter(pod)):
                chosen.append((pod, node))
                used[node] += 1
        assert not used or max(used.values()) <= self.places(), "a card of a binding on its way is promised again"
        others = [(pod, node) for pod in strangers if (node := self.filter(pod))]
        self.random.shuffle(chosen)
        for pod, node in [*chosen, *others[:free]]:
            problem = await self.bind(pod, node)
            assert not problem or (pod, node) in others, problem
        given = Counter[str]()
        for pod in self.api.all("pods"):
            if text := pod["metadata"]["annotations"].get(names.ALLOCATION):
                for share in decode_allocation(text).containers["app"].cards:
                    given[share.uuid] += self.core
        assert not given or max(given.values()) <= 100
        assert self.one.view.cache.ledger.overcommits() == []
        for pod, node in chosen:
            assert self.api.get("pods", pod["metadata"]["name"], "ns")["spec"]["nodeName"] == node
        return count, len(chosen)


async def test_no_card_is_promised_to_two_members() -> None:
    api = cluster(nodes=len(NODES), cards=CARDS)
    whole = part = 0
    async with extender(api) as one:
        rounds = Rounds(api, one, seed=37)
        for _ in range(ROUNDS):
            count, placed = await rounds.play()
            whole += placed == count
            part += 0 < placed < count
            await rounds.clear()
            api.log.clear()
    assert whole > ROUNDS / 10, "most rounds tried nothing"
    assert part > ROUNDS / 50
