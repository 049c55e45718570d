"""Quotas, priority classes, scale, resize and field validation, as clients of the API see them."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from test_apiserver_http import CRDS, PODS, created, patched, pod, widget_definition

from egpu_sim.cluster.apiserver import Config, ServerHandle, serve

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ServerHandle]:
    async with serve(Config(tmp_path)) as handle:
        yield handle


def deployment(name: str = "d", **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "x:1"}]}}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template, **spec}}


def spread_without_a_skew(name: str) -> dict[str, Any]:
    template = deployment(name)["spec"]["template"]
    constraint = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    template["spec"]["topologySpreadConstraints"] = [constraint]
    return template


def asking(name: str, **limits: str) -> dict[str, Any]:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"limits": limits}
    return made


async def test_a_quota_refuses_what_exceeds_it_and_keeps_count(api: httpx2.AsyncClient) -> None:
    hard = {"pods": "2", "requests.example.org/gpu": "3", "count/configmaps": "1"}
    await created(api, QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    await created(api, PODS, asking("a", **{"example.org/gpu": "2"}))
    refused = await api.post(PODS, json=asking("b", **{"example.org/gpu": "2"}))
    assert refused.status_code == 403
    assert refused.json()["message"] == (
        'pods "b" is forbidden: exceeded quota: q, requested: requests.example.org/gpu=2, '
        "used: requests.example.org/gpu=2, limited: requests.example.org/gpu=3"
    )
    await created(api, PODS, asking("b", **{"example.org/gpu": "1"}))
    await created(api, "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "one"}})
    assert (
        await api.post("/api/v1/namespaces/default/configmaps", json={"metadata": {"name": "two"}})
    ).status_code == 403
    status = (await api.get(f"{QUOTAS}/q")).json()["status"]
    assert status == {"hard": hard, "used": {"pods": "2", "requests.example.org/gpu": "3", "count/configmaps": "1"}}
    await api.delete(f"{PODS}/a")
    assert (await api.get(f"{QUOTAS}/q")).json()["status"]["used"]["pods"] == "1"


async def test_finished_pods_and_other_namespaces_cost_nothing(api: httpx2.AsyncClient) -> None:
    await created(api, QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})
    await created(api, PODS, pod("a"))
    await created(api, PODS.replace("default", "kube-system"), pod("a"))
    await patched(api, f"{PODS}/a/status", "merge", {"status": {"phase": "Succeeded"}})
    await created(api, PODS, pod("b"))


async def test_a_quota_of_memory_asks_every_container_to_say_how_much(api: httpx2.AsyncClient) -> None:
    await created(api, QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"limits.memory": "2Gi"}}})
    refused = await api.post(PODS, json=pod("a"))
    assert "failed quota: q: must specify limits.memory for: main" in refused.json()["message"]
    await created(api, PODS, asking("a", memory="1536Mi"))
    refused = await api.post(PODS, json=asking("b", memory="1Gi"))
    assert "requested: limits.memory=1Gi, used: limits.memory=1536Mi, limited: limits.memory=2Gi" in refused.text


async def test_a_priority_class_becomes_a_number(api: httpx2.AsyncClient) -> None:
    await created(api, CLASSES, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    named = pod("a")
    named["spec"]["priorityClassName"] = "high"
    spec = (await created(api, PODS, named))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")
    system = pod("b")
    system["spec"]["priorityClassName"] = "system-node-critical"
    assert (await created(api, PODS, system))["spec"]["priority"] == 2_000_001_000
    wrong = pod("c")
    wrong["spec"] |= {"priorityClassName": "high", "priority": 5}
    assert "must not be provided in pod spec" in (await api.post(PODS, json=wrong)).json()["message"]
    await created(api, CLASSES, {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True})
    spec = (await created(api, PODS, pod("d")))["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (7, "usual")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"metadata": {"name": "system-mine"}, "value": 1}, "reserved for system use only"),
        ({"metadata": {"name": "mine"}, "value": 1_000_000_001}, "maximum allowed value of a user defined priority"),
    ],
)
async def test_priority_classes_that_are_refused(api: httpx2.AsyncClient, body: dict[str, Any], words: str) -> None:
    answer = await api.post(CLASSES, json=body)
    assert answer.status_code == 422
    assert words in answer.json()["message"]


async def test_a_deployment_is_scaled_through_its_subresource(api: httpx2.AsyncClient) -> None:
    made = await created(api, DEPLOYMENTS, deployment())
    assert made["spec"]["replicas"] == 1
    assert made["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"
    scale = (await api.get(f"{DEPLOYMENTS}/d/scale")).json()
    assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {"replicas": 1}, "app=d")
    scale["spec"]["replicas"] = 4
    assert (await api.put(f"{DEPLOYMENTS}/d/scale", json=scale)).json()["spec"] == {"replicas": 4}
    assert (await api.put(f"{DEPLOYMENTS}/d/scale", json=scale)).status_code == 409  # of an older version
    changed = (await api.get(f"{DEPLOYMENTS}/d")).json()
    assert (changed["spec"]["replicas"], changed["metadata"]["generation"]) == (4, 2)


async def test_a_custom_kind_can_be_scaled_where_its_definition_says_so(api: httpx2.AsyncClient) -> None:
    definition = widget_definition()
    for version in definition["spec"]["versions"]:
        paths = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
        version["subresources"] = {"status": {}, "scale": paths}
    await created(api, CRDS, definition)
    path = "/apis/example.org/v1/namespaces/default/widgets"
    await created(api, path, {"kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 2}})
    assert (await patched(api, f"{path}/w/scale", "merge", {"spec": {"replicas": 3}}))["spec"] == {"replicas": 3}
    assert (await api.get(f"{path}/w")).json()["spec"]["size"] == 3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"selector": {"matchLabels": {"app": "other"}}}, "spec.template.metadata.labels"),
        ({"selector": {}}, "spec.selector"),
        ({"replicas": -1}, "spec.replicas"),
        ({"strategy": {"type": "Recreate", "rollingUpdate": {}}}, "spec.strategy.rollingUpdate"),
        (
            {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
            "spec.strategy.rollingUpdate.maxUnavailable",
        ),
        (
            {"template": spread_without_a_skew("d")},
            "spec.template.spec.topologySpreadConstraints[0].maxSkew",
        ),
    ],
)
async def test_deployments_that_are_refused(api: httpx2.AsyncClient, change: dict[str, Any], field: str) -> None:
    answer = await api.post(DEPLOYMENTS, json=deployment(**change))
    assert answer.status_code == 422, answer.text
    assert [cause["field"] for cause in answer.json()["details"]["causes"]] == [field]


async def test_a_selector_and_a_jobs_template_stay_as_they_are(api: httpx2.AsyncClient) -> None:
    await created(api, DEPLOYMENTS, deployment())
    relabelled = {
        "spec": {"selector": {"matchLabels": {"app": "e"}}, "template": {"metadata": {"labels": {"app": "e"}}}}
    }
    refused = await patched(api, f"{DEPLOYMENTS}/d", "merge", relabelled, code=422)
    assert 'spec.selector: Invalid value: {"matchLabels":{"app":"e"}}: field is immutable' in refused["message"]
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x:1"}]}}
    job = await created(api, JOBS, {"metadata": {"name": "j"}, "spec": {"template": template}})
    assert job["spec"]["template"]["metadata"]["labels"]["job-name"] == "j"
    change = {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}}
    assert "spec.template" in (await patched(api, f"{JOBS}/j", "merge", change, code=422))["message"]
    always = {"metadata": {"name": "k"}, "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}}}
    answer = await api.post(JOBS, json=always)
    assert 'restartPolicy: Required value: valid values: "OnFailure", "Never"' in answer.json()["message"]


@pytest.mark.parametrize(
    "policy",
    [
        {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}},
        {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}},
        {"backoffLimitPerIndex": 1},
        {"backoffLimitPerIndex": 1, "maxFailedIndexes": 2},
    ],
    ids=" ".join,
)
async def test_policies_of_jobs_are_refused_by_name(api: httpx2.AsyncClient, policy: dict[str, Any]) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x:1"}]}}
    spec = {"template": template, "completions": 2, "completionMode": "Indexed", **policy}
    answer = await api.post(JOBS, json={"metadata": {"name": "j"}, "spec": spec})
    assert answer.status_code == 422, answer.text
    assert [cause["field"] for cause in answer.json()["details"]["causes"]] == [f"spec.{name}" for name in policy]
    assert "this server does not support it" in answer.json()["message"]


def both(**amounts: str) -> dict[str, Any]:
    return {"limits": amounts, "requests": amounts}


async def test_a_pod_is_resized_in_place_and_in_nothing_else(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, asking("a", cpu="1", memory="1Gi"))
    wider: dict[str, Any] = {"spec": {"containers": [{"name": "main", "resources": both(cpu="2")}]}}
    resized = await patched(api, f"{PODS}/a/resize", "strategic-merge", wider)
    assert resized["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}
    wider["spec"]["containers"][0]["resources"] = both(cpu="3")
    refused = await patched(api, f"{PODS}/a", "strategic-merge", wider, code=422)
    assert "pod updates may not change fields" in refused["message"]
    other = {"spec": {"nodeName": "n"}}
    assert "only cpu and memory" in (await patched(api, f"{PODS}/a/resize", "merge", other, code=422))["message"]


async def test_fields_given_twice_are_told_or_refused(api: httpx2.AsyncClient) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    body = b'{"metadata":{"name":"c"},"data":{"a":"1","a":"2"}}'
    json_type = {"content-type": "application/json"}
    strict = await api.post(path, content=body, headers=json_type, params={"fieldValidation": "Strict"})
    assert (strict.status_code, strict.json()["message"].rpartition(": ")[2]) == (400, 'duplicate field "data.a"')
    warned = await api.post(path, content=body, headers=json_type)
    assert (warned.status_code, warned.headers["warning"]) == (201, '299 - "duplicate field \\"data.a\\""')
    patch = b'{"data":{"b":"1","b":"2"}}'
    merge = {"content-type": "application/merge-patch+json"}
    answer = await api.patch(f"{path}/c", content=patch, headers=merge, params={"fieldValidation": "Strict"})
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")


async def test_what_go_cannot_decode_is_refused_in_its_words(api: httpx2.AsyncClient) -> None:
    for limit, words in (("4GB", "quantities must match"), ("4GG", "unable to parse quantity's suffix")):
        answer = await api.post(PODS, json=asking("a", memory=limit))
        assert answer.status_code == 400
        assert words in answer.json()["message"]
    wrong = pod("a")
    wrong["spec"]["nodeSelector"] = {"a": 5}
    message = (await api.post(PODS, json=wrong)).json()["message"]
    assert message.endswith("cannot unmarshal number into Go struct field PodSpec.spec.nodeSelector of type string")
