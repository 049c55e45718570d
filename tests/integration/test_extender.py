"""The extender over real HTTP against the embedded API server: the wire format, and what must never happen."""

import asyncio
import json
import random
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from egpu.adapters.certificates import issue
from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.api.kubernetes import Pod
from egpu.apps.extender import Extender, ExtenderConfig, scheduler_config
from egpu.errors import InvalidInput
from egpu.runtime.supervisor import Supervisor
from support.control_plane import ControlPlane, binding, control_plane, extender, nodes_known, running
from support.waiting import DEADLINE_SECONDS, until

EXAMPLES = Path(__file__).parents[2] / "examples"


def manifest(name: str, **limits: str | int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {names.DEMAND: '{"version":1,"containers":{}}'}},
        "spec": {
            "containers": [
                {"name": "app", "image": "x", "resources": {"limits": {key: str(v) for key, v in limits.items()}}}
            ]
        },
    }


def shared(name: str, core: int = 20, blocks: int = 10) -> dict[str, Any]:
    return manifest(name, **{names.DOCKER_VCUDA_CORE: core, names.DOCKER_VCUDA_MEMORY: blocks})


async def given_out(client: Client) -> dict[str, tuple[int, int]]:
    """Per card: percent and MiB, from what the API server holds."""
    total: dict[str, tuple[int, int]] = {}
    for pod in await client.list(Pod):
        if text := pod.annotations.get(names.ALLOCATION):
            for container in decode_allocation(text).containers.values():
                for share in container.cards:
                    core, memory = total.get(share.uuid, (0, 0))
                    total[share.uuid] = (core + share.core, memory + share.memory_mib)
    return total


async def test_filter_answers_with_names_of_the_input_only_and_changes_nothing(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        await w.node("n0", memory_mib=1024)
        await w.node("n1")
        await nodes_known(one, 2)
        pod = shared("p")
        ask = {"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n0", "stranger"]}
        before = one.view.cache.ledger.snapshot()
        for path in ("/filter", "/scheduler/filter", "/scheduler/predicates", "/predicates"):
            answer = (await http.post(path, json=ask)).json()
            assert answer["NodeNames"] == ["n1"]
            assert answer["Error"] == ""
            failed = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
            assert set(failed) == {"n0", "stranger"}
            assert "1024 MiB" in failed["n0"]
        assert "20 percent" in failed["n0"], "kube-scheduler takes a percent sign for the beginning of a verb"
        assert one.view.cache.ledger.snapshot() == before

        full = {"items": [{"metadata": {"name": name, "labels": {"keep": "me"}}} for name in ("n0", "n1")]}
        answer = (await http.post("/filter", json={"Pod": pod, "Nodes": full, "NodeNames": None})).json()
        assert answer["Nodes"]["items"] == [{"metadata": {"name": "n1", "labels": {"keep": "me"}}}]
        assert not answer["NodeNames"]

        plain = {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "app"}]}}
        answer = (await http.post("/filter", json={"Pod": plain, "NodeNames": ["n0", "n9"]})).json()
        assert answer["NodeNames"] == ["n0", "n9"]


async def test_the_vgpu_articles_policy_file_finds_what_it_asks_for(tmp_path: Path):
    (wanted,) = json.loads((EXAMPLES / "seed-scheduler-policy.json").read_text())["extenders"]
    path = f"{urlsplit(wanted['urlPrefix']).path}/{wanted['filterVerb']}"
    assert not wanted["nodeCacheCapable"], "so it sends, and wants back, whole nodes"
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        await w.node("n0", memory_mib=1024)
        await w.node("n1")
        await nodes_known(one, 2)
        nodes = {"items": [{"metadata": {"name": name}} for name in ("n0", "n1")]}
        answer = (await http.post(path, json={"Pod": shared("p"), "Nodes": nodes, "NodeNames": None})).json()
        assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["n1"]


