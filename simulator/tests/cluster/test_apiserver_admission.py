"""Admission webhooks of the simulated API server: real TLS servers, asked and heeded."""

import asyncio
import base64
import datetime
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from test_apiserver_http import MAPS, PODS, binding, created, patched, pod

from egpu_base.tls.certificates import issue
from egpu_sim.cluster.apiserver import Config, ServerHandle, serve
from support.waiting import until

Decide = Callable[[dict[str, Any]], dict[str, Any]]


class Hook:
    """A webhook server on loopback that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.callers: list[tuple[int, str]] = []
        """Of each question, the port of the connection that it came over, and its path."""
        self.decide: Decide = lambda request: {"allowed": True}
        self.delay_seconds = 0.0
        self.port = 0
        self.bundle = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        review = json.loads(await Request(scope, receive).body())
        request = review["request"]
        self.asked.append(request)
        self.callers.append((scope["client"][1], scope["path"]))
        await asyncio.sleep(self.delay_seconds)
        answer = {"uid": request["uid"], **self.decide(request)}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        await JSONResponse(body)(scope, receive, send)

    def patching(self, *operations: dict[str, Any], **more: Any) -> None:
        patch = base64.b64encode(json.dumps(operations).encode()).decode()
        self.decide = lambda request: {"allowed": True, "patchType": "JSONPatch", "patch": patch, **more}


class Quiet(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Signals are pytest's."""


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    made = issue(["127.0.0.1", "hook.default.svc"], now=datetime.datetime.now(datetime.UTC))
    (tmp_path / "cert.pem").write_bytes(made.certificate)
    (tmp_path / "key.pem").write_bytes(made.key)
    app = Hook()
    app.bundle = made.ca_bundle
    config = uvicorn.Config(
        app,
        port=0,
        log_level="error",
        lifespan="off",
        ssl_certfile=tmp_path / "cert.pem",
        ssl_keyfile=tmp_path / "key.pem",
    )
    server = Quiet(config)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    app.port = server.servers[0].sockets[0].getsockname()[1]
    yield app
    server.should_exit = True
    await running


@pytest.fixture
async def server(tmp_path: Path, hook: Hook) -> AsyncIterator[ServerHandle]:
    def resolve(namespace: str, name: str, port: int) -> tuple[str, int] | None:
        return ("127.0.0.1", hook.port) if (namespace, name) == ("default", "hook") else None

    async with serve(Config(tmp_path / "state", resolve_service=resolve)) as handle:
        yield handle


def configuration(hook: Hook, kind: str = "Mutating", **more: Any) -> dict[str, Any]:
    bundle = base64.b64encode(hook.bundle).decode()
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "test"},
        "webhooks": [
            {
                "name": "pods.test.example.org",
                "clientConfig": {"url": f"https://127.0.0.1:{hook.port}/ask", "caBundle": bundle},
                "rules": [
                    {
                        "operations": ["*"],
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "resources": ["pods", "pods/binding"],
                    }
                ],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                **more,
            }
        ],
    }


async def install(api: httpx2.AsyncClient, made: dict[str, Any]) -> None:
    await created(api, f"/apis/admissionregistration.k8s.io/v1/{made['kind'].lower()}s", made)


async def test_a_mutating_webhook_changes_the_object(api: httpx2.AsyncClient, hook: Hook) -> None:
    await install(api, configuration(hook))
    limits = {"limits": {"elasticgpu.io/slot": 2000}}
    hook.patching(
        {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}},
        {"op": "replace", "path": "/spec/containers/0/resources", "value": limits},
        warnings=["mind the gap"],
    )
    answer = await api.post(PODS, json=pod("a"))
    made = answer.json()
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"elasticgpu.io/slot": "2k"}
    assert "mind the gap" in answer.headers["warning"]
    asked = hook.asked[0]
    assert (asked["operation"], asked["name"], asked["namespace"], asked["dryRun"]) == ("CREATE", "a", "default", False)
    assert asked["userInfo"]["username"] == "kubernetes-admin"
    assert asked["object"]["spec"]["restartPolicy"] == "Always"
    assert asked["oldObject"] is None


async def test_webhooks_of_one_server_share_its_connections(api: httpx2.AsyncClient, hook: Hook) -> None:
    first, second = configuration(hook), configuration(hook, "Validating")
    second["webhooks"][0]["clientConfig"]["url"] = f"https://127.0.0.1:{hook.port}/other"
    for one in (first, second):
        await install(api, one)
    await created(api, PODS, pod("a"))
    assert [path for _, path in hook.callers] == ["/ask", "/other"]
    assert len({port for port, _ in hook.callers}) == 1


async def test_a_webhook_is_asked_from_when_it_is_configured_until_it_is_not(
    api: httpx2.AsyncClient, hook: Hook
) -> None:
    await created(api, PODS, pod("before"))
    made = configuration(hook)
    await install(api, made)
    await created(api, PODS, pod("meanwhile"))
    where = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/test"
    assert (await api.delete(where)).status_code == 200
    await created(api, PODS, pod("after"))
    assert [one["name"] for one in hook.asked] == ["meanwhile"]


