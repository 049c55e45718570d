"""Cards of another vendor, from its driver to a container: what a vendor adds, and nothing else.

`Toy` has a reader of cards, names of device files, and a technology for whole cards. It is registered for these tests
only. docs/internals/vendors.md says what real vendors take.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from egpu.adapters.cards.nvml import CardProcess, CardReading
from egpu.api import names
from egpu.api.allocation import ContainerAllocation, ContainerDemand
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.cards.publisher import card_object
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles, Naming
from egpu.apps.agent.slots.directories import Slots
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.owners import Owner
from egpu.apps.agent.slots.preparer import Preparer
from egpu.core.admission import mutate_pod
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.provisioners import PROVISIONERS, NodeTotals, Provisioner
from egpu.core.provisioners.base import Variable
from support.objects import claim, claim_pod, gpu_class, place, why_not

NAME = "toy.example.com/card"
NAMING = Naming("toy/card{}", ("toy-control", "toy/absent"))
ONE_CARD = {names.GPU: 1}


class ToyCards:
    """The reader of cards. A card's minor is the number in its file's name."""

    def read(self) -> tuple[CardReading, ...]:
        return tuple(
            CardReading(f"TOY-{index}", index, 128 + index, "Toy 1", 32768, compute_capability="") for index in (0, 1)
        )

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]:
        return {}

    def used_bytes(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None: ...


class Toy(Provisioner):
    """The technology. The toolkit of the vendor reads TOY_VISIBLE."""

    name = NAME

    def environment(self, demand: ContainerDemand) -> tuple[Variable, ...]:
        return (Variable("TOY_VISIBLE", value="all"),) if demand.provisioner == self.name else ()

    def visible_devices(self, allocation: ContainerAllocation) -> str:
        return ""  # NVIDIA's runtime has nothing to do with these cards

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        return {"toy.example.com/card": node.cards}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVISIONERS, NAME, Toy())


class Machine:
    """A machine with two of these cards, and the parts of its agent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev/toy").mkdir(parents=True)
        for file in ("toy/card128", "toy/card129", "toy-control"):
            (root / "dev" / file).write_text("")
        self.devices = DeviceFiles(root / "dev", root / "state", naming=NAMING)
        self.slots = Slots(root / "slots")
        self.inventory = Inventory(ToyCards(), interval_seconds=1)

    async def prepare(self, owner: Owner, *, mode: str) -> None:
        await self.inventory.refresh()
        specs = SlotSpecs([self.root / "cdi"], self.devices)
        specs.open()
        preparer = Preparer(
            slots=self.slots,
            state_dir=self.root,
            devices=self.devices,
            inventory=self.inventory,
            specs=specs,
            injection=Injection("always" if mode == "cdi" else "never"),
        )
        await preparer.prepare("7", owner)


def cluster() -> SchedulerCache:
    """The scheduler's view of one such machine."""
    return rebuild([card_object("n0", card, "") for card in ToyCards().read()], [], [])


def owner() -> Owner:
    """A container to which the scheduler has given the first card."""
    cache = cluster()
    cache.class_changed(gpu_class("toys", NAME, wait=True))
    cache.claim_changed(claim("c", ONE_CARD, "toys"))
    pod = claim_pod("p", "c")
    return Owner(pod, "app", place(cache, pod).containers["app"])


def test_the_webhook_tells_the_program_as_this_vendor_does() -> None:
    classes = {"toys": gpu_class("toys", NAME)}
    patch = mutate_pod(claim_pod("p", "c"), {"c": claim("c", ONE_CARD, "toys")}, classes)
    variables = [step["value"] for step in patch if step["path"].endswith("/env/-")]
    assert {"name": "TOY_VISIBLE", "value": "all"} in variables


def test_a_node_publishes_these_cards_by_their_own_name() -> None:
    assert node_capacity(ToyCards().read(), 0)["toy.example.com/card"] == "2"


def test_a_third_pod_finds_no_card() -> None:
    cache = cluster()
    cache.class_changed(gpu_class("toys", NAME, wait=True))
    for name in ("a", "b", "c"):
        cache.claim_changed(claim(name, ONE_CARD, "toys"))
    place(cache, claim_pod("p", "a"))
    place(cache, claim_pod("q", "b"))
    assert "0 of 2 cards" in why_not(cache, claim_pod("r", "c"))


async def test_a_container_gets_the_device_files_of_its_card_alone(tmp_path: Path) -> None:
    machine, given = Machine(tmp_path), owner()
    await machine.prepare(given, mode="paths")
    minor = 128 + given.allocation.cards[0].index
    dev = machine.slots.path("7") / "dev"
    assert (dev / f"toy/card{minor}").readlink() == tmp_path / f"dev/toy/card{minor}"
    assert (dev / "toy-control").readlink() == tmp_path / "dev/toy-control"
    assert (dev / f"toy/card{257 - minor}").readlink() == machine.devices.nowhere()
    assert (dev / "toy/absent").readlink() == machine.devices.nowhere()
    assert not list(dev.glob("nvidia*"))


async def test_the_same_by_cdi(tmp_path: Path) -> None:
    machine, given = Machine(tmp_path), owner()
    await machine.prepare(given, mode="cdi")
    (file,) = (tmp_path / "cdi").iterdir()
    (device,) = json.loads(file.read_text())["devices"]
    minor = 128 + given.allocation.cards[0].index
    nodes = {one["path"]: one["hostPath"] for one in device["containerEdits"]["deviceNodes"]}
    assert nodes == {
        f"/dev/toy/card{minor}": str(tmp_path / f"dev/toy/card{minor}"),
        "/dev/toy-control": str(tmp_path / "dev/toy-control"),
    }
