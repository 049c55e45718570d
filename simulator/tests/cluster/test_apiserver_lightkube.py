"""The simulated API server through lightkube, the client library that the apps stand on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType

from egpu_sim.cluster.apiserver import Config, ServerHandle, node_user, serve
from support.waiting import DEADLINE_SECONDS


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerHandle]:
    async with serve(Config(tmp_path, users={"node-a": node_user("a")})) as handle:
        yield handle


def client(path: Path) -> AsyncClient:
    return AsyncClient(config=KubeConfig.from_file(str(path)), namespace="default")


def pod(name: str, **labels: str) -> Pod:
    spec = PodSpec(containers=[Container(name="main", image="busybox")])
    return Pod(metadata=ObjectMeta(name=name, labels=dict(labels)), spec=spec)


async def test_create_list_watch_patch_delete(server: ServerHandle) -> None:
    api = client(server.kubeconfig)
    await api.create(pod("a", app="x"))
    await api.create(pod("b", app="y"))
    names = [p.metadata.name async for p in api.list(Pod, labels={"app": "x"}) if p.metadata]
    assert names == ["a"]
    assert [p.metadata.name async for p in api.list(Pod, chunk_size=1) if p.metadata] == ["a", "b"]
    seen: list[tuple[str, str]] = []
    begun = asyncio.Event()

    async def watch() -> None:
        async for kind, obj in api.watch(Pod):
            seen.append((kind, str(obj.metadata and obj.metadata.name)))
            if len(seen) == 2:  # a watch begins with what is there
                begun.set()
            if kind == "DELETED":
                return

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await begun.wait()
    await api.patch(Pod, "a", {"metadata": {"labels": {"app": "z"}}}, patch_type=PatchType.MERGE)
    await api.delete(Pod, "a")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await watching
    assert seen[-1] == ("DELETED", "a")
    assert ("ADDED", "b") in seen
    with pytest.raises(ApiError) as error:
        await api.get(Pod, "a")
    assert error.value.status.code == 404


async def test_every_identity_has_its_kubeconfig(server: ServerHandle) -> None:
    assert set(server.kubeconfigs) == {"admin", "node-a"}
    node = client(server.kubeconfigs["node-a"])
    await node.create(Node(metadata=ObjectMeta(name="a")))
    later = client(server.add_user("later", node_user("later")))
    assert (await later.get(Node, "a")).metadata is not None
