"""The kinds of dynamic resource allocation: stored, changed and refused as Kubernetes 1.36 does."""

import copy
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from egpu_base.errors import ElasticGPUError, Refused
from egpu_base.kubernetes import Client
from egpu_sim.cluster import apiserver
from egpu_sim.cluster.apiserver import Config, ServerHandle, User, serve

ROOT = "/apis/resource.k8s.io/v1"
CLAIMS = f"{ROOT}/namespaces/default/resourceclaims"
MERGE = {"content-type": "application/merge-patch+json"}
APPLY = {"content-type": "application/apply-patch+yaml"}
DRIVER = "gpu.example.com"
USERS = {
    "scheduler": User("system:kube-scheduler"),
    "driver": apiserver.service_account("system", "driver", node="node-1"),
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ServerHandle]:
    async with serve(Config(tmp_path, users=USERS)) as handle:
        yield handle


def device(name: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def shared(name: str = "gpu-0") -> dict[str, Any]:
    """A device of which claims take parts."""
    policy = {"default": "100", "validRange": {"min": "1", "step": "1"}}
    return device(name, allowMultipleAllocations=True, capacity={"cores": {"value": "100", "requestPolicy": policy}})


def published(*devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "nodeName": "node-1", "devices": list(devices), **more}
    return {"metadata": {"name": "slice"}, "spec": spec}


def claim(name: str = "c", **exactly: Any) -> dict[str, Any]:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **exactly}}]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}


ALLOCATION: dict[str, Any] = {
    "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"}]},
    "nodeSelector": {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
        ]
    },
}
POD = {"resource": "pods", "name": "p", "uid": "1"}


async def created(api: httpx2.AsyncClient, path: str, obj: dict[str, Any]) -> dict[str, Any]:
    answer = await api.post(path, json=obj)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def patched(api: httpx2.AsyncClient, path: str, patch: dict[str, Any], code: int = 200) -> dict[str, Any]:
    answer = await api.patch(path, content=json.dumps(patch), headers=MERGE)
    assert answer.status_code == code, answer.text
    return answer.json()


async def test_claims_get_defaults_and_never_change(api: httpx2.AsyncClient) -> None:
    made = await created(api, CLAIMS, {**claim(capacity={"requests": {"memory": "4096Mi"}}), "status": {"devices": []}})
    wanted = made["spec"]["devices"]["requests"][0]["exactly"]
    assert wanted["allocationMode"] == "ExactCount"
    assert wanted["count"] == 1
    assert wanted["capacity"]["requests"] == {"memory": "4Gi"}
    assert made["status"] == {}
    refused = await patched(api, f"{CLAIMS}/c", {"spec": {"devices": None}}, 422)
    assert "field is immutable" in refused["message"]
    row = (await api.get(CLAIMS, headers={"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"})).json()["rows"][0]
    assert row["cells"][:2] == ["c", "pending"]


async def test_an_allocation_is_removed_but_never_changed(api: httpx2.AsyncClient) -> None:
    await created(api, CLAIMS, claim())
    status = f"{CLAIMS}/c/status"
    early = await patched(api, status, {"status": {"reservedFor": [POD]}}, 422)
    assert "may not be specified when `allocated` is not set" in early["message"]
    found = await patched(api, status, {"status": {"allocation": ALLOCATION, "reservedFor": [POD]}})
    assert found["status"]["allocation"] == ALLOCATION
    other: dict[str, Any] = copy.deepcopy(ALLOCATION)
    other["devices"]["results"][0]["device"] = "gpu-1"
    refused = await patched(api, status, {"status": {"allocation": {"devices": other["devices"]}}}, 422)
    assert "status.allocation" in refused["message"]
    row = (await api.get(CLAIMS, headers={"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"})).json()["rows"][0]
    assert row["cells"][1] == "allocated,reserved"
    left = await patched(api, status, {"status": {"allocation": None, "reservedFor": None}})
    assert left["status"] == {}


async def test_drivers_apply_the_state_of_their_devices(api: httpx2.AsyncClient) -> None:
    await created(api, CLAIMS, claim())
    await patched(api, f"{CLAIMS}/c/status", {"status": {"allocation": ALLOCATION}})
    mine = {"driver": DRIVER, "pool": "node-1", "device": "gpu-0", "data": {"used": {"mib": 7}}}

    async def apply(device: dict[str, Any]) -> httpx2.Response:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
        content = json.dumps({**body, "status": {"devices": [device]}})
        return await api.patch(f"{CLAIMS}/c/status?fieldManager=me", content=content, headers=APPLY)

    answer = await apply(mine)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"]["devices"] == [mine]
    refused = await apply({**mine, "device": "gpu-9"})
    assert refused.status_code == 422
    assert "must be an allocated device in the claim" in refused.text
    left = await patched(api, f"{CLAIMS}/c/status", {"status": {"allocation": None}})
    assert left["status"] == {}, "the states go with the allocation"


