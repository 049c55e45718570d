"""Server-side apply over HTTP: who owns which field, what is a conflict, and what an apply takes back."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from test_apiserver_http import CRDS, PODS, created, patched, pod, widget, widget_definition

from egpu_sim.cluster.apiserver import Config, ServerHandle, serve

WIDGETS = "/apis/example.org/v1/namespaces/default/widgets"
CONFIG = "/api/v1/namespaces/default/configmaps/c"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ServerHandle]:
    async with serve(Config(tmp_path)) as handle:
        yield handle


async def applied(
    client: httpx2.AsyncClient, path: str, manager: str, config: dict[str, Any], **query: str
) -> httpx2.Response:
    return await client.patch(
        path,
        content=json.dumps(config),
        params={"fieldManager": manager, **query},
        headers={"content-type": "application/apply-patch+yaml"},
    )


def owners(obj: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """(manager, operation) → fields."""
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in obj["metadata"]["managedFields"]}


async def test_an_apply_creates_and_owns_what_it_says(api: httpx2.AsyncClient) -> None:
    answer = await applied(api, CONFIG, "me", {"data": {"a": "1"}})
    assert answer.status_code == 201
    assert owners(answer.json()) == {("me", "Apply"): {"f:data": {"f:a": {}}}}
    again = await applied(api, CONFIG, "me", {"data": {"a": "1"}})
    assert (again.status_code, again.json()) == (200, answer.json())


async def test_what_an_apply_says_no_longer_goes_unless_somebody_else_owns_it(api: httpx2.AsyncClient) -> None:
    await applied(api, CONFIG, "me", {"data": {"a": "1", "b": "1", "c": "1"}})
    await applied(api, CONFIG, "you", {"data": {"b": "1"}})
    left = (await applied(api, CONFIG, "me", {"data": {"a": "1"}})).json()
    assert left["data"] == {"a": "1", "b": "1"}
    assert (await applied(api, CONFIG, "you", {"data": {}})).json()["data"] == {"a": "1"}


async def test_a_conflict_names_managers_and_fields_and_can_be_forced(api: httpx2.AsyncClient) -> None:
    await applied(api, CONFIG, "me", {"data": {"a": "1", "b": "1"}})
    refused = await applied(api, CONFIG, "you", {"data": {"a": "2", "b": "2"}})
    assert refused.status_code == 409
    assert refused.json()["message"] == 'Apply failed with 2 conflicts: conflicts with "me":\n- .data.a\n- .data.b'
    assert [cause["field"] for cause in refused.json()["details"]["causes"]] == [".data.a", ".data.b"]
    forced = (await applied(api, CONFIG, "you", {"data": {"a": "2"}}, force="true")).json()
    assert forced["data"] == {"a": "2", "b": "1"}
    assert owners(forced) == {("me", "Apply"): {"f:data": {"f:b": {}}}, ("you", "Apply"): {"f:data": {"f:a": {}}}}


async def test_an_update_takes_the_fields_that_it_changes(api: httpx2.AsyncClient) -> None:
    await applied(api, CONFIG, "me", {"data": {"a": "1", "b": "1"}})
    changed = await patched(api, f"{CONFIG}?fieldManager=editor", "merge", {"data": {"a": "2"}})
    assert owners(changed)["editor", "Update"] == {"f:data": {"f:a": {}}}
    assert owners(changed)["me", "Apply"] == {"f:data": {"f:b": {}}}
    refused = await applied(api, CONFIG, "me", {"data": {"a": "1"}})
    assert 'conflict with "editor" using v1 at ' in refused.json()["message"]


async def test_lists_merge_by_their_keys(api: httpx2.AsyncClient) -> None:
    made = pod("a")
    made["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
    await created(api, f"{PODS}?fieldManager=maker", made)
    name = made["spec"]["containers"][0]["name"]
    config = {"metadata": {"annotations": {"x": "1"}}, "spec": {"containers": [{"name": name, "image": "other:2"}]}}
    refused = await applied(api, f"{PODS}/a", "me", config)
    assert f'.spec.containers[name="{name}"].image' in refused.json()["message"]
    forced = (await applied(api, f"{PODS}/a", "me", config, force="true")).json()
    assert [c["image"] for c in forced["spec"]["containers"]] == ["other:2"]
    assert forced["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    mine = owners(forced)["me", "Apply"]["f:spec"]["f:containers"]
    assert mine == {f'k:{{"name":"{name}"}}': {".": {}, "f:image": {}, "f:name": {}}}


async def test_the_status_of_a_custom_object_has_owners_of_its_own(api: httpx2.AsyncClient) -> None:
    await created(api, CRDS, widget_definition())
    await applied(api, f"{WIDGETS}/w", "me", widget("w"))
    status = {**widget("w"), "status": {"phase": "Ready"}}
    told = (await applied(api, f"{WIDGETS}/w/status", "teller", status)).json()
    (entry,) = [one for one in told["metadata"]["managedFields"] if one["manager"] == "teller"]
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {"f:status": {"f:phase": {}}}
    assert (await applied(api, f"{WIDGETS}/nobody/status", "teller", status)).status_code == 400


@pytest.mark.parametrize(
    ("config", "query", "status", "words"),
    [
        ({"data": {}}, {"fieldManager": ""}, 422, "fieldManager: Required value: is required for apply patch"),
        ({"metadata": {"name": "other"}}, {}, 400, "does not match the name on the URL"),
        ({"metadata": {"managedFields": [{}]}}, {}, 400, "metadata.managedFields must be nil"),
        ({"dta": {}}, {}, 500, ".dta: field not declared in schema"),
        ({"kind": "Secret"}, {}, 400, "invalid object type"),
    ],
)
async def test_what_cannot_be_applied(
    api: httpx2.AsyncClient, config: dict[str, Any], query: dict[str, str], status: int, words: str
) -> None:
    answer = await applied(api, CONFIG, "me", config, **query)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["message"]


async def test_a_dry_run_stores_nothing(api: httpx2.AsyncClient) -> None:
    answer = await applied(api, CONFIG, "me", {"data": {"a": "1"}}, dryRun="All")
    assert answer.json()["data"] == {"a": "1"}
    assert (await api.get(CONFIG)).status_code == 404


async def test_force_is_for_applies_alone(api: httpx2.AsyncClient) -> None:
    await applied(api, CONFIG, "me", {"data": {"a": "1"}})
    refused = await patched(api, f"{CONFIG}?force=true", "merge", {"data": {"a": "2"}}, code=422)
    assert "may not be specified for non-apply patch" in refused["message"]


@pytest.mark.parametrize("kind", ["apply", "merge", "json", "strategic-merge"])
async def test_a_patch_that_cannot_be_read_is_the_clients_fault(api: httpx2.AsyncClient, kind: str) -> None:
    await applied(api, CONFIG, "me", {"data": {"a": "1"}})
    media = f"application/{kind}-patch+{'yaml' if kind == 'apply' else 'json'}"
    answer = await api.patch(CONFIG, content=b'{"a": [', params={"fieldManager": "me"}, headers={"content-type": media})
    assert answer.status_code == 400, answer.text
