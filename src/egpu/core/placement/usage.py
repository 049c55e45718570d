"""What allocations take of a card, in which mode, and when it is more than the card has."""

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
"""Held in two modes at once, which only a bad write from outside can bring about; takes nothing new."""
_FIRST_SHARED: Final = 2
"""The mode of a card that the first technology shares; those of the others follow."""
_ALIKE: Final = 1 << 16
"""What is added for a card whose slices have something in common, times the number of that."""
_in_common: Final[list[str]] = [""]
"""Such things, in the order in which they came up: only classes have any, so they are few."""
_MODE_NAMES: Final = {FREE: "", EXCLUSIVE: "exclusive", CONFLICT: "conflict"}


def shared_mode(provisioner: str) -> int:
    """The mode of a card that `provisioner` shares; CONFLICT for a technology that does not exist."""
    return next((code for code, name in enumerate(PROVISIONERS, _FIRST_SHARED) if name == provisioner), CONFLICT)


def card_mode(given: ContainerDemand | ContainerAllocation) -> int:
    """The mode of the cards of a container that asks for this, or has it."""
    if given.exclusive:
        return EXCLUSIVE
    mode = shared_mode(given.provisioner)
    if mode == CONFLICT or not given.alike:
        return mode
    if given.alike not in _in_common:
        _in_common.append(given.alike)
    return mode + _ALIKE * _in_common.index(given.alike)


def mode_name(mode: int) -> str:
    """ "" for a free card, "exclusive", "conflict", or the provisioner that shares it, with what its slices have in
    common."""
    if mode in _MODE_NAMES:
        return _MODE_NAMES[mode]
    common, technology = divmod(mode, _ALIKE)
    name = list(PROVISIONERS)[technology - _FIRST_SHARED]
    return f"{name} ({_in_common[common]} only)" if common else name


class CardKey(NamedTuple):
    """A card of a node."""

    node: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What one holder takes of one card. `mode` as in the ledger's arrays."""

    core: int
    memory_mib: int
    mode: int
    instances: tuple[InstancePlace, ...] = ()
    """Which of a card in MIG mode."""


@lru_cache(maxsize=4096)
def _usage(core: int, memory_mib: int, mode: int, instances: tuple[InstancePlace, ...]) -> Usage:
    """One object for the many slices that are alike."""
    return Usage(core, memory_mib, mode, instances)


def overcommit(usages: Iterable[Usage], total_mib: int | None) -> str | None:
    """What is wrong with so much being held of one card; None where nothing is. `total_mib` None: not known."""
    held = list(usages)
    if not held:
        return None
    modes = {usage.mode for usage in held}
    if CONFLICT in modes:
        return "is held in two modes, or by a technology that does not exist"
    if len(modes) > 1:
        return "is held in several modes at once: " + ", ".join(sorted(mode_name(mode) for mode in modes))
    if modes == {EXCLUSIVE} and len(held) > 1:
        return f"is given out whole to {len(held)} holders"
    instances = [place for usage in held for place in usage.instances]
    if overlapping(instances):
        return "has instances that do not fit beside each other: " + ", ".join(sorted(map(str, instances)))
    core, memory = sum(usage.core for usage in held), sum(usage.memory_mib for usage in held)
    if core > 100:
        return f"has 100 % of compute, {core} % are given out"
    if total_mib is not None and memory > total_mib:
        return f"has {total_mib} MiB, {memory} MiB are given out"
    return None


def card_usage(allocation: PodAllocation) -> dict[CardKey, Usage]:
    """What an allocation takes of each card: per card the larger of what runs together at any time.

    Plain init containers run one after another, before the others but beside the sidecars, so on each card the pod
    takes max(apps + sidecars, each init + sidecars). Kubernetes counts a pod's effective requests the same way.
    """
    steady: dict[CardKey, Usage] = {}
    lasting: dict[CardKey, Usage] = {}
    for name, container in allocation.containers.items():
        if name not in allocation.init:
            _add(steady, container, allocation.node)
        if name in allocation.sidecars:
            _add(lasting, container, allocation.node)
    peak = dict(steady)
    # Those that own their cards first: what else runs there, at other times, is then a guest whatever its technology.
    for name in sorted(allocation.init, key=lambda name: not _owns(allocation, name)):
        if name in allocation.containers:
            alone = dict(lasting)
            _add(alone, allocation.containers[name], allocation.node)
            for key, usage in alone.items():
                peak[key] = _larger(peak[key], usage) if key in peak else usage
    return peak


def _owns(allocation: PodAllocation, name: str) -> bool:
    return name in allocation.containers and allocation.containers[name].exclusive


def _add(usages: dict[CardKey, Usage], container: ContainerAllocation, node: str) -> None:
    mode = card_mode(container)
    for share in container.counted:
        key = CardKey(container.cards_node(node), share.uuid)
        instances = () if share.instance is None else (share.instance,)
        usage = _usage(share.core, share.memory_mib, mode, instances)
        known = usages.get(key)
        if known is None:
            usages[key] = usage
        elif known.mode == usage.mode and mode != EXCLUSIVE:
            usages[key] = _sum(known, usage, mode)
        else:  # two containers at once on a card that one of them owns, or that two technologies share
            usages[key] = _sum(known, usage, CONFLICT)


def _sum(one: Usage, other: Usage, mode: int) -> Usage:
    return _usage(one.core + other.core, one.memory_mib + other.memory_mib, mode, one.instances + other.instances)


def _larger(one: Usage, other: Usage) -> Usage:
    """Of two that do not run at once. A card that is exclusive for a while is exclusive for the pod's whole life, and
    an instance is kept for it as long."""
    modes = {one.mode, other.mode}
    owned = EXCLUSIVE in modes and CONFLICT not in modes
    mode = EXCLUSIVE if owned else one.mode if len(modes) == 1 else CONFLICT
    instances = tuple(dict.fromkeys(one.instances + other.instances))
    return _usage(max(one.core, other.core), max(one.memory_mib, other.memory_mib), mode, instances)
