"""The simulated API server over real HTTP: what clients and their informers rely on."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from egpu_base.errors import InvalidInput
from egpu_sim.cluster.apiserver import Config, ServerHandle, serve
from egpu_sim.cluster.apiserver.http.app import BODY_LIMIT
from support.waiting import DEADLINE_SECONDS, until

PODS = "/api/v1/namespaces/default/pods"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.org/v1/namespaces/default/widgets"


def pod(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "busybox:1"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def widget_definition() -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                    "code": {"type": "string", "pattern": "^[a-z]+$"},
                    "amount": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            },
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        },
    }
    version = {
        "served": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{"name": "v1", "storage": True, **version}, {"name": "v1old", "storage": False, **version}],
        },
    }


def widget(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1, **spec}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerHandle]:
    async with serve(Config(tmp_path, log_limit=32)) as handle:
        yield handle


async def created(api: httpx2.AsyncClient, path: str, obj: dict[str, Any]) -> dict[str, Any]:
    answer = await api.post(path, json=obj)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def patched(api: httpx2.AsyncClient, path: str, kind: str, patch: Any, code: int = 200) -> dict[str, Any]:
    media = f"application/{kind}-patch+json"
    answer = await api.patch(path, content=json.dumps(patch), headers={"content-type": media})
    assert answer.status_code == code, answer.text
    return answer.json()


class Events:
    """A watch, read one event at a time."""

    def __init__(self, api: httpx2.AsyncClient, path: str, **query: str) -> None:
        self._stream = api.stream("GET", path, params={"watch": "true", **query})

    async def __aenter__(self) -> "Events":
        self.response = await self._stream.__aenter__()
        self._lines = self.response.aiter_lines()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stream.__aexit__(*error)

    async def next(self) -> tuple[str, dict[str, Any]]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            event = json.loads(await anext(self._lines))
        return event["type"], event["object"]


# -- who, where, how much ------------------------------------------------------------------------------------------


async def test_everything_but_health_and_version_needs_a_token(server: ServerHandle) -> None:
    context = ssl.create_default_context(cadata=server.ca.decode())
    async with httpx2.AsyncClient(base_url=server.url, verify=context) as stranger:
        for path in ("/healthz", "/readyz", "/livez", "/version"):
            assert (await stranger.get(path)).status_code == 200
        for path in ("/api", "/apis", PODS, "/openapi/v2", "/"):
            answer = await stranger.get(path)
            assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized"), path
        answer = await stranger.get(PODS, headers={"authorization": "Bearer wrong"})
        assert answer.status_code == 401


async def test_only_loopback_is_served(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"0\.0\.0\.0 is not a loopback address"):
        async with serve(Config(tmp_path, host="0.0.0.0")):
            pass


async def test_kubeconfigs_are_private(server: ServerHandle) -> None:
    assert server.kubeconfig.stat().st_mode & 0o777 == 0o600


async def test_a_body_too_long_is_refused(api: httpx2.AsyncClient) -> None:
    answer = await api.post(PODS, content=b" " * (BODY_LIMIT + 1), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["reason"]) == (413, "RequestEntityTooLarge")


async def test_unknown_paths_methods_and_formats_are_named(api: httpx2.AsyncClient) -> None:
    assert (await api.get("/apis/apps/v1/cronjobs")).json()["reason"] == "NotFound"
    unknown = await api.get("/apis/nobody.io/v1/things")
    assert (unknown.status_code, unknown.text) == (404, "404 page not found\n")
    assert (await api.post(f"{PODS}/a")).json()["reason"] == "MethodNotAllowed"
    assert (await api.get(PODS, headers={"accept": "text/html"})).status_code == 406
    answer = await api.post(PODS, content=b"x", headers={"content-type": "application/cbor"})
    assert answer.json()["reason"] == "UnsupportedMediaType"
    answer = await api.post(PODS, content=b"{", headers={"content-type": "application/json"})
    assert answer.json()["reason"] == "BadRequest"


# -- create, replace, delete ---------------------------------------------------------------------------------------


async def test_create_fills_in_what_a_client_may_leave_out(api: httpx2.AsyncClient) -> None:
    asked = pod("a")
    limits = {"elasticgpu.io/gpu-memory": 2000, "cpu": "0.5", "memory": "1024Mi"}
    asked["spec"]["containers"][0]["resources"] = {"limits": limits}
    made = await created(api, PODS, asked)
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"elasticgpu.io/gpu-memory": "2k", "cpu": "500m", "memory": "1Gi"}
    assert resources["requests"] == resources["limits"]
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["serviceAccountName"] == "default"
    assert made["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}
    assert made["metadata"]["uid"]
    assert made["metadata"]["generation"] == 1
    assert {t["key"] for t in made["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "Not_A_Name"}}, "metadata.name"),
        ({"metadata": {"name": "a", "labels": {"bad key": "x"}}}, "metadata.labels"),
        ({"spec": {"containers": []}}, "spec.containers"),
        ({"spec": {"containers": [{"name": "m"}]}}, "spec.containers[0].image"),
        ({"spec": {"containers": [{"name": "m", "image": "i"}] * 2}}, "spec.containers[1].name"),
        (
            {
                "spec": {
                    "containers": [{"name": "m", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "500m"}}}]
                }
            },
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
        ),
        (
            {"spec": {"containers": [{"name": "m", "image": "i", "resources": {"requests": {"nvidia.com/gpu": 1}}}]}},
            "spec.containers[0].resources.limits",
        ),
        (
            {
                "spec": {
                    "containers": [
                        {
                            "name": "m",
                            "image": "i",
                            "resources": {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}},
                        }
                    ]
                }
            },
            "spec.containers[0].resources.requests",
        ),
        ({"spec": {"containers": [{"name": "m", "image": "i"}], "restartPolicy": "Maybe"}}, "spec.restartPolicy"),
    ],
)
async def test_nonsense_is_refused_with_its_field(api: httpx2.AsyncClient, change: dict[str, Any], field: str) -> None:
    answer = await api.post(PODS, json={**pod("a"), "metadata": {"name": "a"}, **change})
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid"), answer.text
    assert field in [cause["field"] for cause in answer.json()["details"]["causes"]]
    assert (await api.get(PODS)).json()["items"] == []


async def test_wrong_types_and_unknown_fields(api: httpx2.AsyncClient) -> None:
    wrong = pod("a")
    wrong["spec"]["containers"][0]["command"] = "sh"
    assert (await api.post(PODS, json=wrong)).status_code == 400
    unknown: dict[str, Any] = {**pod("b"), "extra": 1}
    unknown["spec"]["contaners"] = []
    answer = await api.post(PODS, json=unknown, params={"fieldValidation": "Strict"})
    assert answer.status_code == 400
    assert "spec.contaners" in answer.json()["message"]
    answer = await api.post(PODS, json=unknown)
    assert answer.status_code == 201
    assert [w.split('"', 1)[1] for w in answer.headers.get_list("warning")] == [
        'unknown field \\"spec.contaners\\""',
        'unknown field \\"extra\\""',
    ]
    assert "extra" not in answer.json()
    answer = await api.post(PODS, json={**unknown, "metadata": {"name": "c"}}, params={"fieldValidation": "Ignore"})
    assert answer.status_code == 201
    assert "warning" not in answer.headers


async def test_names_namespaces_and_duplicates(api: httpx2.AsyncClient) -> None:
    made = await created(api, PODS, {**pod(""), "metadata": {"generateName": "job-"}})
    assert made["metadata"]["name"].startswith("job-")
    await created(api, PODS, pod("a"))
    assert (await api.post(PODS, json=pod("a"))).json()["reason"] == "AlreadyExists"
    answer = await api.post("/api/v1/namespaces/nowhere/pods", json=pod("a"))
    assert (answer.status_code, answer.json()["details"]["kind"]) == (404, "namespaces")
    elsewhere = {**pod("b"), "metadata": {"name": "b", "namespace": "kube-system"}}
    assert (await api.post(PODS, json=elsewhere)).status_code == 400
    assert (await api.post(PODS, json={**pod("b"), "kind": "Node"})).status_code == 400


async def test_optimistic_concurrency(api: httpx2.AsyncClient) -> None:
    made = await created(api, "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "c"}, "data": {"a": "1"}})
    path = "/api/v1/namespaces/default/configmaps/c"
    first = await api.put(path, json={**made, "data": {"a": "2"}})
    assert first.status_code == 200
    second = await api.put(path, json={**made, "data": {"a": "3"}})
    assert (second.status_code, second.json()["reason"]) == (409, "Conflict")
    same = await api.put(path, json=first.json())
    assert same.json()["metadata"]["resourceVersion"] == first.json()["metadata"]["resourceVersion"]
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"a": "4"}}
    await patched(api, path, "merge", stale, 409)
    assert (await api.get(path)).json()["data"] == {"a": "2"}


async def test_dry_run_changes_nothing(api: httpx2.AsyncClient) -> None:
    answer = await api.post(PODS, json=pod("a"), params={"dryRun": "All"})
    assert answer.status_code == 201
    assert answer.json()["metadata"]["uid"]
    assert (await api.get(f"{PODS}/a")).status_code == 404
    await created(api, PODS, pod("a"))
    assert (await api.delete(f"{PODS}/a", params={"dryRun": "All"})).status_code == 200
    assert (await api.get(f"{PODS}/a")).status_code == 200


async def test_pod_spec_is_immutable_but_for_a_few_fields(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, pod("a"))
    image = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
    assert (await patched(api, f"{PODS}/a", "strategic-merge", image))["metadata"]["generation"] == 2
    await patched(api, f"{PODS}/a", "merge", {"spec": {"restartPolicy": "Never"}}, 422)
    await patched(api, f"{PODS}/a", "merge", {"spec": {"nodeName": "n"}}, 422)
    added = [{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "x", "operator": "Exists"}}]
    assert len((await patched(api, f"{PODS}/a", "json", added))["spec"]["tolerations"]) == 3
    await patched(api, f"{PODS}/a", "json", [{"op": "remove", "path": "/spec/tolerations/0"}], 422)


async def test_status_is_written_on_its_own_path(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, pod("a"))
    made = await patched(api, f"{PODS}/a", "merge", {"status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"
    status = {"status": {"phase": "Running"}, "spec": {"restartPolicy": "Never"}}
    made = await patched(api, f"{PODS}/a/status", "strategic-merge", status)
    assert (made["status"]["phase"], made["spec"]["restartPolicy"]) == ("Running", "Always")
    one = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    two = {"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}
    await patched(api, f"{PODS}/a/status", "strategic-merge", one)
    made = await patched(api, f"{PODS}/a/status", "strategic-merge", two)
    assert [c["type"] for c in made["status"]["conditions"]] == ["Ready", "Initialized"]


# -- pods: binding, eviction, graceful deletion --------------------------------------------------------------------


def binding(name: str, node: str = "n1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **meta},
        "target": {"kind": "Node", "name": node},
    }


async def test_binding_sets_node_and_annotations_in_one_change(api: httpx2.AsyncClient) -> None:
    asked = pod("a")
    asked["metadata"]["annotations"] = {"kept": "1", "changed": "old"}
    made = await created(api, PODS, asked)
    async with Events(api, PODS, resourceVersion=made["metadata"]["resourceVersion"]) as events:
        answer = await api.post(f"{PODS}/a/binding", json=binding("a", annotations={"changed": "new", "own": "2"}))
        assert (answer.status_code, answer.json()["status"]) == (201, "Success")
        kind, seen = await events.next()
    assert kind == "MODIFIED"
    assert seen["spec"]["nodeName"] == "n1"
    assert seen["metadata"]["annotations"] == {"kept": "1", "changed": "new", "own": "2"}
    again = await api.post(f"{PODS}/a/binding", json=binding("a", "n2"))
    assert (again.status_code, again.json()["reason"]) == (409, "Conflict")
    assert (await api.get(f"{PODS}/a")).json()["spec"]["nodeName"] == "n1"


async def test_binding_refuses_another_uid_a_dying_pod_and_no_pod(api: httpx2.AsyncClient) -> None:
    assert (await api.post(f"{PODS}/none/binding", json=binding("none"))).status_code == 404
    asked = pod("a")
    asked["metadata"]["finalizers"] = ["example.org/wait"]
    await created(api, PODS, asked)
    assert (await api.post(f"{PODS}/a/binding", json=binding("a", uid="other"))).status_code == 409
    assert (await api.post(f"{PODS}/a/binding", json=binding("a", ""))).status_code == 422
    await api.delete(f"{PODS}/a")
    answer = await api.post(f"{PODS}/a/binding", json=binding("a"))
    assert answer.status_code == 409
    assert "being deleted" in answer.json()["message"]


async def test_of_many_bindings_at_once_one_wins(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, pod("a"))
    answers = await asyncio.gather(*(api.post(f"{PODS}/a/binding", json=binding("a", f"n{i}")) for i in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7


async def test_a_bound_pod_goes_when_its_kubelet_says_so(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, pod("a"))
    await api.post(f"{PODS}/a/binding", json=binding("a"))
    answer = await api.delete(f"{PODS}/a")
    assert answer.json()["metadata"]["deletionGracePeriodSeconds"] == 30
    assert (await api.get(f"{PODS}/a")).json()["metadata"]["deletionTimestamp"]
    shorter = await api.request("DELETE", f"{PODS}/a", json={"gracePeriodSeconds": 5})
    assert shorter.json()["metadata"]["deletionGracePeriodSeconds"] == 5
    gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": answer.json()["metadata"]["uid"]}}
    assert (await api.request("DELETE", f"{PODS}/a", json=gone)).status_code == 200
    assert (await api.get(f"{PODS}/a")).status_code == 404


async def test_an_unbound_pod_goes_at_once_and_preconditions_hold(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, pod("a"))
    answer = await api.request("DELETE", f"{PODS}/a", json={"preconditions": {"uid": "other"}})
    assert (answer.status_code, answer.json()["reason"]) == (409, "Conflict")
    assert (await api.delete(f"{PODS}/a")).status_code == 200
    assert (await api.get(f"{PODS}/a")).status_code == 404


async def test_eviction_deletes(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, pod("a"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    assert (await api.post(f"{PODS}/a/eviction", json=eviction)).status_code == 201
    assert (await api.get(f"{PODS}/a")).status_code == 404


BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


async def running(api: httpx2.AsyncClient, name: str, *, ready: bool = True) -> None:
    """A bound pod labelled app=web that runs."""
    asked = pod(name)
    asked["metadata"]["labels"] = {"app": "web"}
    await created(api, PODS, asked)
    await api.post(f"{PODS}/{name}/binding", json=binding(name))
    conditions = [{"type": "Ready", "status": str(ready)}]
    await patched(api, f"{PODS}/{name}/status", "merge", {"status": {"phase": "Running", "conditions": conditions}})


async def budget(api: httpx2.AsyncClient, name: str, allowed: int, **status: Any) -> None:
    """A budget of app=web whose controller has counted."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    made = await created(api, BUDGETS, {"metadata": {"name": name}, "spec": spec})
    assert made["status"] == {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
    counted = {"currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": allowed, "expectedPods": 1}
    counted |= {"observedGeneration": made["metadata"]["generation"], **status}
    await patched(api, f"{BUDGETS}/{name}/status", "merge", {"status": counted})


async def evict(api: httpx2.AsyncClient, name: str, **options: Any) -> httpx2.Response:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    return await api.post(f"{PODS}/{name}/eviction", json=body)


async def test_an_eviction_takes_one_disruption_and_is_refused_where_none_is_left(api: httpx2.AsyncClient) -> None:
    await budget(api, "web", 1)
    for name in ("a", "b"):
        await running(api, name)
    assert (await evict(api, "a", dryRun=["All"])).status_code == 201
    assert (await api.get(f"{BUDGETS}/web")).json()["status"]["disruptionsAllowed"] == 1
    assert (await evict(api, "a")).status_code == 201
    gone = (await api.get(f"{PODS}/a")).json()
    assert gone["metadata"]["deletionTimestamp"]
    assert ("DisruptionTarget", "EvictionByEvictionAPI") in {
        (one["type"], one.get("reason")) for one in gone["status"]["conditions"]
    }
    spent = (await api.get(f"{BUDGETS}/web")).json()["status"]
    assert (spent["disruptionsAllowed"], list(spent["disruptedPods"])) == (0, ["a"])
    refused = await evict(api, "b")
    assert refused.status_code == 429
    assert refused.json()["reason"] == "TooManyRequests"
    assert refused.json()["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    message = "The disruption budget web needs 1 healthy pods and has 1 currently"
    assert refused.json()["details"] == {"causes": [{"reason": "DisruptionBudget", "message": message}]}
    assert not (await api.get(f"{PODS}/b")).json()["metadata"].get("deletionTimestamp")
    assert (await evict(api, "a")).status_code == 201, "who is going already is nobody's disruption"


async def test_a_budget_that_its_controller_has_not_seen_refuses(api: httpx2.AsyncClient) -> None:
    await budget(api, "web", 1, observedGeneration=0)
    await running(api, "a")
    refused = await evict(api, "a")
    assert (refused.status_code, refused.json()["details"]["retryAfterSeconds"]) == (429, 10)
    assert refused.json()["details"]["causes"][0]["message"].endswith("is still being processed by the server.")


async def test_an_unready_pod_goes_while_enough_others_are_healthy(api: httpx2.AsyncClient) -> None:
    await budget(api, "web", 0)
    await running(api, "a", ready=False)
    assert (await evict(api, "a")).status_code == 201
    assert (await api.get(f"{BUDGETS}/web")).json()["status"]["disruptionsAllowed"] == 0


async def test_a_pod_with_several_budgets_cannot_be_evicted(api: httpx2.AsyncClient) -> None:
    for name in ("one", "two"):
        await budget(api, name, 1)
    await running(api, "a")
    refused = await evict(api, "a")
    assert (refused.status_code, "more than one PodDisruptionBudget" in refused.json()["message"]) == (500, True)
    assert not (await api.get(f"{PODS}/a")).json()["metadata"].get("deletionTimestamp")


async def test_budgets_are_checked(api: httpx2.AsyncClient) -> None:
    for spec, field in (
        ({"minAvailable": 1, "maxUnavailable": 1}, "spec"),
        ({"minAvailable": "half"}, "spec.minAvailable"),
        ({"maxUnavailable": -1}, "spec.maxUnavailable"),
        ({"unhealthyPodEvictionPolicy": "Never"}, "spec.unhealthyPodEvictionPolicy"),
    ):
        answer = await api.post(BUDGETS, json={"metadata": {"name": "x"}, "spec": spec})
        assert answer.status_code == 422, answer.text
        assert [cause["field"] for cause in answer.json()["details"]["causes"]] == [field]


async def test_logs(api: httpx2.AsyncClient, tmp_path: Path) -> None:
    node = {"metadata": {"name": "n1", "annotations": {"elasticgpu.io/pod-logs": str(tmp_path)}}}
    await created(api, "/api/v1/nodes", node)
    made = await created(api, PODS, pod("a"))
    assert (await api.get(f"{PODS}/a/log")).status_code == 400
    await api.post(f"{PODS}/a/binding", json=binding("a"))
    file = tmp_path / f"default_a_{made['metadata']['uid']}" / "main" / "0.log"
    file.parent.mkdir(parents=True)
    file.write_text(
        "".join(f"2026-11-22T08:00:0{n}.500000000Z stdout F {text}\n" for n, text in enumerate(("one", "two", "three")))
    )
    assert (await api.get(f"{PODS}/a/log")).text == "one\ntwo\nthree\n"
    assert (await api.get(f"{PODS}/a/log", params={"tailLines": "2"})).text == "two\nthree\n"
    assert (await api.get(f"{PODS}/a/log", params={"limitBytes": "5"})).text == "one\nt"
    assert (await api.get(f"{PODS}/a/log", params={"container": "other"})).status_code == 400
    timed = {"timestamps": "true", "tailLines": "1"}
    assert (await api.get(f"{PODS}/a/log", params=timed)).text == "2026-11-22T08:00:02.500000000Z three\n"
    since = {"sinceTime": "2026-11-22T09:00:01.7+01:00"}
    assert (await api.get(f"{PODS}/a/log", params=since)).text == "two\nthree\n", "a time counts by whole seconds"
    assert (await api.get(f"{PODS}/a/log", params={"previous": "true"})).status_code == 400
    async with api.stream("GET", f"{PODS}/a/log", params={"follow": "true", "tailLines": "1"}) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "three"
        with file.open("a") as more:
            more.write("2026-11-22T08:00:04.000000000Z stderr P fo")
            more.flush()
            more.write("u\n2026-11-22T08:00:04.000000001Z stderr F r\n")
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await anext(lines) == "four"
        await patched(api, f"{PODS}/a/status", "merge", {"status": {"phase": "Succeeded"}})
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert [line async for line in lines] == []


# -- finalizers, owners, namespaces --------------------------------------------------------------------------------

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_finalizers_hold_an_object_until_they_are_gone(api: httpx2.AsyncClient) -> None:
    await created(api, MAPS, {"metadata": {"name": "c", "finalizers": ["example.org/f"]}})
    await api.delete(f"{MAPS}/c")
    held = (await api.get(f"{MAPS}/c")).json()
    assert held["metadata"]["deletionTimestamp"]
    await patched(api, f"{MAPS}/c", "merge", {"metadata": {"finalizers": ["example.org/f", "example.org/g"]}}, 422)
    await patched(api, f"{MAPS}/c", "merge", {"metadata": {"finalizers": None}})
    assert (await api.get(f"{MAPS}/c")).status_code == 404


def owned(name: str, owner: dict[str, Any], **reference: Any) -> dict[str, Any]:
    meta = owner["metadata"]
    owner_reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"], **reference}
    return {"metadata": {"name": name, "ownerReferences": [owner_reference]}}


async def test_dependents_go_with_their_owner(api: httpx2.AsyncClient) -> None:
    owner = await created(api, MAPS, {"metadata": {"name": "owner"}})
    child = await created(api, MAPS, owned("child", owner))
    await created(api, MAPS, owned("grandchild", child))
    await created(api, MAPS, {"metadata": {"name": "stranger"}})
    await api.delete(f"{MAPS}/owner")

    async def only_stranger() -> bool:
        return [m["metadata"]["name"] for m in (await api.get(MAPS)).json()["items"]] == ["stranger"]

    await until(only_stranger)


async def test_orphaned_dependents_stay_and_forget_their_owner(api: httpx2.AsyncClient) -> None:
    owner = await created(api, MAPS, {"metadata": {"name": "owner"}})
    await created(api, MAPS, owned("child", owner))
    await api.request("DELETE", f"{MAPS}/owner", json={"propagationPolicy": "Orphan"})

    async def owner_gone() -> bool:
        return (await api.get(f"{MAPS}/owner")).status_code == 404

    await until(owner_gone)
    assert (await api.get(f"{MAPS}/child")).json()["metadata"].get("ownerReferences", []) == []


async def test_foreground_deletion_waits_for_dependents(api: httpx2.AsyncClient) -> None:
    owner = await created(api, MAPS, {"metadata": {"name": "owner"}})
    child = owned("child", owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["example.org/slow"]
    await created(api, MAPS, child)
    answer = await api.request("DELETE", f"{MAPS}/owner", json={"propagationPolicy": "Foreground"})
    assert answer.json()["metadata"]["finalizers"] == ["foregroundDeletion"]

    async def child_leaving() -> bool:
        return "deletionTimestamp" in (await api.get(f"{MAPS}/child")).json()["metadata"]

    await until(child_leaving)
    assert (await api.get(f"{MAPS}/owner")).status_code == 200
    await patched(api, f"{MAPS}/child", "merge", {"metadata": {"finalizers": None}})

    async def owner_gone() -> bool:
        return (await api.get(f"{MAPS}/owner")).status_code == 404

    await until(owner_gone)


async def test_an_object_whose_owner_never_was_is_collected(api: httpx2.AsyncClient) -> None:
    ghost = {"metadata": {"name": "ghost", "uid": "00000000-0000-0000-0000-000000000000"}}
    await created(api, MAPS, owned("child", ghost))

    async def gone() -> bool:
        return (await api.get(f"{MAPS}/child")).status_code == 404

    await until(gone)


async def test_deleting_a_namespace_empties_it(api: httpx2.AsyncClient) -> None:
    await created(api, "/api/v1/namespaces", {"metadata": {"name": "tmp"}})
    inside = "/api/v1/namespaces/tmp"
    await created(api, f"{inside}/configmaps", {"metadata": {"name": "c", "finalizers": ["example.org/f"]}})
    await created(api, f"{inside}/pods", pod("p"))
    answer = await api.delete(inside)
    assert answer.json()["status"]["phase"] == "Terminating"
    late = await api.post(f"{inside}/pods", json=pod("late"))
    assert (late.status_code, late.json()["reason"]) == (403, "Forbidden")

    async def pod_gone() -> bool:
        return (await api.get(f"{inside}/pods/p")).status_code == 404

    await until(pod_gone)
    assert (await api.get(inside)).status_code == 200
    await patched(api, f"{inside}/configmaps/c", "merge", {"metadata": {"finalizers": None}})

    async def namespace_gone() -> bool:
        return (await api.get(inside)).status_code == 404

    await until(namespace_gone)


async def test_deletecollection_takes_what_the_selector_names(api: httpx2.AsyncClient) -> None:
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        await created(api, MAPS, {"metadata": {"name": name, "labels": {"l": label}}})
    answer = await api.delete(MAPS, params={"labelSelector": "l=x"})
    assert [m["metadata"]["name"] for m in answer.json()["items"]] == ["a", "b"]
    assert [m["metadata"]["name"] for m in (await api.get(MAPS)).json()["items"]] == ["c"]


# -- list and watch ------------------------------------------------------------------------------------------------


async def test_selectors(api: httpx2.AsyncClient) -> None:
    for name, labels in (("a", {"app": "x", "n": "1"}), ("b", {"app": "y", "n": "5"}), ("c", {})):
        await created(api, PODS, {**pod(name), "metadata": {"name": name, "labels": labels}})
    await api.post(f"{PODS}/a/binding", json=binding("a", "n1"))

    async def names(**query: str) -> str:
        answer = await api.get("/api/v1/pods", params=query)
        assert answer.status_code == 200, answer.text
        return "".join(p["metadata"]["name"] for p in answer.json()["items"])

    assert await names(labelSelector="app=x") == "a"
    assert await names(labelSelector="app!=x") == "bc"
    assert await names(labelSelector="app in (x,y),n") == "ab"
    assert await names(labelSelector="app notin (x)") == "bc"
    assert await names(labelSelector="!app") == "c"
    assert await names(labelSelector="n>3") == "b"
    assert await names(fieldSelector="spec.nodeName=n1") == "a"
    assert await names(fieldSelector="spec.nodeName=,metadata.name!=c") == "b"
    assert await names(fieldSelector="status.phase=Pending") == "abc"
    for query in ({"labelSelector": "a in x"}, {"fieldSelector": "spec.colour=red"}):
        assert (await api.get(PODS, params=query)).status_code == 400


async def test_pages_see_one_moment(api: httpx2.AsyncClient) -> None:
    for name in "abcde":
        await created(api, MAPS, {"metadata": {"name": name}})
    page = (await api.get(MAPS, params={"limit": "2"})).json()
    assert page["metadata"]["remainingItemCount"] == 3
    await api.delete(f"{MAPS}/d")
    await created(api, MAPS, {"metadata": {"name": "cc"}})
    seen = [m["metadata"]["name"] for m in page["items"]]
    while token := page["metadata"].get("continue"):
        page = (await api.get(MAPS, params={"limit": "2", "continue": token})).json()
        seen += [m["metadata"]["name"] for m in page["items"]]
    assert seen == list("abcde")


async def test_the_past_can_be_listed_until_it_is_forgotten(api: httpx2.AsyncClient) -> None:
    made = await created(api, MAPS, {"metadata": {"name": "c"}, "data": {"n": "0"}})
    then = made["metadata"]["resourceVersion"]
    await patched(api, f"{MAPS}/c", "merge", {"data": {"n": "1"}})
    exact = {"resourceVersion": then, "resourceVersionMatch": "Exact"}
    past = (await api.get(MAPS, params=exact)).json()
    assert past["items"][0]["data"] == {"n": "0"}
    assert past["metadata"]["resourceVersion"] == then
    for number in range(80):  # the log of this server keeps 32 to 64 changes
        await patched(api, f"{MAPS}/c", "merge", {"data": {"n": str(number + 2)}})
    answer = await api.get(MAPS, params=exact)
    assert (answer.status_code, answer.json()["reason"]) == (410, "Expired")
    async with Events(api, MAPS, resourceVersion=then) as events:
        kind, status = await events.next()
        assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
    ahead = str(10**15)
    assert (await api.get(MAPS, params={"resourceVersion": ahead})).status_code == 504


async def test_a_revision_of_an_earlier_server_is_gone(api: httpx2.AsyncClient) -> None:
    async with Events(api, MAPS, resourceVersion="12345") as events:
        assert (await events.next())[1]["code"] == 410


async def test_watch_tells_every_change_once_and_in_order(api: httpx2.AsyncClient) -> None:
    start = (await api.get(MAPS)).json()["metadata"]["resourceVersion"]
    async with Events(api, MAPS, resourceVersion=start) as events:
        await created(api, MAPS, {"metadata": {"name": "c"}})
        await patched(api, f"{MAPS}/c", "merge", {"data": {"a": "1"}})
        await patched(api, f"{MAPS}/c", "merge", {"data": {"a": "1"}})  # no change, no event
        await api.delete(f"{MAPS}/c")
        seen = [await events.next() for _ in range(3)]
    assert [kind for kind, _ in seen] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in seen]
    assert versions == sorted(set(versions))


async def test_what_is_no_news_to_a_watch_does_not_make_it_fall_behind(api: httpx2.AsyncClient) -> None:
    """More changes than the log keeps, none of them in the selection: a watch that waits has seen them all."""
    start = (await api.get(MAPS)).json()["metadata"]["resourceVersion"]
    async with Events(api, MAPS, resourceVersion=start, labelSelector="tier=news") as events:
        await created(api, MAPS, {"metadata": {"name": "first", "labels": {"tier": "news"}}})
        assert (await events.next())[1]["metadata"]["name"] == "first"
        for number in range(3 * 32):
            await created(api, MAPS, {"metadata": {"name": f"noise-{number}"}})
        await created(api, MAPS, {"metadata": {"name": "second", "labels": {"tier": "news"}}})
        kind, told = await events.next()
    assert (kind, told["metadata"].get("name")) == ("ADDED", "second")


async def test_watch_with_a_selector_tells_entering_and_leaving(api: httpx2.AsyncClient) -> None:
    start = (await api.get(PODS)).json()["metadata"]["resourceVersion"]
    async with Events(api, PODS, resourceVersion=start, labelSelector="app=x") as events:
        await created(api, PODS, pod("a"))
        await patched(api, f"{PODS}/a", "merge", {"metadata": {"labels": {"app": "x"}}})
        assert (await events.next())[0] == "ADDED"
        await patched(api, f"{PODS}/a", "merge", {"metadata": {"labels": {"app": "y"}}})
        assert (await events.next())[0] == "DELETED"
        await api.delete(f"{PODS}/a")
        await created(api, PODS, {**pod("b"), "metadata": {"name": "b", "labels": {"app": "x"}}})
        kind, obj = await events.next()
        assert (kind, obj["metadata"]["name"]) == ("ADDED", "b")


async def test_streaming_list(api: httpx2.AsyncClient) -> None:
    await created(api, MAPS, {"metadata": {"name": "c"}})
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with Events(api, MAPS, **query) as events:
        assert (await events.next())[0] == "ADDED"
        kind, mark = await events.next()
        assert kind == "BOOKMARK"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert mark["kind"] == "ConfigMap"
        await created(api, MAPS, {"metadata": {"name": "d"}})
        assert (await events.next())[1]["metadata"]["name"] == "d"
    bad = await api.get(MAPS, params={"watch": "true", "sendInitialEvents": "true"})
    assert bad.status_code == 400


async def test_watch_ends_on_time_with_a_bookmark(api: httpx2.AsyncClient) -> None:
    async with Events(api, MAPS, timeoutSeconds="1", allowWatchBookmarks="true", resourceVersion="0") as events:
        assert (await events.next())[0] == "BOOKMARK"
        with pytest.raises(StopAsyncIteration):
            await events.next()


async def test_watches_that_are_cut_end_and_the_next_ones_go_on(api: httpx2.AsyncClient, server: ServerHandle) -> None:
    start = (await api.get(MAPS)).json()["metadata"]["resourceVersion"]
    async with Events(api, MAPS, resourceVersion=start) as events:
        server.cut_watches()
        with pytest.raises(StopAsyncIteration):
            await events.next()
    async with Events(api, MAPS, resourceVersion=start) as events:
        await created(api, MAPS, {"metadata": {"name": "after-the-cut"}})
        assert (await events.next())[1]["metadata"]["name"] == "after-the-cut"


async def test_tables_and_partial_objects(api: httpx2.AsyncClient) -> None:
    await created(api, PODS, pod("a"))
    for version in ("v1", "v1beta1"):
        table = (await api.get(PODS, headers={"accept": f"application/json;as=Table;v={version};g=meta.k8s.io"})).json()
        assert (table["kind"], table["apiVersion"]) == ("Table", f"meta.k8s.io/{version}")
        assert [c["name"] for c in table["columnDefinitions"]][:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
        assert table["rows"][0]["cells"][:4] == ["a", "0/1", "Pending", "0"]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    listed = (await api.get(PODS, headers={"accept": partial})).json()
    assert listed["kind"] == "PartialObjectMetadataList"
    assert set(listed["items"][0]) == {"kind", "apiVersion", "metadata"}


# -- custom resources ----------------------------------------------------------------------------------------------


async def test_custom_resources_are_validated_pruned_and_defaulted(api: httpx2.AsyncClient) -> None:
    await created(api, CRDS, widget_definition())
    made = await created(api, WIDGETS, {**widget("a", free={"any": {"thing": 1}}, unknown=1), "status": {"phase": "x"}})
    assert made["spec"] == {"size": 1, "colour": "red", "free": {"any": {"thing": 1}}}
    assert "status" not in made
    for spec, field in (
        ({"size": 0}, "spec.size"),
        ({"size": "1"}, "spec.size"),
        ({"colour": "green"}, "spec.colour"),
        ({"code": "A1"}, "spec.code"),
        ({"amount": 1.5}, "spec.amount"),
    ):
        answer = await api.post(WIDGETS, json=widget("b", **spec))
        assert answer.status_code == 422, answer.text
        assert [c["field"] for c in answer.json()["details"]["causes"]] == [field]
    missing = await api.post(WIDGETS, json={**widget("b"), "spec": {}})
    assert missing.json()["details"]["causes"][0]["reason"] == "FieldValueRequired"


async def test_versions_status_and_generation_of_custom_resources(api: httpx2.AsyncClient) -> None:
    await created(api, CRDS, widget_definition())
    old = "/apis/example.org/v1old/namespaces/default/widgets"
    made = await created(api, old, {**widget("a"), "apiVersion": "example.org/v1old"})
    assert made["apiVersion"] == "example.org/v1old"
    assert (await api.get(f"{WIDGETS}/a")).json()["apiVersion"] == "example.org/v1"
    assert (await api.get(old)).json()["items"][0]["apiVersion"] == "example.org/v1old"
    made = await patched(api, f"{WIDGETS}/a/status", "merge", {"status": {"phase": "Bound"}, "spec": {"size": 9}})
    assert (made["status"], made["spec"]["size"], made["metadata"]["generation"]) == ({"phase": "Bound"}, 1, 1)
    made = await patched(api, f"{old}/a", "merge", {"spec": {"size": 2}, "status": {"phase": "Lost"}})
    assert (made["status"], made["spec"]["size"], made["metadata"]["generation"]) == ({"phase": "Bound"}, 2, 2)
    assert (
        await api.patch(
            f"{WIDGETS}/a", content=b"{}", headers={"content-type": "application/strategic-merge-patch+json"}
        )
    ).status_code == 415
    unversioned = {**widget("a"), "metadata": {"name": "a"}}
    assert (await api.put(f"{WIDGETS}/a", json=unversioned)).status_code == 422
    table = (await api.get(WIDGETS, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})).json()
    assert table["rows"][0]["cells"] == ["a", 2, "Bound"]


async def test_deleting_a_definition_takes_its_objects_and_its_path(api: httpx2.AsyncClient) -> None:
    await created(api, CRDS, widget_definition())
    await created(api, WIDGETS, widget("a"))
    await api.delete(f"{CRDS}/widgets.example.org")

    async def gone() -> bool:
        return (await api.get(f"{CRDS}/widgets.example.org")).status_code == 404

    await until(gone)
    assert (await api.get(WIDGETS)).status_code == 404
    await created(api, CRDS, widget_definition())
    assert (await api.get(WIDGETS)).json()["items"] == []


# -- discovery -----------------------------------------------------------------------------------------------------


async def test_discovery_both_ways(api: httpx2.AsyncClient) -> None:
    await created(api, CRDS, widget_definition())
    groups = (await api.get("/apis")).json()["groups"]
    assert "example.org" in [g["name"] for g in groups]
    legacy = (await api.get("/apis/example.org/v1")).json()
    assert [r["name"] for r in legacy["resources"]] == ["widgets", "widgets/status"]
    for version in ("v2", "v2beta1"):
        accept = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        answer = await api.get("/apis", headers={"accept": accept})
        assert f"v={version}" in answer.headers["content-type"]
        document = answer.json()
        assert document["apiVersion"] == f"apidiscovery.k8s.io/{version}"
        found = next(item for item in document["items"] if item["metadata"]["name"] == "example.org")
        resource = found["versions"][0]["resources"][0]
        assert (resource["resource"], resource["scope"]) == ("widgets", "Namespaced")
    core = (await api.get("/api", headers={"accept": accept})).json()["items"][0]
    pods = next(r for r in core["versions"][0]["resources"] if r["resource"] == "pods")
    assert {s["subresource"] for s in pods["subresources"]} == {
        "attach", "binding", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "resize", "status",
    }  # fmt: skip


async def test_openapi_documents(api: httpx2.AsyncClient) -> None:
    await created(api, CRDS, widget_definition())
    index = (await api.get("/openapi/v3")).json()["paths"]
    document = (await api.get(index["api/v1"]["serverRelativeURL"])).json()
    spec = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]
    assert spec["properties"]["containers"]["x-kubernetes-patch-merge-key"] == "name"
    custom = (await api.get(index["apis/example.org/v1"]["serverRelativeURL"])).json()
    assert custom["components"]["schemas"]["org.example.v1.Widget"]["properties"]["spec"]["required"] == ["size"]
    assert (await api.get("/openapi/v2")).json()["swagger"] == "2.0"


# -- events in two groups ------------------------------------------------------------------------------------------


async def test_events_are_one_in_both_groups(api: httpx2.AsyncClient) -> None:
    event = {
        "metadata": {"name": "e.1"},
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"},
        "reason": "Because",
        "message": "it had to be",
        "type": "Normal",
        "count": 2,
    }
    await created(api, "/api/v1/namespaces/default/events", event)
    new = (await api.get("/apis/events.k8s.io/v1/namespaces/default/events/e.1")).json()
    assert (new["note"], new["regarding"]["name"], new["deprecatedCount"]) == ("it had to be", "a", 2)
    for path, field in (("/api/v1/events", "involvedObject.name"), ("/apis/events.k8s.io/v1/events", "regarding.name")):
        assert len((await api.get(path, params={"fieldSelector": f"{field}=a"})).json()["items"]) == 1
        assert len((await api.get(path, params={"fieldSelector": f"{field}=b"})).json()["items"]) == 0
