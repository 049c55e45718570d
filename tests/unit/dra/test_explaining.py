"""`egpu explain pod` for pods with ResourceClaims on nodes whose cards the extender gives out."""

from typing import Any

import pytest

from egpu.api import names
from egpu.cli.explain import explain_in
from egpu.cli.snapshot import load
from egpu.core.explain import Explanation
from egpu.core.policies.registry import Policies
from support.extenders import extender
from support.fake_api import FakeAPI
from support.priced import a_claim, a_pod, allocated, cluster, put


async def explained(api: FakeAPI, pod: str) -> Explanation:
    found = explain_in(await load(api.client()), "ns", pod, policies=Policies.named())
    assert found is not None
    return found


async def test_a_claim_with_room_names_the_nodes_and_what_is_asked() -> None:
    api = cluster(nodes=2)
    put(api, a_pod("p", "a"), a_claim("a", cores=30, mib=64))
    found = await explained(api, "p")
    assert found.state == "can-be-placed"
    assert found.details == ("claim a, request gpu asks for 30 % and 64 MiB of a card",)
    assert sorted(node for node, _ in found.scores) == ["n0", "n1"]


async def test_a_claim_without_room_says_why_card_by_card() -> None:
    api = cluster()
    put(api, a_pod("first", "a"), a_claim("a", cores=80, mib=64))
    async with extender(api):
        await allocated(api, "a")
    put(api, a_pod("p", "b"), a_claim("b", cores=30, mib=64))
    found = await explained(api, "p")
    assert found.state == "waiting"
    (refusal,) = found.refusals
    assert "card 0 has 20 % of compute free, 30 % needed" in refusal.text()
    assert found.preemption == "no pod is evicted for it: no pod of lower priority has cards"
    first = await explained(api, "first")
    assert "has all its cards" in first.summary
    assert "claim a, request gpu has 80 % and 64 MiB of card 0" in first.details[0]


async def test_a_node_that_cannot_run_the_pod_is_named() -> None:
    api = cluster()
    put(api, a_pod("p", "a", cpu=100), a_claim("a", cores=30, mib=64))
    found = await explained(api, "p")
    assert found.state == "waiting"
    assert found.objections == (("n0", "Insufficient cpu"),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"selectors": [{"cel": {"expression": "[1].all(x, true)"}}]}, "the function .all() is not supported"),
        ({"adminAccess": True}, "adminAccess"),
    ],
)
async def test_a_claim_that_is_not_served_says_so(changes: dict[str, Any], words: str) -> None:
    api = cluster()
    put(api, a_pod("p", "a"), a_claim("a", cores=30, **changes))
    assert words in (await explained(api, "p")).summary


async def test_a_missing_claim_and_a_cluster_of_kube_schedulers_choice() -> None:
    api = cluster(allocator=names.DRA)
    api.put("pods", a_pod("p", "a"))
    assert (await explained(api, "p")).summary == "waits for its claims: a"
    api.put("resourceclaims", a_claim("a", cores=30))
    assert "kube-scheduler, which alone gives cards" in (await explained(api, "p")).summary
