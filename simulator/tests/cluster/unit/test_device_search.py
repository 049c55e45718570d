"""Allocation of devices to claims, as kube-scheduler does it: which devices, how much of them, and when none."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from egpu_base.api.kubernetes import Node
from egpu_base.cel import grammar as cel
from egpu_base.cel import types as cel_types
from egpu_base.errors import InvalidInput, NotFound, Unavailable
from egpu_sim.cluster.dynamic import capacities, search
from egpu_sim.cluster.dynamic.kinds import DeviceClass, ResourceClaim, ResourceSlice
from egpu_sim.cluster.dynamic.pools import pools_of
from egpu_sim.cluster.dynamic.requests import requests_of
from egpu_sim.cluster.dynamic.search import Search, Taken

DRIVER = "gpu.example.com"
NODE = msgspec.convert({"metadata": {"name": "n1", "labels": {"zone": "a"}}}, Node)
CARD: dict[str, Any] = {
    "allowMultipleAllocations": True,
    "capacity": {
        "cores": {"value": "100", "requestPolicy": {"default": "100", "validRange": {"min": "1", "step": "1"}}},
        "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}},
    },
}


def card(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **CARD, **more}


def plain(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def published(*devices: dict[str, Any], name: str = "s", slices: int = 1, **more: Any) -> ResourceSlice:
    pool = {"name": "n1", "generation": more.pop("generation", 1), "resourceSliceCount": slices}
    spec = {"driver": DRIVER, "pool": pool, "nodeName": "n1", "devices": list(devices), **more}
    return ResourceSlice(metadata=msgspec.convert({"name": name}, type(NODE.metadata)), spec=spec)


def claim(*requests: dict[str, Any], **devices: Any) -> ResourceClaim:
    meta = msgspec.convert({"name": "c", "namespace": "ns", "uid": "u"}, type(NODE.metadata))
    return ResourceClaim(metadata=meta, spec={"devices": {"requests": list(requests), **devices}})


def wants(name: str = "r", *, cel: str = "", **exactly: Any) -> dict[str, Any]:
    selectors = [{"cel": {"expression": cel}}] if cel else []
    return {"name": name, "exactly": {"deviceClassName": "gpu", "selectors": selectors, **exactly}}


def part(cores: str, memory: str) -> dict[str, Any]:
    return {"capacity": {"requests": {"cores": cores, "memory": memory}}}


def classes(name: str) -> DeviceClass | None:
    spec = {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": {"from": "class"}}}],
    }
    meta = msgspec.convert({"name": name}, type(NODE.metadata))
    return DeviceClass(metadata=meta, spec=spec) if name == "gpu" else None


def allocated(asking: ResourceClaim, *slices: ResourceSlice, taken: Taken | None = None) -> dict[str, Any] | None:
    """Return the claim's allocation on the node."""
    found = Search([(asking, requests_of(asking, classes))], pools_of(NODE, slices), taken or Taken()).run("n1")
    return None if found is None else found[0]


def devices(allocation: dict[str, Any] | None) -> list[str]:
    return [] if allocation is None else [one["device"] for one in allocation["devices"]["results"]]