async def test_prioritize_follows_the_policy_and_its_class(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        for node in ("n0", "n1"):
            await w.node(node)
        busy = await w.create(shared("busy"))
        scores: dict[str, dict[str, int]] = {}
        for policy in ("binpack", "spread"):
            async with extender(w, node_policy=policy) as (one, http):
                await nodes_known(one, 2)
                assert (await http.post("/bind", json=binding(busy, "n0"))).json() == {"Error": ""}
                ask = {"Pod": shared("p"), "NodeNames": ["n0", "n1"]}
                answer = (await http.post("/prioritize", json=ask)).json()
                assert all(0 <= line["Score"] <= 10 for line in answer)
                scores[policy] = {line["Host"]: line["Score"] for line in answer}
        assert scores["binpack"]["n0"] > scores["binpack"]["n1"]
        assert scores["spread"]["n0"] < scores["spread"]["n1"]


async def test_malformed_requests_get_a_400_that_says_why(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (_, http):
        for path in ("/filter", "/prioritize", "/bind", "/preempt"):
            for body in (b"", b"{", b"[]", b'{"Pod": 7}', b'{"PodName": null}', b"\xff\xfe"):
                answer = await http.post(path, content=body)
                assert (path, body, answer.status_code) == (path, body, 400)
                assert "body" in answer.json()["Error"]
        assert (await http.get("/healthz")).status_code == 200


async def test_bind_errors_are_answers_and_explain_tells_both_stories(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        await w.node("n0")
        await nodes_known(one, 1)
        first, second = [await w.create(shared(name, core=80)) for name in ("a", "b")]
        assert (await http.post("/bind", json=binding(first, "n0"))).json() == {"Error": ""}
        assert (await http.post("/bind", json=binding(first, "n0"))).json() == {"Error": ""}
        assert "20 percent" in (await http.post("/bind", json=binding(second, "n0"))).json()["Error"]
        wrong = {**binding(second, "n0"), "PodUID": "another"}
        assert "made again" in (await http.post("/bind", json=wrong)).json()["Error"]
        missing = {**binding(second, "n0"), "PodName": "nobody"}
        assert "nobody" in (await http.post("/bind", json=missing)).json()["Error"]
        assert (await http.post("/bind", json={**binding(second, "n0"), "Node": ""})).status_code == 400
        waiting = (await http.get("/explain", params={"namespace": "default", "pod": "b"})).json()
        assert waiting["state"] == "waiting"
        await until(lambda: (found := one.view.pods.get("a", "default")) and found.spec.node_name)
        placed = (await http.get("/explain", params={"namespace": "default", "pod": "a"})).json()
        assert placed["state"] == "placed"
        assert (await http.get("/explain", params={"pod": "nobody"})).status_code == 404
        metrics = (await http.get("/metrics")).text
        assert 'elasticgpu_extender_binds_total{outcome="bound"}' in metrics
        assert "elasticgpu_extender_cards 1.0" in metrics


async def test_preempt_keeps_the_nodes_where_the_victims_make_room(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        for node in ("n0", "n1"):
            await w.node(node)
        await nodes_known(one, 2)
        small = [await w.create(shared(f"s{number}", core=50)) for number in range(4)]
        for number, pod in enumerate(small):
            answer = (await http.post("/bind", json=binding(pod, f"n{number % 2}"))).json()
            assert answer == {"Error": ""}
        uids = [pod["metadata"]["uid"] for pod in small]
        victims = {
            "n0": {"Pods": [{"UID": uids[0]}, {"UID": uids[2]}], "NumPDBViolations": 0},
            "n1": {"Pods": [{"UID": uids[1]}], "NumPDBViolations": 0},
        }
        before = one.view.cache.ledger.snapshot()
        ask = {"Pod": manifest("big", **{names.NVIDIA_GPU: 1}), "NodeNameToMetaVictims": victims}
        answer = (await http.post("/preempt", json=ask)).json()
        assert answer["NodeNameToMetaVictims"] == {"n0": victims["n0"]}
        assert one.view.cache.ledger.snapshot() == before


async def test_not_ready_until_the_caches_are_in_and_refusing_to_bind_until_then(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, _):
        second = Extender(ExtenderConfig(listen="127.0.0.1:0", leader_elect=True), w.client)
        task = asyncio.create_task(second.run(Supervisor(signals=())))
        try:
            await until(lambda: second.address is not None)
            async with httpx2.AsyncClient(base_url=f"http://{second.address}", trust_env=False) as http:
                await until(lambda: _answers(http))
                assert (await http.get("/readyz")).status_code == 503
                ask = {"PodName": "a", "PodNamespace": "default", "PodUID": "u", "Node": "n"}
                assert "not ready" in (await http.post("/bind", json=ask)).json()["Error"]
                assert "not ready" in (await http.post("/filter", json={"Pod": {}, "NodeNames": []})).json()["Error"]
                await one.election.release()  # the first steps down in good order
                await until(lambda: second.not_ready() is None)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _answers(http: httpx2.AsyncClient) -> bool:
    try:
        return (await http.get("/healthz")).status_code == 200
    except httpx2.HTTPError:
        return False


async def storm(w: ControlPlane, http: httpx2.AsyncClient, pods: list[dict[str, Any]], nodes: list[str]) -> int:
    """A careless scheduler: filters and binds all pods at once, each on a random node that the filter granted."""

    async def one(pod: dict[str, Any]) -> int:
        for _ in range(3):
            granted = (await http.post("/filter", json={"Pod": pod, "NodeNames": nodes})).json()["NodeNames"]
            if not granted:
                return 0
            answer = await http.post("/bind", json=binding(pod, random.choice(granted)))
            if answer.json()["Error"] == "":
                return 1
        return 0

    return sum(await asyncio.gather(*map(one, pods)))


async def test_concurrent_binds_over_http_never_over_commit_and_give_everything_back(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        nodes = [f"n{number}" for number in range(3)]
        for node in nodes:
            await w.node(node, cards=2)
        await nodes_known(one, 3)
        rng = random.Random(7)
        pods = [await w.create(shared(f"p{n}", rng.choice([10, 30, 50, 70]), rng.randint(1, 30))) for n in range(60)]
        bound = await storm(w, http, pods, nodes)
        assert bound > 10
        totals = await given_out(w.client)
        assert all(core <= 100 and memory <= 16384 for core, memory in totals.values())
        held = {key: value for key, value in one.view.cache.ledger.holders().items() if key.kind == "pod"}
        assert len(held) == bound
        for pod in pods:
            await w.client.delete(Pod, pod["metadata"]["name"], namespace="default", grace_period_seconds=0)
        await until(lambda: one.view.cache.ledger.holders() == {})


async def test_extenders_killed_in_the_middle_of_a_storm_never_double_book(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        for node in ("n0", "n1"):
            await w.node(node, cards=2)
        pods = [await w.create(shared(f"p{number}", core=30)) for number in range(24)]
        for _ in range(6):
            async with extender(w) as (one, http):
                await nodes_known(one, 2)
                work = asyncio.create_task(storm(w, http, pods, ["n0", "n1"]))
                await asyncio.sleep(random.uniform(0.01, 0.2))
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            assert all(core <= 100 for core, _ in (await given_out(w.client)).values())
        async with extender(w) as (one, http):
            await nodes_known(one, 2)
            await storm(w, http, pods, ["n0", "n1"])
            totals = await given_out(w.client)
            assert [core for core, _ in totals.values()] == [90] * 4
            assert one.view.cache.problems() == []


async def test_two_extenders_alive_at_once_never_double_book(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        for node in ("n0", "n1"):
            await w.node(node, cards=2)
        pods = [await w.create(shared(f"p{number}", core=60)) for number in range(24)]
        async with extender(w) as (first, old):
            await nodes_known(first, 2)
            second = Extender(ExtenderConfig(listen="127.0.0.1:0"), w.client)
            work = asyncio.create_task(storm(w, old, pods, ["n0", "n1"]))
            async with (
                running(second),
                httpx2.AsyncClient(
                    base_url=f"http://{second.address}", trust_env=False, timeout=DEADLINE_SECONDS
                ) as new,
            ):
                await storm(w, new, list(reversed(pods)), ["n0", "n1"])
                await asyncio.gather(work, return_exceptions=True)
                totals = await given_out(w.client)
                assert [core for core, _ in totals.values()] == [60] * 4


async def test_beyond_loopback_only_clients_with_a_certificate_are_let_in(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        open_to_all = Extender(ExtenderConfig(listen="0.0.0.0:0"), w.client)
        with pytest.raises(InvalidInput, match="client-ca"):
            await open_to_all.run(Supervisor(signals=()))
        made = issue(["127.0.0.1"], now=datetime.now(UTC))
        files = {name: tmp_path / name for name in ("ca", "cert", "key")}
        for name, content in (("ca", made.ca_bundle), ("cert", made.certificate), ("key", made.key)):
            files[name].write_bytes(content)
        config = ExtenderConfig(
            listen="127.0.0.1:0", tls_cert=files["cert"], tls_key=files["key"], client_ca=files["ca"]
        )
        one = Extender(config, w.client)
        async with running(one):
            trusting = ssl.create_default_context(cafile=str(files["ca"]))
            async with httpx2.AsyncClient(verify=trusting, trust_env=False) as http:
                with pytest.raises(httpx2.HTTPError):
                    await http.get(f"https://{one.address}/healthz")


def test_the_scheduler_configuration_names_the_verbs_and_the_slot():
    configuration = scheduler_config(url="http://127.0.0.1:3456/", kubeconfig="/k")
    (extender_config,) = configuration["extenders"]
    assert extender_config["managedResources"] == [{"name": names.SLOT, "ignoredByScheduler": False}]
    assert extender_config["bindVerb"] == "bind"
    assert extender_config["nodeCacheCapable"] is True
    assert configuration["percentageOfNodesToScore"] == 100
