"""The client and the reflector against the simulated API server, over real TLS sockets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from egpu_base.api.kubernetes import Container, Lease, LeaseSpec, Node, Pod, PodSpec
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import AlreadyExists, Conflict, Gone, InvalidInput, NotFound, Refused, Unavailable
from egpu_base.kubernetes import Change, Client, Reflector
from egpu_sim.cluster import apiserver
from support.waiting import until


def pod(name: str) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default"), spec=PodSpec(containers=[Container(name="c", image="i")])
    )


async def test_every_verb(tmp_path: Path):
    async with (
        apiserver.serve(apiserver.Config(directory=tmp_path)) as server,
        Client.from_kubeconfig(server.kubeconfig) as client,
    ):
        made = await client.create(Pod, pod("a"))
        with pytest.raises(AlreadyExists):
            await client.create(Pod, pod("a"))
        with pytest.raises(NotFound):
            await client.get(Pod, "b", namespace="default")
        assert await client.find(Pod, "b", namespace="default") is None
        with pytest.raises(Refused):
            await client.create(Pod, Pod(metadata=ObjectMeta(name="Not A Name", namespace="default")))

        stale = {"metadata": {"resourceVersion": made.metadata.resource_version, "annotations": {"k": "v"}}}
        assert (await client.patch(Pod, "a", stale, namespace="default")).annotations["k"] == "v"
        with pytest.raises(Conflict):
            await client.patch(Pod, "a", stale, namespace="default")
        status = {"status": {"phase": "Pending", "message": "hello"}}
        patched = await client.patch(Pod, "a", status, namespace="default", subresource="status")
        assert patched.status.message == "hello"

        await client.create(Node, Node(metadata=ObjectMeta(name="n")))
        with pytest.raises(Conflict):  # the resourceVersion is a precondition of a binding
            await client.bind(
                "a", "n", namespace="default", uid=made.uid, resource_version=made.metadata.resource_version
            )
        with pytest.raises(Conflict):
            await client.bind("a", "n", namespace="default", uid="another")
        fresh = await client.get(Pod, "a", namespace="default")
        version = fresh.metadata.resource_version
        await client.bind(
            "a", "n", namespace="default", uid=made.uid, resource_version=version, annotations={"given": "x"}
        )
        bound = await client.get(Pod, "a", namespace="default")
        assert (bound.spec.node_name, bound.annotations["given"]) == ("n", "x")
        with pytest.raises(Conflict):
            await client.bind("a", "n", namespace="default", uid=made.uid)

        assert [one.name for one in await client.list(Pod, fields="spec.nodeName=n")] == ["a"]
        with pytest.raises(Conflict):
            await client.delete(Pod, "a", namespace="default", uid="another")
        await client.delete(Pod, "a", namespace="default", grace_period_seconds=0)
        await client.delete(Pod, "a", namespace="default")  # gone already: fine

        lease = await client.create(
            Lease, Lease(metadata=ObjectMeta(name="l", namespace="default"), spec=LeaseSpec(holder_identity="me"))
        )
        other = replace(lease, spec=LeaseSpec(holder_identity="you"))
        assert (await client.replace(Lease, other)).spec.holder_identity == "you"
        with pytest.raises(Conflict):
            await client.replace(Lease, lease)


async def test_a_reflector_that_fell_behind_is_told_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with (
        apiserver.serve(apiserver.Config(directory=tmp_path, log_limit=8)) as server,
        Client.from_kubeconfig(server.kubeconfig) as client,
    ):
        for name in ("kept", "gone"):
            await client.create(Pod, pod(name))
        _, old = await client.list_at(Pod)
        seen: list[tuple[str, str]] = []

        def note(change: Change[Pod]) -> None:
            kind = "added" if change.old is None else "deleted" if change.new is None else "changed"
            seen.append((kind, change.subject.name))

        reflector = Reflector(client, Pod)
        reflector.on_change(note)
        task = asyncio.create_task(reflector.run())
        await asyncio.wait_for(reflector.synced.wait(), 5)
        task.cancel()  # it is cut off…
        await asyncio.gather(task, return_exceptions=True)
        await client.delete(Pod, "gone", namespace="default", grace_period_seconds=0)
        for number in range(20):  # …and history moves on without it
            await client.create(Pod, pod(f"new{number}"))
        with pytest.raises(Gone):
            async for _ in client.watch(Pod, resource_version=old):
                pass
        task = asyncio.create_task(reflector.run())
        await until(lambda: len(seen) >= 23)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert sorted(seen[:2]) == [("added", "gone"), ("added", "kept")]
        assert seen[2] == ("deleted", "gone")
        assert {name for _, name in seen[3:]} == {f"new{number}" for number in range(20)}


async def test_no_server_is_unavailable_and_no_kubeconfig_is_bad_input(tmp_path: Path):
    async with apiserver.serve(apiserver.Config(directory=tmp_path)) as server:
        client: Any = Client.from_kubeconfig(server.kubeconfig)
    with pytest.raises(Unavailable):
        await client.get(Pod, "a", namespace="default")
    await client.close()
    with pytest.raises(InvalidInput, match="missing"):
        Client.from_kubeconfig(tmp_path / "missing")
    (tmp_path / "odd").write_text("[]")
    with pytest.raises(InvalidInput, match="odd"):
        Client.from_kubeconfig(tmp_path / "odd")
