"""What a ResourceClaim asks for, as the extender's demands.

The extender serves only claims whose classes are those that the controller made. Their selectors become a selection of
cards, as `cardSelector` is one.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from egpu.api import names
from egpu.api.allocation import CardRequirement, ContainerDemand
from egpu.api.objects import ElasticGPUClass
from egpu.core.attributes import EXPRESSION
from egpu.core.demand import limits
from egpu.core.dra.classes import device_class
from egpu.core.dra.configuration import FROM_CLASS, SliceConfig, configuration
from egpu.core.dra.devices import CORES, MEMORY, PRICED
from egpu.core.dra.kept import MOST_BYTES, TOO_LARGE
from egpu.core.selectors import MAX_CHARACTERS, check
from egpu_base.api.devices import AllocationConfiguration, DeviceClass, ExactDeviceRequest, ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import MIB_BYTES, Quantity, parse_quantity
from egpu_base.errors import InvalidDemand, InvalidInput, NotSupported, UnknownProvisioner

WHOLE: Final = 100
"""Percent of a card's compute, and of its memory."""
MAX_DEVICES: Final = 32
"""Of one claim: the API server writes no larger allocation."""
_EXACT: Final = ("", "ExactCount")
_KNOWN: Final = 1024
"""Different specs of claims that are known, the oldest is forgotten first."""
_MOST_KNOWN_BYTES: Final = 4096
"""The size of a known one, packed: a usual one has 200 bytes."""

Classes = Mapping[str, ElasticGPUClass]
DeviceClasses = Callable[[str], DeviceClass | None]
"""Find a DeviceClass by name."""


@dataclass(frozen=True)
class Asked:
    """A claim without an allocation: its demands by request, and the configuration that its allocation will carry."""

    claim: ResourceClaim
    demands: Mapping[str, ContainerDemand]
    config: Sequence[AllocationConfiguration]


def check_size(pod: Pod, claims: Iterable[ResourceClaim], classes: Classes) -> None:
    """Check the number of requests for our classes in a pod's claims, before each costs time on every node. Raises
    NotSupported."""
    count = _requests(claims, classes)
    if count > names.MAX_GPU_CONTAINERS:
        raise NotSupported(
            f"pod {pod.key}: its claims have {count} requests; the most is {names.MAX_GPU_CONTAINERS}: use more pods"
        )


def check_gang_size(gang: str, members: Iterable[Iterable[ResourceClaim]], classes: Classes) -> None:
    """Check the number of requests in the claims of all members likewise. Raises NotSupported."""
    count, most = 0, names.MAX_GANG_REQUESTS
    for claims in members:  # counted no further than needed
        if (count := count + _requests(claims, classes)) > most:
            raise NotSupported(f"gang {gang}: its claims have over {most} requests; use smaller gangs")


def _requests(claims: Iterable[ResourceClaim], classes: Classes) -> int:
    requests = (one.exactly for claim in claims for one in claim.spec.devices.requests or ())
    return sum(one is not None and one.device_class_name in classes for one in requests)


def asked(claim: ResourceClaim, classes: Classes, device_classes: DeviceClasses) -> Asked | None:
    """Return what a claim asks for; None if it asks for none of our classes.

    Raises NotSupported and InvalidInput: the extender cannot serve it, now or ever.
    """
    devices = claim.spec.devices
    found: dict[str, tuple[ExactDeviceRequest, DeviceClass]] = {}
    others: list[str] = []
    for request in devices.requests or ():
        exactly = request.exactly
        kind = None if exactly is None else _our_class(exactly.device_class_name, classes, device_classes)
        if exactly is None or kind is None:
            others.append(request.name)
        else:
            found[request.name] = exactly, kind
    if not found:
        return None
    where = f"claim {claim.key}"
    if TOO_LARGE in claim.annotations:
        reason = f"its finalizers, requests or configuration have more than {MOST_BYTES // 1024} KiB; shorten them"
        raise NotSupported(f"{where}: {reason}")
    if others:
        raise NotSupported(f"{where}: request {others[0]} is for other devices; ask for these in a claim of their own")
    if devices.constraints:
        raise NotSupported(f"{where}: the extender cannot follow its constraints; remove them")
    config = _configuration(claim, found)
    demands = {
        name: _demand(exactly, configuration(config, name), f"{where}, request {name}")
        for name, (exactly, _) in found.items()
    }
    if (cards := sum(demand.cards for demand in demands.values())) > MAX_DEVICES:
        raise NotSupported(f"{where}: it asks for {cards} cards; the most is {MAX_DEVICES}: use more claims")
    return Asked(claim, demands, config)


