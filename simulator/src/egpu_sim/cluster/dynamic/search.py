"""The first devices that satisfy all claims of a pod on one node. Pure.

Devices are tried in the order of their pools and slices, and a choice that leads nowhere is taken back, as
kube-scheduler's allocator does.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from egpu_base.api.quantities import parse_quantity
from egpu_base.errors import InvalidInput, Unavailable
from egpu_sim.cluster.dynamic import capacities, constraints
from egpu_sim.cluster.dynamic.capacities import Amounts
from egpu_sim.cluster.dynamic.kinds import ResourceClaim
from egpu_sim.cluster.dynamic.pools import Device, DeviceId, Pool
from egpu_sim.cluster.dynamic.requests import Request, configuration, node_selector
from egpu_sim.cluster.trees import Json, as_object, objects_at

STEPS_LIMIT: Final = 100_000
"""Devices that one search tries. kube-scheduler stops after ten seconds."""
DEVICES_LIMIT: Final = 32
"""The most devices of one claim."""
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@dataclass
class Taken:
    """The devices that allocations have: whole ones, and amounts of shared ones."""

    whole: set[DeviceId] = field(default_factory=set[DeviceId])
    shares: dict[DeviceId, list[Amounts]] = field(default_factory=dict[DeviceId, list[Amounts]])

    @classmethod
    def by(cls, allocations: Iterable[Json]) -> "Taken":
        """Return what allocations take. Access for administrators takes nothing."""
        taken = cls()
        for result in (one for each in allocations for one in objects_at(each, "devices", "results")):
            if result.get("adminAccess"):
                continue
            if result.get("shareID"):
                taken.shares.setdefault(DeviceId.of(result), []).append(capacities.read(result.get("consumedCapacity")))
            else:
                taken.whole.add(DeviceId.of(result))
        return taken

    def has(self, device: DeviceId) -> bool:
        return device in self.whole or bool(self.shares.get(device))

    def amounts(self, device: DeviceId) -> Amounts:
        return capacities.total(self.shares.get(device, ()))


@dataclass(frozen=True)
class Chosen:
    """A device for a request. `amounts` are those of a shared device."""

    request: Request
    device: Device
    amounts: Amounts | None

    def result(self) -> Json:
        """Return the device as a result of an allocation."""
        device, request = self.device.id, self.request
        found: Json = {"request": request.name, "driver": device.driver, "pool": device.pool, "device": device.name}
        if request.admin:
            found["adminAccess"] = True
        if request.tolerations:
            found["tolerations"] = list(request.tolerations)
        if self.amounts is not None:
            found["shareID"] = str(uuid.uuid4())
            found["consumedCapacity"] = {name: _text(amount) for name, amount in self.amounts.items()}
        return found


def _text(amount: Fraction) -> str:
    """Return an amount as the API writes it."""
    if amount.denominator != 1:
        return f"{int(amount * 1000)}m"
    whole, power = int(amount), 0
    while whole and whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_BINARY[power]}"


class Search:
    """One search: for claims, each with its requests, in pools."""

    def __init__(
        self, claims: Sequence[tuple[ResourceClaim, list[tuple[Request, ...]]]], pools: Sequence[Pool], taken: Taken
    ) -> None:
        self._claims, self._pools, self._taken = claims, pools, taken
        self._devices = [device for pool in pools for device in pool.devices]
        self._chosen: list[list[Chosen]] = [[] for _ in claims]
        self._selected: dict[tuple[str, str, DeviceId], bool] = {}
        self._steps = 0

    def run(self, node: str) -> list[Json] | None:
        """Return an allocation for each claim, or None. Raises InvalidInput where an expression fails or a pool changes
        of which all devices are wanted, and Unavailable after STEPS_LIMIT devices."""
        if not self._rest(0, 0):
            return None
        found: list[Json] = []
        for (claim, _), chosen in zip(self._claims, self._chosen, strict=True):
            requests = list({one.request.name: one.request for one in chosen}.values())
            devices: Json = {"results": [one.result() for one in chosen]}
            if config := configuration(claim, requests):
                devices["config"] = config
            allocation: Json = {"devices": devices}
            if (selector := node_selector([one.device for one in chosen], node)) is not None:
                allocation["nodeSelector"] = selector
            found.append(allocation)
        return found

    def _rest(self, claim: int, request: int) -> bool:
        """Choose for all requests from this one on."""
        if claim == len(self._claims):
            return True
        requests = self._claims[claim][1]
        if request == len(requests):
            return self._rest(claim + 1, 0)
        return any(self._alternative(claim, request, one) for one in requests[request])

    def _alternative(self, claim: int, number: int, request: Request) -> bool:
        if request.count:
            return self._some(claim, number, request, left=request.count, start=0)
        wanted = list(self._all(request))
        return bool(wanted) and self._these(claim, number, request, wanted)

    def _all(self, request: Request) -> Iterator[Device]:
        for pool in self._pools:
            if pool.problem:
                field = f"claim {request.claim}, request {request.name}"
                text = f"asks for all devices, but resource pool {pool.driver}/{pool.name} is {pool.problem}"
                raise InvalidInput(field, text)
            yield from (device for device in pool.devices if self._selects(request, device))

    def _these(self, claim: int, number: int, request: Request, wanted: Sequence[Device]) -> bool:
        if not wanted:
            return self._rest(claim, number + 1)
        if (chosen := self._possible(claim, request, wanted[0])) is None:
            return False
        self._chosen[claim].append(chosen)
        if self._these(claim, number, request, wanted[1:]):
            return True
        self._chosen[claim].pop()
        return False

    def _some(self, claim: int, number: int, request: Request, *, left: int, start: int) -> bool:
        if not left:
            return self._rest(claim, number + 1)
        for index in range(start, len(self._devices)):
            device = self._devices[index]
            if not self._selects(request, device) or (chosen := self._possible(claim, request, device)) is None:
                continue
            self._chosen[claim].append(chosen)
            if self._some(claim, number, request, left=left - 1, start=index + 1):
                return True
            self._chosen[claim].pop()
        return False

    def _selects(self, request: Request, device: Device) -> bool:
        self._steps += 1
        if self._steps > STEPS_LIMIT:
            raise Unavailable(f"no allocation of devices was found within {STEPS_LIMIT} steps")
        key = (request.claim, request.name, device.id)
        if key not in self._selected:
            self._selected[key] = request.selects(device)
        return self._selected[key]

    def _possible(self, claim: int, request: Request, device: Device) -> Chosen | None:
        """Return the choice of a device beside all other choices, or None."""
        chosen = self._chosen[claim]
        if len(chosen) >= DEVICES_LIMIT or not request.tolerates(device) or device.body.get("bindingConditions"):
            return None
        holders = [one for each in self._chosen for one in each if one.device.id == device.id]
        if self._in_use(device, holders, request) or not self._has_counters(device):
            return None
        amounts = capacities.consumed(device.body, request.asked)
        if amounts is None:
            return None
        given = capacities.total([self._taken.amounts(device.id), *(one.amounts or {} for one in holders)])
        if not capacities.fits(device.body, given if device.shared else {}, amounts):
            return None
        wanted = objects_at(self._claims[claim][0].spec, "devices", "constraints")
        if not constraints.hold(wanted, ((one.request, one.device) for one in chosen), (request, device)):
            return None
        return Chosen(request, device, amounts if device.shared else None)

    def _in_use(self, device: Device, holders: Sequence[Chosen], request: Request) -> bool:
        if request.admin:
            return not device.shared and any(one.request.claim == request.claim for one in holders)
        holders = [one for one in holders if not one.request.admin]
        return device.id in self._taken.whole or (not device.shared and bool(holders))

    # ------------------------------------------------------------------ counters

    def _has_counters(self, device: Device) -> bool:
        """Return whether the counters that the device consumes are left in its pool. One in use consumes no more."""
        consumed = objects_at(device.body, "consumesCounters")
        ours = {one.device.id for each in self._chosen for one in each}
        if not consumed or device.id in ours or self._taken.has(device.id):
            return True
        pool = next(one for one in self._pools if (one.driver, one.name) == (device.id.driver, device.id.pool))
        used = _counters(each for each in pool.everywhere if each.id in ours or self._taken.has(each.id))
        wanted = _counters([device])
        return all(used.get(key, Fraction(0)) + amount <= _counter(pool, key) for key, amount in wanted.items())


def _counter(pool: Pool, key: tuple[str, str]) -> Fraction:
    counters = as_object((pool.counters or {}).get(key[0]))
    return parse_quantity(as_object(counters.get(key[1])).get("value", 0))


def _counters(devices: Iterable[Device]) -> dict[tuple[str, str], Fraction]:
    """Return what devices consume, by counter set and counter."""
    found: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for device in devices:
        for one in objects_at(device.body, "consumesCounters"):
            for name, counter in as_object(one.get("counters")).items():
                found[str(one.get("counterSet")), name] += parse_quantity(as_object(counter).get("value"))
    return found
