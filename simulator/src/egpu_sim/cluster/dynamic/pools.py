"""The devices that a node can use: slices, joined to pools, in the order in which kube-scheduler tries them. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from egpu_base.api.kubernetes import Node
from egpu_sim.cluster.dynamic.kinds import ResourceSlice
from egpu_sim.cluster.dynamic.selectors import variables
from egpu_sim.cluster.scheduler.filters import node_selector_predicate
from egpu_sim.cluster.trees import Json, as_object, objects_at


@dataclass(frozen=True, order=True)
class DeviceId:
    driver: str
    pool: str
    name: str

    @classmethod
    def of(cls, result: Json) -> "DeviceId":
        """Return the device of an allocation's result."""
        return cls(*(str(result.get(key)) for key in ("driver", "pool", "device")))


@dataclass(frozen=True)
class Device:
    """A device, and the nodes that can use it: `node` names one, `selector` selects some; without both it is all."""

    id: DeviceId
    body: Json
    node: str = ""
    selector: Json | None = None

    @property
    def shared(self) -> bool:
        return bool(self.body.get("allowMultipleAllocations"))

    @cached_property
    def variables(self) -> dict[str, Any]:
        return variables(self.body, self.id.driver)

    def usable_on(self, node: Node) -> bool:
        if self.node:
            return self.node == node.name
        return self.selector is None or node_selector_predicate(self.selector)(node)


@dataclass(frozen=True)
class Pool:
    """A pool as one node sees it. `devices` is empty while it is incomplete or invalid. `counters`: amounts by counter
    set and counter. `everywhere`: its devices on all nodes, for counters."""

    driver: str
    name: str
    devices: tuple[Device, ...] = ()
    everywhere: tuple[Device, ...] = ()
    counters: Json | None = None
    problem: str = ""


def pools_of(node: Node, slices: Iterable[ResourceSlice]) -> list[Pool]:
    """Return the pools with any device for the node, sorted by driver and name."""
    grouped: defaultdict[tuple[str, str], list[ResourceSlice]] = defaultdict(list)
    for one in slices:
        grouped[one.driver, one.pool].append(one)
    found: list[Pool] = []
    for (driver, name), members in sorted(grouped.items()):
        newest = max(one.generation for one in members)
        current = sorted((one for one in members if one.generation == newest), key=lambda one: one.name)
        pool = _pool(driver, name, current, lambda device: device.usable_on(node))
        if pool.devices or pool.problem:
            found.append(pool)
    return found


def _pool(driver: str, name: str, slices: Sequence[ResourceSlice], usable: Callable[[Device], bool]) -> Pool:
    devices = [device for one in slices for device in _devices(one)]
    mine = tuple(device for device in devices if usable(device))
    expected = int(as_object(slices[0].spec.get("pool")).get("resourceSliceCount") or 0)
    if len(slices) != expected:
        return Pool(driver, name, problem="currently being updated" if mine else "")
    if len({device.id for device in devices}) != len(devices):
        return Pool(driver, name, problem="currently invalid" if mine else "")
    counter_sets = [one for each in slices for one in objects_at(each.spec, "sharedCounters")]
    counters = {str(one.get("name")): as_object(one.get("counters")) for one in counter_sets}
    return Pool(driver, name, mine, tuple(devices), counters)


def _devices(one: ResourceSlice) -> list[Device]:
    found: list[Device] = []
    for body in objects_at(one.spec, "devices"):
        place = body if one.spec.get("perDeviceNodeSelection") else one.spec
        selector = place.get("nodeSelector")
        found.append(
            Device(
                DeviceId(one.driver, one.pool, str(body.get("name"))),
                body,
                str(place.get("nodeName") or ""),
                None if selector is None else as_object(selector),
            )
        )
    return found
