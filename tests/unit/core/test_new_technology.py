"""A technology in one file, from admission to the node: nothing else may need to know its name.

`Halves` gives out the memory of a card in halves and tells the program so; it is registered for these tests only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from egpu.adapters.cards.nvml import CardProcess, CardReading
from egpu.api.allocation import ContainerDemand, PodAllocation
from egpu.apps.agent.cards.capacity import node_capacity
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.slots.cdi import SlotSpecs
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.directories import Slots
from egpu.apps.agent.slots.injection import Injection
from egpu.apps.agent.slots.owners import Owner
from egpu.apps.agent.slots.preparer import Preparer
from egpu.core.admission import mutate_pod, validate_claim, validate_class
from egpu.core.placement.binding_annotations import binding_annotations
from egpu.core.placement.cache import CLAIM_CONTAINER
from egpu.core.provisioners import PROVISIONERS, CardTotals, Needs, NodeTotals, Provisioner
from egpu.core.provisioners.base import Variable
from support.objects import BINPACK, claim, claim_pod, cluster, fits, gpu_class, place, slice_pod, why_not

NAME = "example.com/halves"
MEMORY = {"elasticgpu.io/gpu-memory": 4096}


class Halves(Provisioner):
    name = NAME
    parameters: ClassVar = {"half": ("any", "warm")}

    def problem(self, demand: ContainerDemand) -> str | None:
        return "halves have no compute share" if demand.core or demand.tflops else None

    def needs(self, demand: ContainerDemand, cards: CardTotals) -> Needs:
        half = cards.memory_mib // 2
        return Needs(np.zeros_like(half), half, demand.memory_mib <= half)

    def environment(self, demand: ContainerDemand) -> tuple[Variable, ...]:
        if demand.provisioner != self.name:
            return ()
        return (Variable("HALVES", value="1"), Variable("HALVES_MODEL", annotation="example.com/model"))

    def annotations(self, allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
        own = [one for one in allocation.containers.values() if one.provisioner == self.name]
        return {"example.com/model": own[0].cards[0].model} if own else {}

    def capacity(self, node: NodeTotals) -> dict[str, int]:
        return {"example.com/half": 2 * node.cards}


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVISIONERS, NAME, Halves())


@pytest.mark.usefixtures("halves")
def test_admission_knows_it_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    klass = gpu_class("halves", NAME)
    assert validate_class(klass, None) == []
    (wrong,) = validate_class(gpu_class("halves", NAME, parameters={"half": "cold"}), None)
    assert wrong.field == "parameters[half]"
    assert validate_claim(claim("c", MEMORY, "halves"), None, {"halves": klass}) == []
    (refused,) = validate_claim(claim("c", class_name="halves"), None, {"halves": klass})
    assert refused.reason == "halves have no compute share"
    patch = mutate_pod(claim_pod("p", "c"), {"c": claim("c", MEMORY, "halves")}, {"halves": klass})
    variables = [step["value"] for step in patch if step["path"].endswith("/env/-")]
    assert {"name": "HALVES", "value": "1"} in variables
    reference = {"fieldRef": {"fieldPath": "metadata.annotations['example.com/model']"}}
    assert {"name": "HALVES_MODEL", "valueFrom": reference} in variables
    monkeypatch.delitem(PROVISIONERS, NAME)
    assert f"provisioner '{NAME}' does not exist" in validate_class(klass, None)[0].reason


@pytest.mark.usefixtures("halves")
def test_two_pods_share_a_card_in_halves_and_nobody_else_comes_beside_them() -> None:
    cache = cluster()
    cache.class_changed(gpu_class("halves", NAME, wait=True))
    for name in ("a", "b", "c"):
        cache.claim_changed(claim(name, MEMORY, "halves"))
    first = place(cache, claim_pod("p", "a"))
    assert first.containers["app"].cards[0].memory_mib == 8192
    assert binding_annotations(first, assume_time_ns=1)["example.com/model"] == "T4"
    assert f"has slices of {NAME}" in why_not(cache, slice_pod("other"))
    assert fits(cache, claim_pod("q", "b"))
    place(cache, claim_pod("q", "b"))
    assert "0 MiB of 16 GiB free" in why_not(cache, claim_pod("r", "c"))


@pytest.mark.usefixtures("halves")
def test_a_claim_of_it_is_bound_by_itself() -> None:
    cache = cluster()
    cache.class_changed(gpu_class("halves", NAME))
    given = cache.ranking.choose(cache.claim_request(claim("c", MEMORY, "halves")), "n0", BINPACK)
    assert given.containers[CLAIM_CONTAINER].provisioner == NAME


class Cards:
    """One card, on no machine."""

    def read(self) -> tuple[CardReading, ...]:
        return (CardReading(uuid="GPU-n0-0", index=0, minor=3, model="T4", memory_mib=16384, compute_capability="7.5"),)

    def processes(self) -> Mapping[str, tuple[CardProcess, ...]]:
        return {}

    def used_bytes(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None: ...


@pytest.mark.usefixtures("halves")
async def test_the_node_publishes_it_and_prepares_its_containers(tmp_path: Path) -> None:
    assert node_capacity(Cards().read(), 0)["example.com/half"] == "2"
    cache = cluster()
    cache.class_changed(gpu_class("halves", NAME, wait=True))
    cache.claim_changed(claim("c", MEMORY, "halves"))
    pod = claim_pod("p", "c")
    owner = Owner(pod, "app", place(cache, pod).containers["app"])
    inventory = Inventory(Cards(), interval_seconds=1)
    await inventory.refresh()
    slots = Slots(tmp_path / "slots")
    devices = DeviceFiles(tmp_path / "dev", tmp_path)
    preparer = Preparer(
        slots=slots,
        state_dir=tmp_path,
        devices=devices,
        inventory=inventory,
        specs=SlotSpecs([tmp_path / "cdi"], devices),
        injection=Injection("never"),
    )
    await preparer.prepare("7", owner)
    assert (slots.path("7") / "dev" / "nvidia3").readlink() == tmp_path / "dev" / "nvidia3"
    assert (slots.path("7") / "ld.so.preload").read_text() == ""