def test_a_shared_device_gives_parts_until_it_is_full() -> None:
    slices, given = published(card("a"), card("b")), list[dict[str, Any]]()
    for _ in range(4):
        found = allocated(claim(wants(**part("30", "4Gi"))), slices, taken=Taken.by(given))
        assert found is not None
        given.append(found)
    assert [devices(one) for one in given] == [["a"], ["a"], ["a"], ["b"]]
    (result,) = given[0]["devices"]["results"]
    assert result["consumedCapacity"] == {"cores": "30", "memory": "4Gi"}
    assert len({one["devices"]["results"][0]["shareID"] for one in given}) == 4
    terms = given[0]["nodeSelector"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    assert given[0]["devices"]["config"][0]["source"] == "FromClass"
    whole = allocated(claim(wants()), slices, taken=Taken.by(given))
    assert whole is None, "a request without amounts takes the default, which is a whole card"


def test_two_requests_of_a_claim_may_share_a_device_but_one_request_gets_two() -> None:
    slices = published(card("a"), card("b"))
    assert devices(allocated(claim(wants("x", **part("50", "1Gi")), wants("y", **part("50", "1Gi"))), slices)) == [
        "a",
        "a",
    ]
    assert devices(allocated(claim(wants(count=2, **part("50", "1Gi"))), slices)) == ["a", "b"]
    assert allocated(claim(wants(count=3, **part("1", "1Gi"))), slices) is None


@pytest.mark.parametrize(
    ("policy", "asked", "taken"),
    [
        ({"default": "10", "validRange": {"min": "10", "step": "5"}}, "11", 15),
        ({"default": "10", "validRange": {"min": "10", "step": "5"}}, "3", 10),
        ({"default": "10", "validRange": {"min": "10", "max": "20"}}, "21", None),
        ({"default": "10", "validValues": ["10", "20"]}, "11", 20),
        ({"default": "10", "validValues": ["10", "20"]}, "21", None),
        ({"default": "10", "validValues": ["10", "20"]}, None, 10),
        (None, "7", 7),
        (None, None, 100),
    ],
)
def test_amounts_are_rounded_up_to_valid_ones(
    policy: dict[str, Any] | None, asked: str | None, taken: int | None
) -> None:
    capacity = {"value": "100", **({"requestPolicy": policy} if policy else {})}
    found = capacities.consumed({"capacity": {"x": capacity}}, {"x": asked} if asked else {})
    assert found == (None if taken is None else {"x": Fraction(taken)})
    assert capacities.consumed({"capacity": {"x": capacity}}, {"y": "1"}) is None


def test_selectors_taints_and_alternatives() -> None:
    a100 = plain(
        "a100", attributes={"model": {"string": "A100"}, "v": {"version": "8.0.0"}, "vnd.com/numa": {"int": 1}}
    )
    h100 = plain(
        "h100", attributes={"model": {"string": "H100"}, "v": {"version": "9.0.0"}, "vnd.com/numa": {"int": 0}}
    )
    sick = plain("sick", attributes=h100["attributes"], taints=[{"key": "sick", "value": "x", "effect": "NoExecute"}])
    slices = published(sick, a100, h100)
    newer = f'device.attributes["{DRIVER}"].v.isGreaterThan(semver("8.1.0"))'
    assert devices(allocated(claim(wants(cel=newer)), slices)) == ["h100"]
    assert devices(allocated(claim(wants(cel='device.attributes["vnd.com"].numa >= 1')), slices)) == ["a100"]
    tolerant: dict[str, Any] = {"tolerations": [{"key": "sick", "operator": "Exists"}]}
    assert devices(allocated(claim(wants(cel=newer, **tolerant)), slices)) == ["sick"]
    with pytest.raises(InvalidInput, match="no such key: absent"):
        allocated(claim(wants(cel=f'device.attributes["{DRIVER}"].absent == 1')), slices)
    either = {"name": "r", "firstAvailable": [
        {"name": "no", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": "false"}}], "count": 1},
        {"name": "yes", "deviceClassName": "gpu", "count": 1},
    ]}  # fmt: skip
    found = allocated(claim(either), slices)
    assert found is not None
    assert [(one["request"], one["device"]) for one in found["devices"]["results"]] == [("r/yes", "a100")]
    with pytest.raises(NotFound, match="device class other does not exist"):
        requests_of(claim({"name": "r", "exactly": {"deviceClassName": "other"}}), classes)


def test_all_devices_or_none() -> None:
    slices = published(plain("a"), plain("b"))
    everything = claim(wants(allocationMode="All"))
    assert devices(allocated(everything, slices)) == ["a", "b"]
    first = allocated(claim(wants()), slices)
    assert first is not None
    assert allocated(everything, slices, taken=Taken.by([first])) is None
    with pytest.raises(InvalidInput, match="currently being updated"):
        allocated(everything, published(plain("a"), slices=2))


def test_constraints_lead_to_another_choice() -> None:
    """The first device of each request would not match: the choice is taken back."""
    root = f"{DRIVER}/root"
    slices = published(
        plain("a", attributes={"root": {"string": "1"}}), plain("b", attributes={"root": {"string": "2"}}),
        plain("c", attributes={"root": {"string": "2"}}),
    )  # fmt: skip
    assert devices(allocated(claim(wants(count=2), constraints=[{"matchAttribute": root}]), slices)) == ["b", "c"]
    assert devices(allocated(claim(wants(count=2), constraints=[{"distinctAttribute": root}]), slices)) == ["a", "b"]
    assert allocated(claim(wants(count=3), constraints=[{"matchAttribute": root}]), slices) is None


def test_counters_limit_the_parts_of_a_card() -> None:
    counters = published(
        name="counters", slices=2, sharedCounters=[{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]
    )

    def consumes(name: str, amount: str) -> dict[str, Any]:
        counted = [{"counterSet": "card", "counters": {"memory": {"value": amount}}}]
        return plain(name, consumesCounters=counted)

    parts = published(consumes("half-1", "20Gi"), consumes("half-2", "20Gi"), consumes("whole", "40Gi"), slices=2)
    assert devices(allocated(claim(wants(count=2)), counters, parts)) == ["half-1", "half-2"]
    assert allocated(claim(wants(count=3)), counters, parts) is None
    half = allocated(claim(wants()), counters, parts)
    assert half is not None
    assert devices(allocated(claim(wants()), counters, parts, taken=Taken.by([half]))) == ["half-2"]
    assert allocated(claim(wants(count=2)), counters, parts, taken=Taken.by([half])) is None


def test_only_the_newest_complete_slices_of_this_node_count() -> None:
    old, new = published(plain("old")), published(plain("new"), name="t", generation=2)
    assert devices(allocated(claim(wants()), old, new)) == ["new"]
    assert allocated(claim(wants()), published(plain("a"), slices=2)) is None
    assert allocated(claim(wants()), published(plain("a"), nodeName="n2")) is None
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    found = allocated(claim(wants()), published(plain("a"), nodeName=None, nodeSelector=zone))
    assert found is not None
    assert found["nodeSelector"] == zone
    everywhere = allocated(claim(wants()), published(plain("a"), nodeName=None, allNodes=True))
    assert everywhere is not None
    assert "nodeSelector" not in everywhere


def test_a_search_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "STEPS_LIMIT", 10)
    with pytest.raises(Unavailable, match="within 10 steps"):
        allocated(claim(wants(count=21)), published(*(plain(f"d{n}") for n in range(20))))


def test_configuration_of_a_claim_follows_that_of_its_class() -> None:
    own = {"requests": ["r"], "opaque": {"driver": DRIVER, "parameters": {"from": "claim"}}}
    found = allocated(claim(wants(), config=[own]), published(plain("a")))
    assert found is not None
    sources = [(one["source"], one["opaque"]["parameters"]["from"]) for one in found["devices"]["config"]]
    assert sources == [("FromClass", "class"), ("FromClaim", "claim")]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('quantity("1Gi").compareTo(quantity("1024Mi")) == 0', True),
        ('quantity("1k").isLessThan(quantity("1Ki"))', True),
        ('semver("1.10.0").isGreaterThan(semver("1.9.0"))', True),
        ('semver("1.0.0-rc.1").isLessThan(semver("1.0.0"))', True),
        ('semver("2.3.4").major() == 2 && "A100" < "H100" && 1.5 >= 1', True),
        ('cel.bind(m, device.model, m.lowerAscii() == "a100")', True),
        ('has(device.model) && !has(device.deep["x"].y)', True),
        ('"node-1".substring(4) == "-1" && "node-1".substring(6) == ""', True),
        ('"node-1".matches("e-[0-9]+$") && !"node-1".matches("^-")', True),
        ('"node-1".substring(7)', None),
        ('"node-1".substring("1")', None),
        ("1 < true", None),
        ('quantity("x") == quantity("y")', None),
    ],
)
def test_expressions_know_quantities_and_versions(expression: str, value: bool | None) -> None:
    scope = {"device": {"model": "A100", "deep": {"x": {}}}}
    if value is None:
        with pytest.raises(cel.EvaluationError):
            cel.compiled(expression, cel.DEVICE_VARIABLES)(scope)
    else:
        assert cel.compiled(expression, cel.DEVICE_VARIABLES)(scope) is value
    assert cel_types.semver("1.0.0+a").numbers == (1, 0, 0)
