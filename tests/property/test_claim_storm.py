"""No card is over-committed and no pod gets claims of two nodes, whatever comes in between: leaders that die or freeze
at any request, writes that arrive long after, sick cards, pods that end, and a kube-scheduler that takes claims
back."""

import asyncio
import copy
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2
import pytest

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.core.dra.devices import CORES, MEMORY
from egpu_base.api.quantities import MIB_BYTES, parse_quantity
from support.fake_api import FakeAPI, Json
from support.long import or_long
from support.mortal_extender import MortalExtender
from support.priced import CARD_MIB, a_card, a_claim, a_node, a_pod, free, free_claims_of, put_classes, set_status
from support.waiting import until

NODES, CARDS = 3, 2
STEPS: Final = or_long(200, 1200)
MOST_PODS: Final = 12


class Watched(FakeAPI):
    """Looks after every write."""

    def put(self, plural: str, obj: Json) -> Json:
        found = super().put(plural, obj)
        if plural in ("resourceclaims", "pods"):
            over_committed(self)
        return found


def over_committed(api: FakeAPI) -> None:
    """Raise AssertionError for a card with more than it has, by what the API server holds."""
    held: dict[str, list[tuple[str, int, int]]] = {}
    for obj in api.all("resourceclaims"):
        given: Mapping[str, Any] = (obj.get("status") or {}).get("allocation") or {}
        for one in (given.get("devices") or {}).get("results") or ():
            amounts = one["consumedCapacity"]
            amount = int(parse_quantity(amounts[CORES])), int(parse_quantity(amounts[MEMORY]) / MIB_BYTES)
            held.setdefault(one["device"], []).append((obj["metadata"]["name"], *amount))
    for obj in api.all("pods"):
        text = (obj["metadata"].get("annotations") or {}).get(names.ALLOCATION)
        for container in decode_allocation(text).containers.values() if text else ():
            for share in container.cards:
                amount = share.core, share.memory_mib
                held.setdefault(share.uuid.lower(), []).append((obj["metadata"]["name"], *amount))
    for device, parts in held.items():
        assert sum(core for _, core, _ in parts) <= 100, (device, parts)
        assert sum(mib for _, _, mib in parts) <= CARD_MIB, (device, parts)