class KnownAsks:
    """What claims ask for, found out once for equal ones: a job's claims are all alike. `forget` after a change of the
    classes."""

    def __init__(self, classes: Classes, device_classes: DeviceClasses) -> None:
        self._classes = classes
        self._device_classes = device_classes
        self._known: OrderedDict[bytes, Asked | None] = OrderedDict()

    def of(self, claim: ResourceClaim) -> Asked | None:
        """Return `asked` for the claim, with its errors."""
        spec = msgspec.msgpack.encode(claim.spec.devices)
        if len(spec) > _MOST_KNOWN_BYTES or TOO_LARGE in claim.annotations:
            return asked(claim, self._classes, self._device_classes)
        if spec in self._known:
            found = self._known[spec]
        else:
            found = self._known[spec] = asked(claim, self._classes, self._device_classes)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return None if found is None else replace(found, claim=claim)

    def forget(self) -> None:
        self._known.clear()


def _our_class(name: str, classes: Classes, device_classes: DeviceClasses) -> DeviceClass | None:
    """Return the DeviceClass that the controller made of the ElasticGPUClass of this name. Another one, or one that
    selects other cards, is left to kube-scheduler."""
    klass, found = classes.get(name), device_classes(name)
    if klass is None or found is None:
        return None
    if not any(owner.uid == klass.uid for owner in found.metadata.owner_references or ()):
        return None
    try:
        made = device_class(klass)
    except (InvalidDemand, NotSupported, UnknownProvisioner):
        return None
    return found if found.spec.selectors == made.spec.selectors else None


def _configuration(
    claim: ResourceClaim, found: Mapping[str, tuple[ExactDeviceRequest, DeviceClass]]
) -> list[AllocationConfiguration]:
    """Return the configuration as kube-scheduler writes it: of each class with its requests, then the claim's own."""
    of_class: dict[str, list[str]] = {}
    kinds = {kind.name: kind for _, kind in found.values()}
    for name, (_, kind) in found.items():
        of_class.setdefault(kind.name, []).append(name)
    first = [
        AllocationConfiguration(source=FROM_CLASS, requests=requests, opaque=one.opaque)
        for kind, requests in of_class.items()
        for one in kinds[kind].spec.config or ()
    ]
    own = claim.spec.devices.config or ()
    return [*first, *(AllocationConfiguration(requests=one.requests, opaque=one.opaque) for one in own)]


def _demand(request: ExactDeviceRequest, config: SliceConfig, where: str) -> ContainerDemand:
    select = _selection(request, where)
    if request.allocation_mode not in _EXACT:
        raise NotSupported(f"{where}: allocationMode is {request.allocation_mode}; use ExactCount")
    if request.admin_access:
        raise NotSupported(f"{where}: adminAccess gives a card to two users at once; remove it")
    if any(one.tolerates(PRICED) for one in request.tolerations or ()):
        raise NotSupported(f"{where}: it tolerates the taint {names.PRICED_TAINT}; remove this toleration")
    amounts = (request.capacity.requests if request.capacity is not None else None) or {}
    wanted = {name.removeprefix(f"{names.DRIVER}/"): amount for name, amount in amounts.items()}
    if unknown := sorted(wanted.keys() - {CORES, MEMORY}):
        raise InvalidInput(where, f"cards have no capacity {unknown[0]}; use {CORES} or {MEMORY}")
    cards = request.count or 1
    if config.technology == names.PHYSICAL:
        if wanted:
            raise InvalidInput(where, f"{names.PHYSICAL} gives whole cards only; remove capacity.requests")
        return ContainerDemand(
            provisioner=config.technology,
            cards=cards,
            exclusive=True,
            class_name=request.device_class_name,
            select=select,
        )
    core = _whole(wanted.get(CORES), 1, where) or WHOLE
    memory_mib = _whole(wanted.get(MEMORY), MIB_BYTES, where)
    if memory_mib > names.MAX_MEMORY_MIB:
        most = names.MAX_MEMORY_MIB // 1024**2
        raise InvalidInput(where, f"{wanted[MEMORY]} of {MEMORY} is too much: no card has more than {most} TiB")
    if core > WHOLE:
        raise InvalidInput(
            where, f"{wanted[CORES]} {CORES} were asked for, and a card has {WHOLE}; ask for several with count"
        )
    return ContainerDemand(
        provisioner=config.technology,
        cards=cards,
        core=core,
        core_limit=limits.of_mode(config.compute_mode),
        memory_mib=memory_mib,
        memory_percent=0 if memory_mib else WHOLE,
        class_name=request.device_class_name,
        select=select,
    )


def _selection(request: ExactDeviceRequest, where: str) -> tuple[CardRequirement, ...]:
    """Return what each card must be by the request's selectors."""
    texts = tuple(one.cel.expression for one in request.selectors or () if one.cel is not None)
    if not texts:
        return ()
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise NotSupported(
            f"{where}: its selectors have more than {MAX_CHARACTERS} characters; shorten them, "
            f"or use a node with {names.ALLOCATOR}={names.DRA}"
        )
    for text in texts:
        try:
            check(text)
        except NotSupported as error:
            raise NotSupported(f"{where}: {error}") from error
    return (CardRequirement(key=EXPRESSION, operator="In", values=texts),)


def _whole(amount: Quantity | None, unit: int, where: str) -> int:
    """Return an amount in units, rounded up as kube-scheduler does; 0 without an amount."""
    return 0 if amount is None else max(1, math.ceil(parse_quantity(amount, field=where) / unit))
