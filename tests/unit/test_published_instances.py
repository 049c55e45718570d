"""What an agent tells of cards in MIG mode: what is gone is told as well, and what is used by whom it was not given."""

from dataclasses import replace

from egpu.adapters.cards.mig import FoundInstance, MigReading
from egpu.adapters.cards.nvml import CardReading
from egpu.api.mig import InstancePlace, Mig
from egpu.api.objects import ElasticGPU
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.cards.publisher import Publisher
from egpu.core.provisioners.preparation import CardInstance
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI
from support.local_node import Cards
from support.mig import mig_profiles

SMALL, LARGE = InstancePlace(profile="1g.5gb", start=0, size=1), InstancePlace(profile="3g.20gb", start=4, size=4)


class Node:
    """A node of one card in MIG mode; `tell` what its instances are, and see what is published."""

    def __init__(self) -> None:
        self.api = FakeAPI()
        self.api.put("nodes", {"kind": "Node", "metadata": {"name": "n0"}})
        self.given: set[CardInstance] = set()
        client = self.api.client()
        self.publisher = Publisher(
            client,
            "n0",
            Inventory(Cards(1), interval_seconds=1),
            events=EventRecorder(client, component="test"),
            interval_seconds=60,
            learn=lambda _: "",
            given=lambda: self.given,
        )

    async def tell(self, *instances: FoundInstance) -> Mig:
        await self.publisher.publish((card(*instances),))
        (found,) = await self.api.client().list(ElasticGPU)
        assert found.spec.physical_gpu is not None
        assert found.spec.physical_gpu.mig is not None
        return found.spec.physical_gpu.mig


def card(*instances: FoundInstance) -> CardReading:
    (plain,) = Cards(1).read()
    return replace(plain, mig=MigReading(tuple(mig_profiles("A100-40G")), instances))


def found(place: InstancePlace, *, in_use: bool = False) -> FoundInstance:
    return FoundInstance(place, gpu_id=place.start, compute_id=0, uuid=f"MIG-{place.start}", in_use=in_use)


async def test_the_last_instance_that_somebody_destroys_is_not_told_of_any_more() -> None:
    node = Node()
    assert (await node.tell(found(SMALL), found(LARGE))).others == [SMALL, LARGE]
    assert (await node.tell(found(LARGE))).others == [LARGE]
    assert (await node.tell()).others == []


async def test_who_runs_on_an_instance_that_no_container_has_is_told_of() -> None:
    node = Node()
    busy = found(SMALL, in_use=True), found(LARGE, in_use=True)
    node.given = {CardInstance(card().uuid, LARGE), CardInstance("GPU-another", SMALL)}
    assert (await node.tell(*busy)).used == [SMALL]
    node.given = set()
    assert (await node.tell(*busy)).used == [SMALL, LARGE]
    assert (await node.tell(found(SMALL), found(LARGE))).used == []
