"""PodGroups of Kubernetes on its own kube-scheduler, which places a whole group before it binds the first pod."""

import json
import random
from typing import Any

import pytest

from egpu.api import names
from egpu.laptop.cluster import Cluster
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from egpu_base.kubernetes import Client
from support.long import or_long
from support.lost_answers import deleted, made
from support.pod_groups import CARDS, NODES, given, gone, pods_of, run
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
PODS = "/api/v1/namespaces/default/pods"
ROUNDS = or_long(8, 1000)
ALL = NODES * CARDS


def member(group: str, number: int, core: int, **spec: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {names.GPU_CORE: str(core)}}}
    container = {"name": "app", "image": "any", "command": ["sleep", "1000"], **limits}
    body = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{group}-{number}", "labels": {"group": group}},
        "spec": body,
    }


async def make(client: Client, group: str, count: int, *, least: int, core: int) -> None:
    policy: dict[str, Any] = {"gang": {"minCount": least}} if least else {"basic": {}}
    body = {"kind": "PodGroup", "metadata": {"name": group}, "spec": {"schedulingPolicy": policy}}
    await made(client, GROUPS, {"apiVersion": "scheduling.k8s.io/v1alpha2", **body})
    for number in range(count):
        await made(client, PODS, member(group, number, core, schedulingGroup={"podGroupName": group}))


async def remove(client: Client, group: str) -> None:
    for pod in await pods_of(client, f"group={group}"):
        await client.delete(Pod, pod.name, namespace="default", grace_period_seconds=0)
    await gone(client, f"group={group}")
    await deleted(client, f"{GROUPS}/{group}")


async def test_a_gang_is_read_from_its_pod_group_and_runs_whole(client: Client):
    await make(client, "whole", ALL, least=ALL, core=100)
    pods = await run(client, "group=whole", ALL)
    assert {pod.annotations[names.GANG] for pod in pods} == {"podgroup.whole"}
    assert {pod.annotations[names.GANG_SIZE] for pod in pods} == {f"{ALL}+"}
    assert list(given(pods).values()) == [100] * ALL
    await remove(client, "whole")


async def test_a_gang_that_does_not_fit_holds_nothing(client: Client):
    await make(client, "large", ALL + 1, least=ALL + 1, core=100)

    async def told() -> bool:
        pods = await pods_of(client, "group=large")
        messages = [one.message for pod in pods for one in pod.status.conditions or () if one.type == "PodScheduled"]
        return any(f"all {ALL + 1} members exist, {ALL} fit at once" in message for message in messages)

    await until(told, seconds=120)
    assert [pod.spec.node_name for pod in await pods_of(client, "group=large")] == [""] * (ALL + 1)
    await make(client, "small", 2, least=2, core=100)
    await run(client, "group=small", 2)
    await remove(client, "large")
    await remove(client, "small")


async def test_pods_come_after_their_pod_group(client: Client):
    with pytest.raises(ElasticGPUError, match="the PodGroup absent does not exist; create it before its pods"):
        await client.raw("POST", PODS, body=member("absent", 0, 50, schedulingGroup={"podGroupName": "absent"}))


async def test_a_pod_of_a_kind_that_is_not_installed_runs_alone(client: Client):
    pod = member("lonely", 0, 50)
    pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "lonely"
    await client.raw("POST", PODS, body=pod)
    (found,) = await run(client, "group=lonely", 1)
    assert names.GANG not in found.annotations
    await client.delete(Pod, "lonely-0", namespace="default", grace_period_seconds=0)
    await gone(client, "group=lonely")


@pytest.mark.timeout(300 + 10 * ROUNDS)
async def test_groups_of_any_make_never_share_a_promised_card(running: Cluster, client: Client):
    """Random groups, some two at a time: what fits runs, no card is given out twice, and none was promised twice: then
    the extender would have refused a binding for want of room. It may refuse one because a member is missing: after
    pods were deleted by force, a slow kubelet still counts them, and rejects their successors, which are made again."""
    chance = random.Random(37)
    log = running.state_dir / "logs" / "extender.log"
    before = len(log.read_text())
    for number in range(ROUNDS):
        core = chance.choice([100, 50])
        room = ALL * (100 // core)
        count = chance.randint(2, room)
        least = chance.choice([0, count, max(1, count - 1)])
        rest = room - count
        await make(client, f"a{number}", count, least=least, core=core)
        if rest:
            await make(client, f"b{number}", rest, least=chance.choice([0, rest]), core=core)
        pods = [*await run(client, f"group=a{number}", count)]
        if rest:
            pods += await run(client, f"group=b{number}", rest)
        assert max(given(pods).values()) <= 100
        assert sum(given(pods).values()) == 100 * ALL
        await remove(client, f"a{number}")
        if rest:
            await remove(client, f"b{number}")
    lines = [json.loads(line) for line in log.read_text()[before:].splitlines() if "not bound" in line]
    assert all(one["event"] == "not bound" for one in lines), "some of the log's lines were dropped"
    refused = [one for one in lines if one["kind"] == "DoesNotFit" and "members exist" not in one["reason"]]
    assert not refused, "\n".join(map(str, refused))
