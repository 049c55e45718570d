"""The simulated API server refuses what no role allows and what policies deny, and answers who may do what."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu_base.api.kubernetes import Node
from egpu_base.errors import Refused
from egpu_base.kubernetes import Client
from egpu_sim.cluster import apiserver
from egpu_sim.cluster.apiserver import User

USERS = {
    "ann": User("ann", ("makers", "system:authenticated")),
    "agent": apiserver.service_account("system", "agent", node="node-1"),
    "scheduler": User("system:kube-scheduler"),
    "kubelet": apiserver.node_user("node-1"),
}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"

Clients = dict[str, Client]


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncGenerator[Clients]:
    async with apiserver.serve(apiserver.Config(directory=tmp_path, users=USERS)) as server:
        found = {name: Client.from_kubeconfig(path) for name, path in server.kubeconfigs.items()}
        yield found
        for client in found.values():
            await client.close()


async def grant(admin: Client, subject: dict[str, str], *rules: dict[str, Any], namespace: str = "") -> None:
    kind, base = ("Role", f"{RBAC}/namespaces/{namespace}") if namespace else ("ClusterRole", RBAC)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "granted"}
    role = {"metadata": {"name": "granted"}, "rules": list(rules)}
    binding = {"metadata": {"name": "granted"}, "roleRef": reference, "subjects": [subject]}
    await admin.raw("POST", f"{base}/{kind.lower()}s", body=role)
    await admin.raw("POST", f"{base}/{kind.lower()}bindings", body=binding)


def rule(*verbs: str, of: str, group: str = "", names: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "resources": [of],
        "verbs": list(verbs),
        **({"resourceNames": [*names]} if names else {}),
    }


ANN = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}


def secret(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


async def test_nothing_is_allowed_that_no_role_allows(clients: Clients) -> None:
    ann = clients["ann"]
    for method, path in (("GET", PODS), ("GET", "/api/v1/nodes"), ("POST", PODS), ("DELETE", f"{PODS}/x")):
        with pytest.raises(Refused, match='User "ann" cannot'):
            await ann.raw(method, path, body={} if method == "POST" else None)
    with pytest.raises(Refused, match='cannot get path "/metrics"'):
        await ann.raw("GET", "/metrics")
    assert await ann.raw("GET", "/apis"), "discovery is everybody's"


async def test_a_role_of_a_namespace_holds_there_and_for_its_names_only(clients: Clients) -> None:
    admin, ann = clients["admin"], clients["ann"]
    secrets = "/api/v1/namespaces/default/secrets"
    await grant(admin, ANN, rule("get", "list", of="secrets", names=("hers",)), namespace="default")
    for name in ("hers", "other"):
        await admin.raw("POST", secrets, body=secret(name))
    assert (await ann.raw("GET", f"{secrets}/hers"))["metadata"]["name"] == "hers"
    assert len((await ann.raw("GET", secrets, params={"fieldSelector": "metadata.name=hers"}))["items"]) == 1
    for path in (f"{secrets}/other", secrets, "/api/v1/namespaces/kube-system/secrets/hers"):
        with pytest.raises(Refused, match="cannot"):
            await ann.raw("GET", path)
    with pytest.raises(Refused, match='cannot delete resource "secrets"'):
        await ann.raw("DELETE", f"{secrets}/hers")


async def test_what_is_given_and_taken_away_counts_at_once(clients: Clients) -> None:
    admin, ann = clients["admin"], clients["ann"]

    async def may_list() -> bool:
        try:
            await ann.raw("GET", PODS)
        except Refused:
            return False
        return True

    async def change_role(verb: str) -> None:
        body = {"metadata": {"name": "granted"}, "rules": [rule(verb, of="pods")]}
        await admin.raw("PUT", f"{RBAC}/clusterroles/granted", body=body)

    assert not await may_list()
    await grant(admin, ANN, rule("list", of="pods"))
    assert await may_list()
    await change_role("get")
    assert not await may_list()
    await change_role("list")
    assert await may_list()
    await admin.raw("DELETE", f"{RBAC}/clusterrolebindings/granted")
    assert not await may_list()


async def test_a_subresource_is_a_right_of_its_own(clients: Clients) -> None:
    admin, agent = clients["admin"], clients["agent"]
    await admin.raw("POST", "/api/v1/nodes", body={"metadata": {"name": "node-1"}})
    account = {"kind": "ServiceAccount", "name": "agent", "namespace": "system"}
    await grant(admin, account, rule("patch", of="nodes/status"))
    assert await agent.patch(Node, "node-1", {"status": {"capacity": {"x.y/z": "1"}}}, subresource="status")
    with pytest.raises(Refused, match='cannot patch resource "nodes"'):
        await agent.patch(Node, "node-1", {"spec": {"taints": None}})


async def test_reviews_answer_from_the_roles(clients: Clients) -> None:
    admin, ann = clients["admin"], clients["ann"]
    group = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "makers"}
    await grant(admin, group, {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}, rule("*", of="pods"))

    async def may(client: Client, kind: str, **spec: Any) -> bool:
        body = {"spec": spec}
        return (await client.raw("POST", f"/apis/authorization.k8s.io/v1/{kind}", body=body))["status"]["allowed"]

    pods, nodes = {"verb": "list", "resource": "pods"}, {"verb": "list", "resource": "nodes"}
    metrics = {"verb": "get", "path": "/metrics"}
    assert await may(ann, "selfsubjectaccessreviews", resourceAttributes=pods)
    assert not await may(ann, "selfsubjectaccessreviews", resourceAttributes=nodes)
    assert await may(admin, "subjectaccessreviews", user="x", groups=["makers"], nonResourceAttributes=metrics)
    assert not await may(admin, "subjectaccessreviews", user="x", groups=[], nonResourceAttributes=metrics)
    with pytest.raises(Refused, match="subjectaccessreviews"):
        await may(ann, "subjectaccessreviews", user="x", nonResourceAttributes=metrics)


async def test_a_token_is_reviewed_and_not_sent_back(clients: Clients, tmp_path: Path) -> None:
    token = yaml.safe_load((tmp_path / "agent.kubeconfig").read_text())["users"][0]["user"]["token"]
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    answer = await clients["admin"].raw("POST", reviews, body={"spec": {"token": token}})
    assert answer["status"]["authenticated"]
    assert answer["status"]["user"]["username"] == "system:serviceaccount:system:agent"
    assert answer["status"]["user"]["extra"] == {"authentication.kubernetes.io/node-name": ["node-1"]}
    assert token not in str(answer)
    answer = await clients["admin"].raw("POST", reviews, body={"spec": {"token": "made up"}})
    assert not answer["status"]["authenticated"]


def policy(*validations: str, **spec: Any) -> dict[str, Any]:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "DELETE"], "resources": ["secrets"]}]
    return {
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": text, "message": "not so"} for text in validations],
            **spec,
        },
    }


async def enforce(admin: Client, body: dict[str, Any], *actions: str) -> None:
    binding = {"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": [*actions]}}
    await admin.raw("POST", f"{ADMISSION}/validatingadmissionpolicies", body=body)
    await admin.raw("POST", f"{ADMISSION}/validatingadmissionpolicybindings", body=binding)


async def test_a_policy_denies_what_its_expression_says(clients: Clients) -> None:
    admin = clients["admin"]
    variables = [
        {"name": "it", "expression": "request.operation == 'DELETE' ? oldObject : object"},
        {"name": "name", "expression": "variables.it.metadata.name"},
    ]
    body = policy("!(variables.name in ['bad', 'worse'])", variables=variables)
    secrets = "/api/v1/namespaces/default/secrets"
    await admin.raw("POST", secrets, body=secret("bad"))
    await enforce(admin, body, "Deny")
    await admin.raw("POST", secrets, body=secret("good"))
    for method, path, sent in (("POST", secrets, secret("worse")), ("DELETE", f"{secrets}/bad", None)):
        with pytest.raises(Refused, match="ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not so"):
            await admin.raw(method, path, body=sent)


@pytest.mark.parametrize(("failure_policy", "denied"), [("Fail", True), ("Ignore", False)])
async def test_a_policy_that_cannot_be_told_counts_as_it_says(
    clients: Clients, failure_policy: str, denied: bool
) -> None:
    admin = clients["admin"]
    await enforce(admin, policy("object.missing == 1", failurePolicy=failure_policy), "Deny")
    create = admin.raw("POST", "/api/v1/namespaces/default/secrets", body=secret("s"))
    if denied:
        with pytest.raises(Refused, match="no such key: missing"):
            await create
    else:
        await create


async def test_a_policy_sees_who_asks_and_what_he_may(clients: Clients) -> None:
    admin, agent = clients["admin"], clients["agent"]
    node = "authentication.kubernetes.io/node-name"
    at_home = f"has(request.userInfo.extra) && request.userInfo.extra['{node}'][0] == object.metadata.name"
    trusted = "authorizer.group('x').resource('y').check('z').allowed()"
    await grant(admin, {"kind": "Group", "name": "system:serviceaccounts"}, rule("create", of="secrets"))
    await enforce(admin, policy(f"{trusted} || {at_home}"), "Deny")
    secrets = "/api/v1/namespaces/default/secrets"
    assert await admin.raw("POST", secrets, body=secret("any")), "the admin may do everything"
    assert await agent.raw("POST", secrets, body=secret("node-1"))
    with pytest.raises(Refused, match="not so"):
        await agent.raw("POST", secrets, body=secret("node-2"))


async def test_a_policy_that_this_server_cannot_evaluate_is_refused(clients: Clients) -> None:
    admin = clients["admin"]
    for body, words in (
        (policy("object.a.unheard() > 1"), "in the simulated API server: "),
        (policy("true", paramKind={"apiVersion": "v1", "kind": "ConfigMap"}), "parameters"),
        (policy(), "validations"),
    ):
        with pytest.raises(Refused, match=words):
            await admin.raw("POST", f"{ADMISSION}/validatingadmissionpolicies", body=body)
