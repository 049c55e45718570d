"""A node's cards as devices of ResourceSlices.

kube-scheduler takes the first device that fits, in the order of the slices. So the fullest cards come first: small
claims share them, and the others stay whole.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final

from egpu.api import names
from egpu.core.links import link_domains
from egpu.core.selectors import architecture, semantic
from egpu_base.api.devices import (
    CapacityRange,
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from egpu_base.api.objects import ObjectMeta, OwnerReference
from egpu_base.api.quantities import canonical_quantity

CORES: Final = "cores"
"""Capacity: percent of a card's compute."""
MEMORY: Final = "memory"
"""Capacity: bytes of a card's memory."""
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
SICK: Final = f"{names.DRIVER}/unhealthy"
CORDONED: Final = f"{names.DRIVER}/cordoned"
PRICED: Final = DeviceTaint(key=names.PRICED_TAINT, effect="NoSchedule")
"""On all devices of a node whose cards the extender gives out: kube-scheduler's own allocation leaves them alone."""
MAX_DEVICES: Final = 64
"""The API server's limit for a slice with a taint; without one it is 128. A taint may come at any time."""
_LONGEST_STRING: Final = 64
_LONGEST_NAME: Final = 253
_KNOWN_NAMES: Final = 16_384
"""Names of devices that are cached. A node's are asked for with each of its claims."""


@dataclass(frozen=True)
class PublishedCard:
    """A card that its agent publishes. `used_core` (percent) and `used_mib`: of prepared slices. `sick`: the reason, or
    empty. `priced`: whether the extender gives it out. `links`: (UUID of another card, kind)."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    compute_capability: str = ""
    tflops: float | None = None
    numa: int | None = None
    pcie_root: str = ""
    driver_version: str = ""
    links: dict[str, str] = field(default_factory=dict[str, str])
    sick: str = ""
    cordoned: bool = False
    priced: bool = False
    used_core: int = 0
    used_mib: int = 0


@lru_cache(maxsize=_KNOWN_NAMES)
def device_name(uuid: str) -> str:
    """Return the name of a card's device: its UUID as a DNS label, which a reboot does not change."""
    return re.sub(r"[^a-z0-9]+", "-", uuid.lower()).strip("-")[:63].strip("-")


def by_use(cards: Sequence[PublishedCard]) -> list[PublishedCard]:
    """Return the cards, the fullest first."""
    return sorted(cards, key=lambda card: (-max(card.used_core / 100, card.used_mib / card.memory_mib), card.index))


def devices(cards: Sequence[PublishedCard]) -> list[Device]:
    """Return the devices of a node's cards, the fullest first."""
    domains = _link_domains(cards)
    return [_device(card, domains.get(card.uuid, "")) for card in by_use(cards)]


def slices(node: str, node_uid: str, cards: Sequence[PublishedCard], *, generation: int) -> list[ResourceSlice]:
    """Return the slices of a node's pool; one without devices if it has no cards."""
    found = devices(cards)
    parts = [found[start : start + MAX_DEVICES] for start in range(0, len(found), MAX_DEVICES)] or [[]]
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=node_uid)
    pool = ResourcePool(name=node, generation=generation, resource_slice_count=len(parts))
    return [
        ResourceSlice(
            metadata=ObjectMeta(name=slice_name(node, number), owner_references=[owner] if node_uid else None),
            spec=ResourceSliceSpec(driver=names.DRIVER, pool=pool, node_name=node, devices=part),
        )
        for number, part in enumerate(parts)
    ]


def slice_name(node: str, number: int) -> str:
    """Return the name of a node's slice; a long node name is shortened, and gets a digest."""
    end = f"-{names.DRIVER}-{number}"
    if len(node) + len(end) > _LONGEST_NAME:
        digest = sha256(node.encode()).hexdigest()[:8]
        node = f"{node[: _LONGEST_NAME - len(end) - 9].rstrip('-.')}-{digest}"
    return node + end


def _device(card: PublishedCard, link_domain: str) -> Device:
    whole = canonical_quantity(f"{card.memory_mib}Mi")
    memory = DeviceCapacity(value=whole, request_policy=_policy(default=whole, least="1Mi"))
    return Device(
        name=device_name(card.uuid),
        attributes=_attributes(card, link_domain),
        capacity={CORES: DeviceCapacity(value="100", request_policy=_policy(default="100", least="1")), MEMORY: memory},
        taints=_taints(card) or None,
        allow_multiple_allocations=True,
    )


def _policy(*, default: str, least: str) -> CapacityRequestPolicy:
    """Return the policy of a capacity: in steps of the least amount; all of it where a claim names no amount."""
    return CapacityRequestPolicy(default=default, valid_range=CapacityRange(min=least, step=least))


def _attributes(card: PublishedCard, link_domain: str) -> dict[str, DeviceAttribute]:
    texts = {
        "uuid": card.uuid,
        "model": card.model,
        "architecture": architecture(card.compute_capability),
        "nvlinkDomain": link_domain,
        PCIE_ROOT: card.pcie_root,
    }
    versions = {
        "computeCapability": semantic(card.compute_capability),
        "driverVersion": semantic(card.driver_version),
    }
    numbers = {
        "tflops": None if card.tflops is None else round(card.tflops),
        "numaNode": card.numa,
    }
    return {
        **{name: DeviceAttribute(string=value[:_LONGEST_STRING]) for name, value in texts.items() if value},
        **{name: DeviceAttribute(version=value) for name, value in versions.items() if value},
        **{name: DeviceAttribute(number=value) for name, value in numbers.items() if value is not None},
        **{name: DeviceAttribute(flag=True) for name in names.CLAIM_TECHNOLOGIES},
    }


def _taints(card: PublishedCard) -> list[DeviceTaint]:
    """Return the taints that keep new claims off a card; programs that run there stay."""
    keys = [key for key, there in ((SICK, bool(card.sick)), (CORDONED, card.cordoned)) if there]
    return [*([PRICED] if card.priced else []), *(DeviceTaint(key=key, effect="NoSchedule") for key in keys)]


@dataclass(frozen=True)
class _Joined:
    """A card for `link_domains`."""

    uuid: str
    links: dict[str, str]


def _link_domains(cards: Sequence[PublishedCard]) -> dict[str, str]:
    """Return the name of each card's NVLink domain: the device of its first card, by UUID. Only cards in one."""
    ordered = sorted(cards, key=lambda card: card.uuid)
    found = link_domains([_Joined(card.uuid, card.links) for card in ordered])
    joined = zip(ordered, found, strict=True)
    return {card.uuid: device_name(ordered[first].uuid) for card, first in joined if first >= 0}
