"""What a node agent must set up for one container: from its allocation and the node's cards as they are now.

Knows nothing of who calls it (device plugin today, DRA or NRI tomorrow) and touches nothing: the agent writes the
policy page, links the devices and mounts the libraries that this names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.vocabularies import ALIYUN, GPUSHARE
from egpu.core.placement.binding import visible_devices
from egpu.core.placement.ledger import Card
from egpu.core.provisioners import Isolation, provisioner
from egpu.errors import NotSupported, Unavailable

MIB_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class DeviceLimit:
    """The slice on one card, as the policy page states it, in the order in which the container sees its cards.

    `core_percent` 0 means that compute is not limited; `core_ceiling_percent` is up to where idle compute may be used
    (equal to `core_percent` when it may not); `weight` is the share under contention. `spill_bytes` may be allocated
    beyond `memory_bytes`, as managed memory.
    """

    uuid: str
    memory_bytes: int
    core_percent: int
    core_ceiling_percent: int
    weight: int
    spill_bytes: int = 0


@dataclass(frozen=True)
class PolicySpec:
    """The contents of a container's policy page. `work_conserving`: mode `share`, otherwise `cap`."""

    devices: tuple[DeviceLimit, ...]
    work_conserving: bool


@dataclass(frozen=True)
class Preparation:
    """Everything one container needs. `minors` are the device nodes that it may open, now: none where an executor has
    the cards. `policy` is None when nothing in the process has to be limited (whole cards, a technology that trusts the
    program, or an executor that is limited in its place)."""

    isolation: Isolation
    uuids: tuple[str, ...]
    minors: tuple[int, ...]
    policy: PolicySpec | None
    environment: Mapping[str, str]

    @property
    def interposed(self) -> bool:
        """Whether the interposer is mounted into the container."""
        return self.policy is not None

    @property
    def remote(self) -> bool:
        """Whether the container gets the remote driver and an executor in place of devices."""
        return self.isolation == "executor"


def prepare(container: str, allocation: ContainerAllocation, cards: Iterable[Card]) -> Preparation:
    """What to set up for `container`. `cards` are the node's as its driver reports them now: a reboot may have given a
    card another minor, so cards are found by UUID.

    Raises NotSupported for a technology that is not built, and Unavailable when a granted card is not there.
    """
    technology = provisioner(allocation.provisioner)
    if not technology.available:
        raise NotSupported(f"container {container} needs {technology.name}, which is not available yet")
    present = {card.uuid: card for card in cards}
    if missing := [share.uuid for share in allocation.cards if share.uuid not in present]:
        there = ", ".join(sorted(present)) or "none"
        raise Unavailable(
            f"container {container} was given {missing[0]}, which this node does not have (it has {there})"
        )
    granted = [present[share.uuid] for share in allocation.cards]
    remote = technology.isolation == "executor"
    limited = technology.isolation == "interposer" and not allocation.exclusive
    return Preparation(
        isolation="whole-card" if allocation.exclusive and not remote else technology.isolation,
        uuids=tuple(card.uuid for card in granted),
        minors=() if remote else tuple(card.minor for card in granted),
        policy=_policy(allocation) if limited else None,
        environment=container_environment(allocation),
    )


def prepare_elsewhere(container: str, allocation: ContainerAllocation) -> Preparation:
    """What to set up for `container` when another node has its cards: the remote driver, and nothing of this node's.

    Raises NotSupported for a technology that needs the cards here.
    """
    technology = provisioner(allocation.provisioner)
    if not (technology.available and technology.anywhere):
        raise NotSupported(f"container {container} needs {technology.name}, which cannot use another node's cards")
    return Preparation(
        isolation=technology.isolation, uuids=(), minors=(), policy=None, environment=container_environment(allocation)
    )


def _policy(allocation: ContainerAllocation) -> PolicySpec:
    return PolicySpec(
        devices=tuple(_limit(share, allocation) for share in allocation.cards),
        work_conserving=allocation.core_limit > 0,
    )


def _limit(share: CardShare, allocation: ContainerAllocation) -> DeviceLimit:
    return DeviceLimit(
        uuid=share.uuid,
        memory_bytes=share.memory_mib * MIB_BYTES,
        core_percent=share.core,
        core_ceiling_percent=max(share.core, allocation.core_limit) if share.core else 0,
        # Who has no compute share of its own still gets a little when the card is contended.
        weight=max(share.core, 1),
        spill_bytes=allocation.memory_limit_bytes(share) - share.memory_mib * MIB_BYTES,
    )


def container_environment(allocation: ContainerAllocation) -> dict[str, str]:
    """Environment for a runtime that sets it directly (on Kubernetes the webhook's fieldRefs bring the same)."""
    environment = {names.NVIDIA_VISIBLE_DEVICES: visible_devices(allocation)}
    if allocation.vocabulary in (ALIYUN.name, GPUSHARE.name) and allocation.cards:
        first = allocation.cards[0]
        memory = str(-(-sum(share.memory_mib for share in allocation.cards) // 1024))
        environment |= {
            names.ALIYUN_MEM_IDX: str(first.index),
            names.ALIYUN_MEM_POD: memory,
            names.ALIYUN_MEM_CONTAINER: memory,
            names.ALIYUN_MEM_DEV: str(first.card_memory_mib // 1024),
        }
    return environment