async def test_a_patch_is_validated_like_everything_else(api: httpx2.AsyncClient, hook: Hook) -> None:
    await install(api, configuration(hook))
    hook.patching({"op": "remove", "path": "/spec/containers/0"})
    assert (await api.post(PODS, json=pod("a"))).status_code == 422
    hook.patching({"op": "remove", "path": "/nothing"})
    assert (await api.post(PODS, json=pod("a"))).status_code == 500
    assert (await api.get(PODS)).json()["items"] == []


async def test_a_validating_webhook_denies_every_operation(api: httpx2.AsyncClient, hook: Hook) -> None:
    await created(api, PODS, pod("old"))
    await install(api, configuration(hook, "Validating"))
    hook.decide = lambda request: {"allowed": False, "status": {"code": 422, "message": "no such class"}}
    answers = [
        await api.post(PODS, json=pod("a")),
        await api.delete(f"{PODS}/old"),
        await api.post(f"{PODS}/old/binding", json=binding("old")),
    ]
    for answer in answers:
        assert answer.status_code == 422
        assert 'admission webhook "pods.test.example.org" denied the request: no such class' in answer.json()["message"]
    await patched(api, f"{PODS}/old", "merge", {"metadata": {"labels": {"x": "y"}}}, 422)
    assert [r["operation"] for r in hook.asked] == ["CREATE", "DELETE", "CREATE", "UPDATE"]
    assert hook.asked[1]["object"] is None
    assert hook.asked[1]["oldObject"]["metadata"]["name"] == "old"
    assert hook.asked[2]["kind"]["kind"] == "Binding"
    assert hook.asked[2]["subResource"] == "binding"
    survivor = (await api.get(f"{PODS}/old")).json()
    assert "nodeName" not in survivor["spec"]


async def test_selectors_decide_who_is_asked(api: httpx2.AsyncClient, hook: Hook) -> None:
    namespaces = {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]
    }
    objects = {"matchLabels": {"gpu": "yes"}}
    await install(api, configuration(hook, namespaceSelector=namespaces, objectSelector=objects))
    labelled = {**pod("a"), "metadata": {"name": "a", "labels": {"gpu": "yes"}}}
    await created(api, "/api/v1/namespaces/kube-system/pods", labelled)
    await created(api, PODS, pod("b"))
    await created(api, MAPS, {"metadata": {"name": "c", "labels": {"gpu": "yes"}}})
    assert hook.asked == []
    await created(api, PODS, labelled)
    assert [r["name"] for r in hook.asked] == ["a"]


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
async def test_failure_policy(api: httpx2.AsyncClient, hook: Hook, policy: str, code: int) -> None:
    await install(api, configuration(hook, failurePolicy=policy, timeoutSeconds=1))
    hook.delay_seconds = 5
    answer = await api.post(PODS, json=pod("a"))
    assert answer.status_code == code
    if code == 500:
        assert 'failed calling webhook "pods.test.example.org"' in answer.json()["message"]
    assert (await api.get(f"{PODS}/a")).status_code == (200 if code == 201 else 404)


async def test_a_server_with_another_authority_is_not_trusted(api: httpx2.AsyncClient, hook: Hook) -> None:
    hook.bundle = issue(["127.0.0.1"], now=datetime.datetime.now(datetime.UTC)).ca_bundle
    await install(api, configuration(hook))
    answer = await api.post(PODS, json=pod("a"))
    assert answer.status_code == 500
    assert hook.asked == []


async def test_services_are_resolved_by_the_cluster(api: httpx2.AsyncClient, hook: Hook) -> None:
    bundle = base64.b64encode(hook.bundle).decode()
    service = {"name": "hook", "namespace": "default", "path": "/mutate"}
    await install(api, configuration(hook, clientConfig={"service": service, "caBundle": bundle}))
    await created(api, PODS, pod("a"))
    assert len(hook.asked) == 1


async def test_a_change_during_admission_is_not_lost(api: httpx2.AsyncClient, hook: Hook) -> None:
    await created(api, PODS, pod("a"))
    await install(api, configuration(hook))
    hook.delay_seconds = 0.1
    await asyncio.gather(
        *(patched(api, f"{PODS}/a", "merge", {"metadata": {"labels": {f"l{n}": "x"}}}) for n in range(4))
    )
    assert set((await api.get(f"{PODS}/a")).json()["metadata"]["labels"]) == {"l0", "l1", "l2", "l3"}


async def test_a_wrong_configuration_is_refused(api: httpx2.AsyncClient, hook: Hook) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"sideEffects": "Unknown"}, "webhooks[0].sideEffects"),
        ({"admissionReviewVersions": ["v1beta1"]}, "webhooks[0].admissionReviewVersions"),
        ({"timeoutSeconds": 99}, "webhooks[0].timeoutSeconds"),
        ({"clientConfig": {"url": "http://127.0.0.1/"}}, "webhooks[0].clientConfig.url"),
    )
    for change, field in changes:
        answer = await api.post(path, json=configuration(hook, **change))
        assert answer.status_code == 422
        assert [c["field"] for c in answer.json()["details"]["causes"]] == [field]
