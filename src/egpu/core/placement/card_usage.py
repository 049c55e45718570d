"""The usage of cards by allocations: amounts, modes, and over-commitment."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from egpu.api.allocation import ContainerAllocation, ContainerDemand, PodAllocation
from egpu.api.mig import InstancePlace
from egpu.core.mig import overlapping
from egpu.core.provisioners import PROVISIONERS

FREE: Final = 0
EXCLUSIVE: Final = 1
CONFLICT: Final = -1
"""Held in two modes at once, after an invalid write from outside; takes nothing new."""
_FIRST_SHARED: Final = 2
"""The mode of cards shared by the first technology; the other technologies follow."""
_ALIKE: Final = 1 << 16
"""Added for a card whose slices share a property, times the number of the property."""
_in_common: Final[list[str]] = [""]
"""The shared properties, in the order of their first use; they come from classes, so they are few."""
_MODE_NAMES: Final = {FREE: "", EXCLUSIVE: "exclusive", CONFLICT: "conflict"}


def shared_mode(provisioner: str) -> int:
    """Return the mode of a card that `provisioner` shares; CONFLICT for an unknown technology."""
    return next((code for code, name in enumerate(PROVISIONERS, _FIRST_SHARED) if name == provisioner), CONFLICT)


def card_mode(container: ContainerDemand | ContainerAllocation) -> int:
    """Return the mode of the cards of a container with this demand or allocation."""
    if container.exclusive:
        return EXCLUSIVE
    mode = shared_mode(container.provisioner)
    if mode == CONFLICT or not container.alike:
        return mode
    if container.alike not in _in_common:
        _in_common.append(container.alike)
    return mode + _ALIKE * _in_common.index(container.alike)


def mode_name(mode: int) -> str:
    """Return "" for a free card, "exclusive", "conflict", or the provisioner that shares it, with its property."""
    if mode in _MODE_NAMES:
        return _MODE_NAMES[mode]
    common, technology = divmod(mode, _ALIKE)
    name = list(PROVISIONERS)[technology - _FIRST_SHARED]
    return f"{name} ({_in_common[common]} only)" if common else name


class CardKey(NamedTuple):
    """The key of a card: its node and UUID."""

    node: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one card by one holder. `mode` as in the ledger's arrays. `memory_mib` are always there for it. It
    may have `shared_mib` more, in room that it shares with others, and `host_mib` of the host's memory while it is
    parked."""

    core: int
    memory_mib: int
    mode: int
    instances: tuple[InstancePlace, ...] = ()
    """The instances of a card in MIG mode."""
    shared_mib: int = 0
    host_mib: int = 0
    core_limit: int = 0
    """The compute that it may use while others are idle."""
    max_core_limits: int = 0
    """Percent that the limits of all holders of the card may add up to; 0: any."""


@lru_cache(maxsize=4096)
def _usage(
    core: int,
    memory_mib: int,
    mode: int,
    instances: tuple[InstancePlace, ...],
    *,
    shared_mib: int,
    host_mib: int,
    core_limit: int,
    max_core_limits: int,
) -> Usage:
    """Return one shared object for equal slices."""
    return Usage(core, memory_mib, mode, instances, shared_mib, host_mib, core_limit, max_core_limits)


def limit_sums(usages: Iterable[Usage]) -> tuple[int, int]:
    """Return the sum of limits of compute, and the most that it may be; 0: any."""
    found = list(usages)
    return sum(one.core_limit for one in found), least_bound(one.max_core_limits for one in found)


def least_bound(bounds: Iterable[int]) -> int:
    """Return the lowest bound of limits; 0 if there is none."""
    return min((one for one in bounds if one), default=0)


