"""Cards as devices of ResourceSlices."""

from __future__ import annotations

import uuid
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from egpu.core.dra.devices import (
    CORDONED,
    SICK,
    PublishedCard,
    architecture,
    by_use,
    device_name,
    devices,
    semantic,
    slice_name,
    slices,
)
from egpu_base.api.objects import is_object_name

CARD = PublishedCard(
    uuid="GPU-0000aaaa-0000-4000-8000-000000000000", index=0, model="Simulated T4", memory_mib=16384,
    compute_capability="7.5", tflops=8.1, numa=1, pcie_root="pci0000:3a", driver_version="580.65.06",
)  # fmt: skip


def test_a_card_says_what_selectors_ask() -> None:
    (device,) = devices([CARD])
    found = {name: (one.string, one.version, one.number, one.flag) for name, one in (device.attributes or {}).items()}
    assert found == {
        "uuid": (CARD.uuid, None, None, None),
        "model": ("Simulated T4", None, None, None),
        "architecture": ("Turing", None, None, None),
        "resource.kubernetes.io/pcieRoot": ("pci0000:3a", None, None, None),
        "computeCapability": (None, "7.5.0", None, None),
        "driverVersion": (None, "580.65.6", None, None),
        "tflops": (None, None, 8, None),
        "numaNode": (None, None, 1, None),
        "vcuda": (None, None, None, True),
        "physical": (None, None, None, True),
    }
    assert device.name == "gpu-0000aaaa-0000-4000-8000-000000000000"
    assert device.allow_multiple_allocations
    capacity = device.capacity or {}
    policies = {name: (one.value, one.request_policy) for name, one in capacity.items()}
    assert {name: value for name, (value, _) in policies.items()} == {"cores": "100", "memory": "16Gi"}
    defaults = {name: policy.default for name, (_, policy) in policies.items() if policy is not None}
    assert defaults == {"cores": "100", "memory": "16Gi"}


def test_a_sick_or_cordoned_card_has_a_taint_and_stays() -> None:
    sick, cordoned, well = replace(CARD, sick="fell off the bus"), replace(CARD, cordoned=True), CARD
    found = [[(taint.key, taint.effect) for taint in one.taints or []] for one in devices([sick, cordoned, well])]
    assert found == [[(SICK, "NoSchedule")], [(CORDONED, "NoSchedule")], []]


def test_cards_under_nvlink_share_a_domain() -> None:
    cards = [replace(CARD, uuid=f"GPU-{number}", index=number) for number in range(3)]
    cards[0] = replace(cards[0], links={"GPU-1": "NV12", "GPU-2": "PIX"})
    found = {one.name: (one.attributes or {}).get("nvlinkDomain") for one in devices(cards)}
    domains = {name: one.string for name, one in found.items() if one is not None}
    assert domains == {"gpu-0": "gpu-0", "gpu-1": "gpu-0"}


def test_versions_are_semantic() -> None:
    assert [semantic(one) for one in ("580.65.06", "8.0", "12", "", "unknown")] == [
        "580.65.6", "8.0.0", "12.0.0", "", "",
    ]  # fmt: skip
    assert [architecture(one) for one in ("8.0", "8.9", "9.0", "12.0", "99.0")] == [
        "Ampere", "Ada Lovelace", "Hopper", "Blackwell", "",
    ]  # fmt: skip


def test_a_slice_of_any_node_has_a_valid_name() -> None:
    for node in ("a", "n" * 63, ".".join(["n" * 62] * 4)):
        assert is_object_name(slice_name(node, 3))
    long = "n" * 250
    assert slice_name(long + "a", 0) != slice_name(long + "b", 0)


CARDS = st.lists(
    st.builds(
        PublishedCard,
        uuid=st.uuids(version=4).map(lambda one: f"GPU-{one}"),
        index=st.integers(0, 300),
        model=st.just("m"),
        memory_mib=st.integers(1, 1 << 20),
        sick=st.sampled_from(["", "x"]),
        used_core=st.integers(0, 100),
    ),
    max_size=200,
    unique_by=lambda card: card.uuid,
)


@given(CARDS)
def test_every_card_is_once_in_slices_that_the_server_takes(cards: list[PublishedCard]) -> None:
    found = slices("node", "uid", cards, generation=7)
    published = [device.name for one in found for device in one.spec.devices or []]
    assert sorted(published) == sorted(device_name(card.uuid) for card in cards)
    assert published == [device_name(card.uuid) for card in by_use(cards)]
    for one in found:
        assert len(one.spec.devices or []) <= 64  # the server's limit beside a taint
        assert (one.spec.pool.generation, one.spec.pool.resource_slice_count) == (7, len(found))
        assert (one.spec.pool.name, one.spec.node_name) == ("node", "node")
    assert len({one.name for one in found}) == len(found)


@given(CARDS)
def test_the_fullest_cards_come_first(cards: list[PublishedCard]) -> None:
    used = [max(card.used_core / 100, card.used_mib / card.memory_mib) for card in by_use(cards)]
    assert used == sorted(used, reverse=True)


def test_a_device_keeps_its_name() -> None:
    card = f"GPU-{uuid.uuid4()}"
    assert device_name(card) == card.lower()
