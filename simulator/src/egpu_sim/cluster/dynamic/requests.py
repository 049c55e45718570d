"""The requests of claims, joined with their classes, and the parts of an allocation that follow from them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from egpu_base.errors import NotFound
from egpu_sim.cluster.dynamic.kinds import DeviceClass, ResourceClaim
from egpu_sim.cluster.dynamic.pools import Device
from egpu_sim.cluster.dynamic.selectors import selects
from egpu_sim.cluster.trees import Json, as_list, as_object, at, objects_at

FindClass: TypeAlias = Callable[[str], DeviceClass | None]


@dataclass(frozen=True)
class Request:
    """A request, or one of its alternatives. `count` 0 is all devices that it selects."""

    claim: str
    name: str
    """`request`, or `request/alternative`."""
    device_class: DeviceClass
    selectors: Sequence[Json]
    count: int
    asked: Json
    """Amounts by capacity."""
    tolerations: Sequence[Json]
    admin: bool

    @property
    def base(self) -> str:
        return self.name.partition("/")[0]

    def selects(self, device: Device) -> bool:
        """Return whether class and request select the device. Raises InvalidInput where an expression fails."""
        of_class, kind = objects_at(self.device_class.spec, "selectors"), f"class {self.device_class.name}"
        if not selects(of_class, device.variables, of=kind):
            return False
        return selects(self.selectors, device.variables, of=f"claim {self.claim}")

    def tolerates(self, device: Device) -> bool:
        taints = objects_at(device.body, "taints")
        return all(
            taint.get("effect") not in ("NoSchedule", "NoExecute")
            or any(tolerates(toleration, taint) for toleration in self.tolerations)
            for taint in taints
        )


def tolerates(toleration: Json, taint: Json) -> bool:
    """Return whether a toleration matches a device's taint. An empty effect matches all, as does an empty key."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def requests_of(claim: ResourceClaim, find_class: FindClass) -> list[tuple[Request, ...]]:
    """Return the alternatives of each request. Raises NotFound for a class that does not exist."""
    found: list[tuple[Request, ...]] = []
    for request in objects_at(claim.spec, "devices", "requests"):
        name = str(request.get("name"))
        if request.get("exactly") is not None:
            found.append((_request(claim, name, as_object(request["exactly"]), find_class),))
        else:
            alternatives = objects_at(request, "firstAvailable")
            found.append(tuple(_request(claim, f"{name}/{one.get('name')}", one, find_class) for one in alternatives))
    return found


def _request(claim: ResourceClaim, name: str, wanted: Json, find_class: FindClass) -> Request:
    class_name = str(wanted.get("deviceClassName"))
    device_class = find_class(class_name)
    if device_class is None:
        raise NotFound(f"request {name}: device class {class_name} does not exist")
    return Request(
        claim=claim.key,
        name=name,
        device_class=device_class,
        selectors=objects_at(wanted, "selectors"),
        count=0 if wanted.get("allocationMode") == "All" else int(wanted.get("count") or 1),
        asked=as_object(at(wanted, "capacity", "requests")),
        tolerations=objects_at(wanted, "tolerations"),
        admin=bool(wanted.get("adminAccess")),
    )


def configuration(claim: ResourceClaim, chosen: Sequence[Request]) -> list[Json]:
    """Return the configuration of an allocation: that of each class, then the claim's own."""
    by_class: dict[str, list[Request]] = {}
    for request in chosen:
        by_class.setdefault(request.device_class.name, []).append(request)
    found: list[Json] = [
        {"source": "FromClass", "requests": [one.name for one in members], **config}
        for members in by_class.values()
        for config in objects_at(members[0].device_class.spec, "config")
    ]
    names = {name for request in chosen for name in (request.name, request.base)}
    for config in objects_at(claim.spec, "devices", "config"):
        wanted = as_list(config.get("requests"))
        if not wanted or names & set(map(str, wanted)):
            found.append({"source": "FromClaim", **config})
    return found


def node_selector(devices: Sequence[Device], node: str) -> Json | None:
    """Return the nodes that can use all devices; None for all nodes."""
    if any(device.node for device in devices):
        one: Json = {"key": "metadata.name", "operator": "In", "values": [node]}
        return {"nodeSelectorTerms": [{"matchFields": [one]}]}
    joined: dict[str, list[Any]] = {}
    for device in devices:
        for term in objects_at(device.selector or {}, "nodeSelectorTerms"):
            for key in ("matchExpressions", "matchFields"):
                known = joined.setdefault(key, [])
                known += [one for one in as_list(term.get(key)) if one not in known]
    term = {key: expressions for key, expressions in joined.items() if expressions}
    return {"nodeSelectorTerms": [term]} if term else None