def overcommit(usages: Iterable[Usage], total_mib: int | None) -> str | None:
    """Return how these usages exceed one card; None if they do not. `total_mib` None: unknown."""
    held = list(usages)
    if not held:
        return None
    modes = {usage.mode for usage in held}
    if CONFLICT in modes:
        return "is held in two modes, or by a technology that does not exist"
    if len(modes) > 1:
        return "is held in several modes at once: " + ", ".join(sorted(mode_name(mode) for mode in modes))
    if modes == {EXCLUSIVE} and len(held) > 1:
        return f"is allocated whole to {len(held)} holders"
    instances = [place for usage in held for place in usage.instances]
    if overlapping(instances):
        return "has instances that do not fit beside each other: " + ", ".join(sorted(map(str, instances)))
    core = sum(usage.core for usage in held)
    # The slices that share room have it one after the other: it is as large as the largest.
    memory = sum(usage.memory_mib for usage in held) + max(usage.shared_mib for usage in held)
    if core > 100:
        return f"has 100 % of compute, {core} % are allocated"
    if total_mib is not None and memory > total_mib:
        return f"has {total_mib} MiB, {memory} MiB are allocated"
    limits, most = limit_sums(held)
    if most and limits > most:
        return f"has slices whose limits of compute add up to {limits} %, and a class allows {most} % (maxCoreLimits)"
    return None


def card_usage(allocation: PodAllocation) -> dict[CardKey, Usage]:
    """Return what an allocation takes of each card: per card the peak of what runs at the same time.

    Plain init containers run one after another, before the others but beside the sidecars declared before them. So on
    each card the pod takes max(apps + sidecars, each init + sidecars before it), as Kubernetes counts a pod's effective
    requests.
    """
    steady: dict[CardKey, Usage] = {}
    for name, container in allocation.containers.items():
        if name not in allocation.init:
            _add(steady, container, allocation.node)
    peak = dict(steady)
    # Owners of cards come first: other containers there, at other times, may have any technology.
    for name in sorted(allocation.init, key=lambda name: not _owns(allocation, name)):
        if name in allocation.containers:
            then: dict[CardKey, Usage] = {}
            for running in (*allocation.beside(name), name):
                _add(then, allocation.containers[running], allocation.node)
            for key, usage in then.items():
                peak[key] = _larger(peak[key], usage) if key in peak else usage
    return peak


def _owns(allocation: PodAllocation, name: str) -> bool:
    return name in allocation.containers and allocation.containers[name].exclusive


def _add(usages: dict[CardKey, Usage], container: ContainerAllocation, node: str) -> None:
    mode = card_mode(container)
    for share in container.counted:
        key = CardKey(container.cards_node(node), share.uuid)
        instances = () if share.instance is None else (share.instance,)
        own = share.resident_mib or share.memory_mib
        shared = share.memory_mib - own
        usage = _usage(
            share.core,
            own,
            mode,
            instances,
            shared_mib=shared,
            host_mib=share.memory_mib if shared else 0,
            core_limit=container.core_limit_of(share),
            max_core_limits=container.max_core_limits,
        )
        known = usages.get(key)
        if known is None:
            usages[key] = usage
        elif known.mode == usage.mode and mode != EXCLUSIVE:
            usages[key] = _sum(known, usage, mode)
        else:  # two containers at once on an owned card, or of two technologies
            usages[key] = _sum(known, usage, CONFLICT)


def _sum(one: Usage, other: Usage, mode: int) -> Usage:
    return _usage(
        one.core + other.core,
        one.memory_mib + other.memory_mib,
        mode,
        one.instances + other.instances,
        shared_mib=max(one.shared_mib, other.shared_mib),
        host_mib=one.host_mib + other.host_mib,
        core_limit=one.core_limit + other.core_limit,
        max_core_limits=least_bound((one.max_core_limits, other.max_core_limits)),
    )


def _larger(one: Usage, other: Usage) -> Usage:
    """Return the larger of two usages that do not run at once. A card that is exclusive for a while is exclusive for
    the pod's whole life, and its instances are kept as long."""
    modes = {one.mode, other.mode}
    owned = EXCLUSIVE in modes and CONFLICT not in modes
    mode = EXCLUSIVE if owned else one.mode if len(modes) == 1 else CONFLICT
    instances = tuple(dict.fromkeys(one.instances + other.instances))
    return _usage(
        max(one.core, other.core),
        max(one.memory_mib, other.memory_mib),
        mode,
        instances,
        shared_mib=max(one.shared_mib, other.shared_mib),
        host_mib=max(one.host_mib, other.host_mib),
        core_limit=max(one.core_limit, other.core_limit),
        max_core_limits=least_bound((one.max_core_limits, other.max_core_limits)),
    )
