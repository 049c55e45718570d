"""One quota counts every vocabulary, claims through the pods that use them, and the slots of tiny slices."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from egpu.api import names
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import Refused
from support.target import Target
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

QUOTA = "cards"
ASKED = [
    {names.TENCENT_VCUDA_CORE: "30", names.TENCENT_VCUDA_MEMORY: "4"},
    {names.DOCKER_VCUDA_CORE: "30", names.DOCKER_VCUDA_MEMORY: "4"},
    {names.GPU_CORE: "30", names.GPU_MEMORY: "1024"},
    {names.QGPU_CORE: "30", names.QGPU_MEMORY: "1"},
    {names.NVIDIA_GPU: "1"},
    {names.GPU: "1"},
    {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-cores": "30", "volcano.sh/vgpu-memory": "1024"},
]


@pytest_asyncio.fixture(loop_scope="package")
async def half_a_card(target: Target) -> AsyncIterator[str]:
    """Half a card's compute and two slots in the namespace, of which 30 percent and one are taken; the path of its
    pods."""
    quotas, pods = (f"/api/v1/namespaces/{target.namespace}/{kind}" for kind in ("resourcequotas", "pods"))
    hard = {"requests.elasticgpu.io/gpu-core": "50", f"requests.{names.SLOT}": "2"}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}, "spec": {"hard": hard}}
    await target.client.raw("POST", quotas, body=body)

    async def counted() -> bool:
        found = await target.client.raw("GET", f"{quotas}/{QUOTA}")
        return bool(found.get("status", {}).get("used"))

    await until(counted)
    await target.client.raw("POST", pods, body=pod(target, "first", ASKED[0]))
    yield pods
    await target.client.delete(Pod, "first", namespace=target.namespace, grace_period_seconds=0)
    await target.client.raw("DELETE", f"{quotas}/{QUOTA}")


def pod(target: Target, name: str, limits: dict[str, str]) -> dict[str, Any]:
    container = {"name": "app", "image": target.image, "command": ["sleep", "60"], "resources": {"limits": limits}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("limits", ASKED, ids=lambda limits: next(iter(limits)))
async def test_who_asks_for_more_in_any_words_is_refused(
    target: Target, half_a_card: str, limits: dict[str, str]
) -> None:
    with pytest.raises(Refused, match=r"exceeded quota: cards, requested: requests\.elasticgpu\.io/gpu-core="):
        await target.client.raw("POST", half_a_card, body=pod(target, "second", limits))


async def test_who_stays_within_it_is_not(target: Target, half_a_card: str) -> None:
    within = {names.GPU_CORE: "20", names.GPU_MEMORY: "1024"}
    await target.client.raw("POST", half_a_card, body=pod(target, "second", within))
    await target.client.delete(Pod, "second", namespace=target.namespace, grace_period_seconds=0)


async def test_many_tiny_slices_are_refused_by_their_slots(target: Target, half_a_card: str) -> None:
    many = pod(target, "many", {names.GPU_MEMORY: "1"})
    (container,) = many["spec"]["containers"]
    many["spec"]["containers"] = [{**container, "name": f"c{number}"} for number in range(2)]
    with pytest.raises(Refused, match=r"exceeded quota: cards, requested: requests\.elasticgpu\.io/slot=2"):
        await target.client.raw("POST", half_a_card, body=many)