class World:
    """A cluster, its extender, and everything else that changes it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.api = Watched()
        put_classes(self.api)
        for node in range(NODES):
            self.api.put("nodes", a_node(f"n{node}"))
            for index in range(CARDS):
                self.api.put("elasticgpus", a_card(f"n{node}", index))
        self.leader = MortalExtender(self.api, self.chance)
        self.late: list[list[httpx2.Request]] = []
        self.count = 0
        self.allocated = 0

    async def succeed(self) -> None:
        """Put another extender in the place of a dead one."""
        if self.leader.is_dead:
            await self.leader.stop()
            for lease in self.api.all("leases"):
                self.api.remove("leases", lease["metadata"]["name"], lease["metadata"]["namespace"])
            await self.leader.start()

    # --- what happens -------------------------------------------------------------------------------------------------

    def new_pod(self) -> None:
        if len(self.api.all("pods")) >= MOST_PODS:
            return
        self.count += 1
        claims: list[str] = []
        for number in range(self.chance.choice((1, 1, 2, 3))):
            name = f"c{self.count}-{number}"
            cores, mib = self.chance.choice((10, 30, 60, 100)), self.chance.choice((512, 4096, 9000))
            whole = self.chance.random() < 0.1
            claim = a_claim(name, klass="whole") if whole else a_claim(name, cores=cores, mib=mib)
            self.api.put("resourceclaims", claim)
            claims.append(name)
        self.api.put("pods", a_pod(f"p{self.count}", *claims))

    async def new_usual_pod(self) -> None:
        if len(self.api.all("pods")) >= MOST_PODS:
            return
        self.count += 1
        limits = {names.GPU_CORE: str(self.chance.choice((20, 50))), names.GPU_MEMORY: "2048"}
        meta = {
            "name": f"u{self.count}",
            "namespace": "ns",
            "annotations": {names.DEMAND: '{"version":1,"containers":{}}'},
        }
        spec = {"containers": [{"name": "app", "resources": {"limits": limits}}]}
        pod = self.api.put("pods", {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
        await asyncio.sleep(0.01)
        await self.leader.place(pod, [f"n{node}" for node in range(NODES)])

    def kube_scheduler(self) -> None:
        """Bind pods whose claims are all allocated."""
        for pod in self.api.all("pods"):
            named = [one["name"] for one in pod["spec"].get("resourceClaims", ())]
            claims = [self.api.get("resourceclaims", name, "ns") for name in named]
            given = [(claim.get("status") or {}).get("allocation") for claim in claims]
            if not pod["spec"].get("nodeName") and claims and all(given):
                nodes = {one["devices"]["results"][0]["pool"] for one in given if one}
                assert len(nodes) == 1, "claims of two nodes"
                bound = copy.deepcopy(pod)
                bound["spec"]["nodeName"] = nodes.pop()
                self.api.put("pods", bound)
                self.allocated += 1

    def claim_controller(self) -> None:
        """Free claims that are reserved for pods that are gone: the reservation may come after the end of its pod."""
        there = {pod["metadata"]["uid"] for pod in self.api.all("pods")}
        for claim in self.api.all("resourceclaims"):
            for user in (claim.get("status") or {}).get("reservedFor") or ():
                if user["uid"] not in there:
                    free_claims_of(self.api, user["uid"])

    def takes_back(self) -> None:
        """kube-scheduler found no room for CPU: it takes one claim of a waiting pod back."""
        for pod in self.api.all("pods"):
            for one in pod["spec"].get("resourceClaims", ()) if not pod["spec"].get("nodeName") else ():
                status = self.api.get("resourceclaims", one["name"], "ns").get("status") or {}
                if status.get("allocation"):
                    set_status(self.api, one["name"], {})
                    return

    def ends(self) -> None:
        pods = self.api.all("pods")
        if pods:
            pod = self.chance.choice(pods)["metadata"]["name"]
            mine = [one["name"] for one in self.api.get("pods", pod, "ns")["spec"].get("resourceClaims", ())]
            free(self.api, pod)
            for claim in mine if self.chance.random() < 0.5 else ():
                self.api.remove("resourceclaims", claim, "ns")

    def sickens(self) -> None:
        card = a_card(f"n{self.chance.randrange(NODES)}", self.chance.randrange(CARDS))
        self.api.put("elasticgpus", {**card, "status": {"healthy": self.chance.random() < 0.6}})

    def dies(self) -> None:
        if self.chance.random() < 0.5:
            self.leader.will_die()
        else:
            self.late.append(self.leader.will_freeze())

    def late_writes_arrive(self) -> None:
        for each in self.late:
            for request in each:
                self.api.serve(request)
            each.clear()


@pytest.mark.parametrize("seed", range(or_long(4, 25)))
async def test_no_card_is_over_committed(seed: int) -> None:
    world = World(seed)
    await world.leader.start()
    often: list[Callable[[], object]] = [world.new_pod, world.new_usual_pod, world.kube_scheduler, world.ends]
    seldom = [world.claim_controller, world.takes_back, world.sickens, world.dies, world.late_writes_arrive]
    for _ in range(STEPS):
        done = world.chance.choice((*often, *often, *seldom))()
        if asyncio.iscoroutine(done):
            await done
        await asyncio.sleep(world.chance.choice((0, 0, 0.005, 0.03)))
        await world.succeed()
    world.leader.will_live()
    await world.succeed()
    world.late_writes_arrive()
    assert world.allocated > STEPS // 50
    await nothing_is_leaked(world)
    await world.leader.stop()


async def nothing_is_leaked(world: World) -> None:
    """Once all pods have ended, pods with whole cards take everything."""
    for pod in list(world.api.all("pods")):
        free(world.api, pod["metadata"]["name"])
    for node in range(NODES):
        for index in range(CARDS):
            world.api.put("elasticgpus", a_card(f"n{node}", index))
        world.api.put("resourceclaims", a_claim(f"all-{node}", klass="whole", count=CARDS))
        world.api.put("pods", a_pod(f"all-{node}", f"all-{node}"))

    def all_given() -> bool:
        world.claim_controller()
        world.kube_scheduler()
        return all(world.api.get("pods", f"all-{node}", "ns")["spec"].get("nodeName") for node in range(NODES))

    await until(all_given)
    assert not world.leader.extender.view.cache.problems()
