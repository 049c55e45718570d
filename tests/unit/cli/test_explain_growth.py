"""`egpu explain pod` says which new nodes help a waiting pod, as text and as JSON."""

import msgspec

from egpu.api import names
from egpu.cli.explain import explain_with_growth
from egpu.cli.snapshot import Snapshot, snapshot_of
from egpu.core.placement.cache import rebuild
from egpu_base.api.kubernetes import Node, NodeStatus, Pod
from egpu_base.api.objects import Condition, ObjectMeta
from egpu_base.api.quantities import Quantity
from support.objects import BINPACK, card, container, placed, pod

HALF_FREE: dict[str, Quantity] = {names.GPU_CORE: 200, "pods": 10, "cpu": "4", "memory": "8Gi"}
NODE = Node(
    metadata=ObjectMeta(name="n0"),
    status=NodeStatus(allocatable=HALF_FREE, conditions=[Condition(type="Ready", status="True")]),
)


def asking(name: str, core: int) -> Pod:
    return pod(name, container("app", {names.GPU_CORE: core}))


def scattered(waiting: Pod) -> Snapshot:
    """Two cards, of which each has 60 % in use."""
    cards = [card("n0", index) for index in range(2)]
    cache, pods = rebuild(cards, [], [], nodes=[NODE]), list[Pod]()
    for name in ("a", "b"):
        one = asking(name, 60)
        pods.append(placed(one, cache.ranking.choose(cache.request(one), "n0", BINPACK)))
        cache.pod_changed(pods[-1])
    return snapshot_of([NODE], cards, [], [], [*pods, waiting])


def test_a_waiting_pod_shows_the_nodes_that_help_and_what_autoscalers_do() -> None:
    found = explain_with_growth(scattered(asking("p", 70)), "default", "p", policies=BINPACK)
    assert found is not None
    assert [line.strip() for line in found.lines()[2:5]][-2:] == [
        "would help: 1 more node like n0 (2 × T4 with 16 GiB)",
        "autoscalers add no node for it: by the sums of their pods, node n0 has room",
    ]
    assert msgspec.json.decode(msgspec.json.encode(found))["growth"] == {
        "helps": [{"like": "n0", "count": 1, "cards": [["T4", 16384], ["T4", 16384]]}],
        "room_by_sums": ["n0"],
    }


def test_a_pod_that_has_room_needs_no_node() -> None:
    found = explain_with_growth(scattered(asking("p", 30)), "default", "p", policies=BINPACK)
    assert found is not None
    assert (found.state, found.growth) == ("can-be-placed", None)
