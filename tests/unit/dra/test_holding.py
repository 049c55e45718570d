"""ResourceClaims in `egpu get`."""

from __future__ import annotations

from typing import Any

import msgspec

from egpu.api import names
from egpu.apps.agent.cards.publisher import card_object
from egpu.cli import snapshot, views
from egpu.core.dra.devices import device_name
from support.fake_api import FakeAPI
from support.local_node import NODE, card

RESULT = {"request": "gpu", "driver": names.DRIVER, "pool": NODE, "device": device_name(card(0).uuid), "shareID": "s"}


def claim(name: str, **changes: Any) -> dict[str, Any]:
    result = RESULT | {"consumedCapacity": {"cores": "30", "memory": "4Gi"}} | changes
    user = {"resource": "pods", "name": f"{name}-pod", "uid": "u"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"kind": "ResourceClaim", "metadata": metadata, "status": status}


def put_cards(api: FakeAPI, *, allocator: str) -> None:
    api.put("nodes", {"kind": "Node", "metadata": {"name": NODE}})
    for number in range(2):
        made = card_object(NODE, card(number), "uid-node", allocator=allocator)
        api.put("elasticgpus", msgspec.to_builtins(made))


async def test_cards_show_the_claims_that_have_parts_of_them() -> None:
    api = FakeAPI()
    put_cards(api, allocator=names.DRA)
    for one in (claim("a"), claim("b", shareID="t"), claim("other", driver="other.example"), claim("bad", device="x")):
        api.put("resourceclaims", one)
    found = await snapshot.load(api.client())
    assert [one.name for one in found.resource_claims] == ["a", "b"]
    first, second = views.gpus(found).records
    assert (first["corePercentGiven"], first["memoryMiBGiven"]) == (60, 8192)
    assert first["heldBy"] == ["resourceclaim default/a (a-pod)", "resourceclaim default/b (b-pod)"]
    assert (first["healthy"], first["byResourceClaims"], second["heldBy"]) == (True, True, [])
    assert (first["contested"], second["contested"]) == (False, False)


async def test_without_such_nodes_no_claim_is_read() -> None:
    api = FakeAPI()
    put_cards(api, allocator="")
    api.put("resourceclaims", claim("a"))
    found = await snapshot.load(api.client())
    assert not found.resource_claims
    assert not any("resourceclaims" in path for _, path in api.log)
