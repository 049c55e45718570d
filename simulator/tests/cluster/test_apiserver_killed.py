"""The simulated API server is killed and comes back, as one does that has etcd behind it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from egpu_sim.cluster.apiserver import Config, ServerHandle, serve
from support.waiting import until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MAPS = "/api/v1/namespaces/default/configmaps"
WIDGETS = "/apis/example.org/v1/namespaces/default/widgets"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ServerHandle]:
    async with serve(Config(tmp_path)) as running:
        yield running


def config_map(name: str, **meta: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}}


def definition() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": {"type": "object"}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": "example.org", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"}}
    metadata = {"name": "widgets.example.org"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {**spec, "versions": [version]},
    }


async def made(api: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await api.post(path, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_what_was_stored_is_there_again_and_revisions_go_on(
    server: ServerHandle, api: httpx2.AsyncClient
) -> None:
    await made(api, CRDS, definition())
    widget = await made(api, WIDGETS, {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "w"}})
    before = await made(api, MAPS, config_map("before"))
    server.listeners.append(lambda user, wanted, allowed: asked.append(wanted.verb))
    asked: list[str] = []
    await server.kill(away_seconds=0)
    assert (await api.get(f"{WIDGETS}/w")).json() == widget
    assert (await api.get(f"{MAPS}/before")).json() == before
    assert asked == ["get", "get"], "who listens hears of the next run's requests too"
    after = await made(api, MAPS, config_map("after"))
    revisions = [int(one["metadata"]["resourceVersion"]) for one in (before, after)]
    assert revisions[1] == revisions[0] + 1


async def test_while_it_is_away_connections_are_refused(server: ServerHandle, api: httpx2.AsyncClient) -> None:
    killing = asyncio.create_task(server.kill(away_seconds=3))

    async def refused() -> bool:
        try:
            await api.get("/readyz")
        except httpx2.ConnectError:
            return True
        except httpx2.HTTPError:  # what was open breaks first
            pass
        return False

    await until(refused, "nobody listens")
    await killing
    assert (await api.get("/readyz")).text == "ok"


async def test_a_watch_breaks_and_its_revision_is_too_old_afterwards(
    server: ServerHandle, api: httpx2.AsyncClient
) -> None:
    first = await made(api, MAPS, config_map("first"))
    seen = first["metadata"]["resourceVersion"]
    await made(api, MAPS, config_map("second"))
    async with api.stream("GET", MAPS, params={"watch": "1", "resourceVersion": seen}) as stream:
        lines = stream.aiter_lines()
        assert json.loads(await anext(lines))["object"]["metadata"]["name"] == "second"
        await server.kill(away_seconds=0)
        with pytest.raises(httpx2.HTTPError):
            await anext(lines)
    async with api.stream("GET", MAPS, params={"watch": "1", "resourceVersion": seen}) as stream:
        event = json.loads(await anext(stream.aiter_lines()))
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    held = (await api.get(MAPS)).json()["metadata"]["resourceVersion"]
    async with api.stream("GET", MAPS, params={"watch": "1", "resourceVersion": held}) as stream:
        await made(api, MAPS, config_map("third"))
        assert json.loads(await anext(stream.aiter_lines()))["object"]["metadata"]["name"] == "third"


async def test_what_an_owner_left_behind_is_deleted_by_the_next_run(
    server: ServerHandle, api: httpx2.AsyncClient
) -> None:
    owner = await made(api, MAPS, config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await made(api, MAPS, config_map("owned", ownerReferences=[reference]))
    await server.kill(away_seconds=0)
    await api.delete(f"{MAPS}/owner")

    async def gone() -> bool:
        return (await api.get(f"{MAPS}/owned")).status_code == 404

    await until(gone, "the owned one is deleted")


async def test_who_is_not_answered_has_written_nothing_or_all_of_it(
    server: ServerHandle, api: httpx2.AsyncClient
) -> None:
    body, sending, killed = json.dumps(config_map("late")).encode(), asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncGenerator[bytes]:
        yield body[:20]
        sending.set()
        await killed.wait()
        yield body[20:]

    writing = asyncio.create_task(api.post(MAPS, content=slowly(), headers={"content-type": "application/json"}))
    await sending.wait()
    await server.kill(away_seconds=0)
    killed.set()
    with pytest.raises(httpx2.HTTPError):
        await writing
    assert (await api.get(f"{MAPS}/late")).status_code == 404