async def test_slices_have_rules(api: httpx2.AsyncClient) -> None:
    path = f"{ROOT}/resourceslices"

    async def refusal(obj: dict[str, Any]) -> str:
        answer = await api.post(path, json=obj)
        assert answer.status_code == 422, answer.text
        return answer.json()["message"]

    assert "must have at most 128 items" in await refusal(published(*(device(f"d{n}") for n in range(129))))
    tainted = [device(f"d{n}", taints=[{"key": "sick", "effect": "NoSchedule"}]) for n in range(65)]
    assert "must have at most 64 items" in await refusal(published(*tainted))
    assert 'Duplicate value: "gpu-0"' in await refusal(published(device(), device()))
    assert "exactly one value must be specified" in await refusal(published(device(attributes={"a": {}})))
    lists = device(attributes={"a": {"strings": ["x"]}})
    assert "exactly one value must be specified" in await refusal(published(lists)), "lists are dropped in 1.36"
    policy = {**shared(), "allowMultipleAllocations": False}
    assert "allowMultipleAllocations must be true" in await refusal(published(policy))
    bad_default = shared()
    bad_default["capacity"]["cores"]["requestPolicy"]["default"] = "0"
    assert "default is less than min" in await refusal(published(bad_default))
    assert "exactly one of `nodeName`" in await refusal(published(device(), allNodes=True))
    wrong_name = published(device(attributes={"no/such/Domain": {"int": 1}}))
    assert "spec.devices[0].attributes" in await refusal(wrong_name)

    made = await created(api, path, published(shared(), device("gpu-1", attributes={"v": {"version": "1.2.3"}})))
    assert made["metadata"]["generation"] == 1
    moved = await patched(api, f"{path}/slice", {"spec": {"nodeName": "node-2"}}, 422)
    assert "spec.nodeName" in moved["message"]
    assert len((await api.get(path, params={"fieldSelector": "spec.nodeName=node-1"})).json()["items"]) == 1
    assert (await api.get(path, params={"fieldSelector": "spec.driver=other"})).json()["items"] == []


async def test_classes_and_pods_have_rules(api: httpx2.AsyncClient) -> None:
    def of_class(expression: str) -> dict[str, Any]:
        opaque = {"driver": DRIVER, "parameters": {"kind": "SliceConfig", "mode": {"any": 1}}}
        spec = {"selectors": [{"cel": {"expression": expression}}], "config": [{"opaque": opaque}]}
        return {"metadata": {"name": "gpu"}, "spec": spec}

    classes = f"{ROOT}/deviceclasses"
    wrong = await api.post(classes, json=of_class("device.driver.unheard()"))
    assert wrong.status_code == 422
    assert ".unheard() is not supported" in wrong.text
    made = await created(api, classes, of_class('device.driver == "gpu.example.com"'))
    assert made["spec"]["config"][0]["opaque"]["parameters"]["mode"] == {"any": 1}

    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "other"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu"}]}
    pod = await api.post("/api/v1/namespaces/default/pods", json={"metadata": {"name": "p"}, "spec": spec})
    assert pod.status_code == 422
    fields = {cause["field"] for cause in pod.json()["details"]["causes"]}
    assert fields == {"spec.resourceClaims[0]", "spec.containers[0].resources.claims[0]"}


async def test_rights_decide_which_parts_of_a_status_a_user_may_write(
    api: httpx2.AsyncClient, server: ServerHandle
) -> None:
    await created(api, CLAIMS, claim())
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]}
    await created(api, f"{rbac}/clusterroles", {"metadata": {"name": "driver"}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "driver"}
    subject = {"kind": "ServiceAccount", "namespace": "system", "name": "driver"}
    binding = {"metadata": {"name": "driver"}, "roleRef": reference, "subjects": [subject]}
    await created(api, f"{rbac}/clusterrolebindings", binding)
    state = {"driver": DRIVER, "pool": "node-1", "device": "gpu-0"}

    async def write(name: str, status: dict[str, Any]) -> None:
        async with Client.from_kubeconfig(server.kubeconfigs[name]) as client:
            answer = await client._exchange(
                "PATCH", f"{CLAIMS}/c/status", body={"status": status}, content_type=MERGE["content-type"]
            )
            assert answer is not None

    with pytest.raises(ElasticGPUError, match="resourceclaims/binding"):
        await write("driver", {"allocation": ALLOCATION})
    await write("scheduler", {"allocation": ALLOCATION})
    with pytest.raises(Refused, match="associated-node:patch arbitrary-node:patch"):
        await write("driver", {"devices": [state]})
    own = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"],
           "verbs": ["associated-node:patch"], "resourceNames": [DRIVER]}  # fmt: skip
    await patched(api, f"{rbac}/clusterroles/driver", {"rules": [rule, own]})
    await write("driver", {"devices": [state]})
