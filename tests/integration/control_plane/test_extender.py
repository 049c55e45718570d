"""The extender over real HTTP against the simulated API server: the wire format, and what must never happen."""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.apps.extender import Extender, ExtenderConfig, scheduler_config
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidInput
from egpu_base.http.listening import Listen
from egpu_base.kubernetes import Client
from egpu_base.runtime.supervisor import Supervisor
from egpu_base.tls.certificates import issue
from egpu_sim.cluster.apiserver import User
from support.control_plane import (
    ControlPlane,
    asking,
    binding,
    control_plane,
    extender,
    extender_config,
    nodes_known,
    reading,
    running,
    scheduled,
)
from support.waiting import DEADLINE_SECONDS, until

EXAMPLES = Path(__file__).parents[3] / "examples"


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
    (wanted,) = json.loads((EXAMPLES / "kube-scheduler" / "seed-scheduler-policy.json").read_text())["extenders"]
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
                assert await scheduled(http, busy, "n0") == {"Error": ""}
                ask = {"Pod": shared("p"), "NodeNames": ["n0", "n1"]}
                answer = (await http.post("/prioritize", json=ask)).json()
                assert all(0 < line["Score"] <= 10 for line in answer)
                scores[policy] = {"n0": 0, "n1": 0} | {line["Host"]: line["Score"] for line in answer}
        assert scores["binpack"]["n0"] > scores["binpack"]["n1"]
        assert scores["spread"]["n0"] < scores["spread"]["n1"]


async def test_malformed_requests_get_a_400_that_says_why(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (_, http):
        for path in ("/filter", "/prioritize", "/bind", "/preempt"):
            for body in (b"", b"{", b"[]", b'{"Pod": 7}', b'{"PodName": null}', b"\xff\xfe"):
                answer = await http.post(path, content=body)
                assert (path, body, answer.status_code) == (path, body, 400)
                assert "body" in answer.json()["Error"]
        assert (await http.post("/filter", json={"Pod": {}, "NodeNames": []})).status_code == 200


async def test_bind_errors_are_answers_and_explain_tells_both_stories(tmp_path: Path) -> None:
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        await w.node("n0")
        await nodes_known(one, 1)
        first, second = [await w.create(shared(name, core=80)) for name in ("a", "b")]
        for name, uid in (("b", second["metadata"]["uid"]), ("b", "another")):
            asked = {"Pod": {**second, "metadata": {"name": name, "uid": uid}}, "NodeNames": ["n0"]}
            await http.post("/filter", json=asked)
        assert await scheduled(http, first, "n0") == {"Error": ""}
        assert (await http.post("/bind", json=binding(first, "n0"))).json() == {"Error": ""}
        assert "20 percent" in (await http.post("/bind", json=binding(second, "n0"))).json()["Error"]
        wrong = {**binding(second, "n0"), "PodUID": "another"}
        assert "created again" in (await http.post("/bind", json=wrong)).json()["Error"]
        missing = {**binding(second, "n0"), "PodName": "nobody"}
        assert "nobody" in (await http.post("/bind", json=missing)).json()["Error"]
        assert (await http.post("/bind", json={**binding(second, "n0"), "Node": ""})).status_code == 400
        await until(lambda: (found := one.view.pods.get("a", "default")) and found.spec.node_name)
        async with reading(f"http://{one.health_address}", w.kubeconfig) as people:
            waiting = (await people.get("/explain", params={"namespace": "default", "pod": "b"})).json()
            assert waiting["state"] == "waiting"
            placed = (await people.get("/explain", params={"namespace": "default", "pod": "a"})).json()
            assert placed["state"] == "placed"
            assert (await people.get("/explain", params={"pod": "nobody"})).status_code == 404
            metrics = (await people.get("/metrics")).text
        assert 'elasticgpu_extender_binds_total{outcome="bound"}' in metrics
        assert "elasticgpu_extender_cards 1.0" in metrics


async def test_preempt_leaves_pods_with_cards_alone_and_lets_others_go_where_the_pod_has_its_cards(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        for node in ("n0", "n1", "n2"):
            await w.node(node)
        await nodes_known(one, 3)
        small = [await w.create(shared(f"s{number}", core=50)) for number in range(2)]
        for number, pod in enumerate(small):
            assert await scheduled(http, pod, f"n{number}") == {"Error": ""}
        plain = await w.create(manifest("plain"))
        uids = [pod["metadata"]["uid"] for pod in (*small, plain)]
        await until(lambda: all(one.view.pods.by_uid(uid) for uid in uids))
        victims = {
            "n0": {"Pods": [{"UID": uids[0]}], "NumPDBViolations": 0},
            "n1": {"Pods": [{"UID": uids[2]}], "NumPDBViolations": 0},
            "n2": {"Pods": [{"UID": uids[2]}], "NumPDBViolations": 0},
        }
        before = one.view.cache.ledger.snapshot()
        ask = {"Pod": manifest("big", **{names.NVIDIA_GPU: 1}), "NodeNameToMetaVictims": victims}
        answer = (await http.post("/preempt", json=ask)).json()
        assert answer["NodeNameToMetaVictims"] == {"n2": victims["n2"]}, "n1 has no card for it, n0's are ours to free"
        assert one.view.cache.ledger.snapshot() == before


async def test_not_ready_until_the_caches_are_in_and_refusing_to_bind_until_then(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, _):
        second = Extender(extender_config(w, leader_elect=True), w.client)
        task = asyncio.create_task(second.run(Supervisor(signals=())))
        try:
            await until(lambda: second.address is not None)
            async with (
                httpx2.AsyncClient(base_url=f"http://{second.health_address}", trust_env=False) as health,
                asking(f"https://{second.address}", w.credentials) as http,
            ):
                await until(lambda: _answers(health))
                assert (await health.get("/readyz")).status_code == 503
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
            second = Extender(extender_config(w), w.client)
            work = asyncio.create_task(storm(w, old, pods, ["n0", "n1"]))
            async with (
                running(second),
                asking(f"https://{second.address}", w.credentials) as new,
            ):
                await storm(w, new, list(reversed(pods)), ["n0", "n1"])
                await asyncio.gather(work, return_exceptions=True)
                totals = await given_out(w.client)
                assert [core for core, _ in totals.values()] == [60] * 4


async def test_nobody_is_let_in_without_the_schedulers_certificate_on_loopback_either(tmp_path: Path):
    """`curl` of any user of the machine could give pods to nodes, past their selectors and without a GPU."""
    async with control_plane(tmp_path) as w:
        with pytest.raises(InvalidInput, match="client-ca"):
            await Extender(ExtenderConfig(listen="127.0.0.1:0"), w.client).run(Supervisor(signals=()))
        await w.node("n0")
        pod = await w.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": SELECTIVE})
        stranger = issue(["127.0.0.1"], now=datetime.now(UTC), client="kube-scheduler")
        for name, content in (("crt", stranger.client_certificate), ("key", stranger.client_key)):
            (tmp_path / f"stranger.{name}").write_bytes(content)
        async with extender(w) as (one, _):
            await nodes_known(one, 1)
            bare = ssl.create_default_context(cafile=w.credentials.directory / "ca.crt")
            forged = ssl.create_default_context(cafile=w.credentials.directory / "ca.crt")
            forged.load_cert_chain(tmp_path / "stranger.crt", tmp_path / "stranger.key")
            for scheme, tls in (("http", bare), ("https", bare), ("https", forged)):
                async with httpx2.AsyncClient(verify=tls, trust_env=False) as http:
                    with pytest.raises(httpx2.HTTPError):
                        await http.post(f"{scheme}://{one.address}/bind", json=binding(pod, "n0"))
        assert not (await w.client.get(Pod, "p", namespace="default")).spec.node_name


SELECTIVE = {"containers": [{"name": "app", "image": "x"}], "nodeSelector": {"disk": "fast"}}


async def test_only_what_was_filtered_is_bound_and_an_extender_started_anew_asks_for_it_again(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        for node in ("n0", "n1"):
            await w.node(node)
        pod, other = [await w.create(shared(name)) for name in ("a", "b")]
        plain = await w.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": SELECTIVE})
        async with extender(w) as (one, http):
            await nodes_known(one, 2)
            for never in (plain, other):
                assert "not filtered" in (await http.post("/bind", json=binding(never, "n0"))).json()["Error"]
            await http.post("/filter", json={"Pod": pod, "NodeNames": ["n0"]})
            assert "the filter refused" in (await http.post("/bind", json=binding(pod, "n1"))).json()["Error"]
        async with extender(w) as (one, http):
            await nodes_known(one, 2)
            assert "schedule it again" in (await http.post("/bind", json=binding(pod, "n0"))).json()["Error"]
            assert await scheduled(http, pod, "n0") == {"Error": ""}
        for name in ("b", "p"):
            assert not (await w.client.get(Pod, name, namespace="default")).spec.node_name


async def test_bodies_larger_than_the_largest_cluster_needs_are_refused_before_they_are_read(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, http):
        await w.node("n0")
        await nodes_known(one, 1)
        names_of_15000 = [f"{number:05d}-{'n' * 247}" for number in range(15_000)]
        answer = await http.post("/filter", json={"Pod": shared("p"), "NodeNames": ["n0", *names_of_15000]})
        assert answer.json()["NodeNames"] == ["n0"]
        for path, size in (("/filter", 120 * 1024 * 1024), ("/preempt", 17 * 1024 * 1024), ("/bind", 32 * 1024)):
            sent = 0

            async def body(size: int = size) -> AsyncGenerator[bytes]:
                nonlocal sent
                while sent < size:
                    sent += 4096
                    yield b" " * 4096

            assert one.address is not None
            announced = await _raw_post(one.address, path, size, w)
            assert announced.startswith(b"HTTP/1.1 413"), "by its length alone, before a byte of it is there"
            try:
                answer = await http.post(path, content=body())
            except httpx2.HTTPError:
                continue  # the server answered and hung up while we were still sending
            assert answer.status_code == 413
            assert "larger" in answer.json()["Error"]
            assert sent <= size


async def _raw_post(address: Listen, path: str, length: int, w: ControlPlane) -> bytes:
    """The first line of the answer to a request whose body does not come."""
    tls = w.credentials.client_context()
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
    try:
        return await asyncio.wait_for(reader.readline(), DEADLINE_SECONDS)
    finally:
        writer.close()


async def test_metrics_and_explanations_are_for_those_who_may_read_them(tmp_path: Path):
    async with control_plane(tmp_path) as w, extender(w) as (one, _):
        nobody = w.server.add_user("jane", User("jane"))
        url = f"http://{one.health_address}"
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as http:
            for path in ("/healthz", "/readyz"):
                assert (await http.get(path)).status_code == 200
            for path in ("/metrics", "/explain?pod=a"):
                assert (await http.get(path)).status_code == 401
                assert (await http.get(path, headers={"Authorization": "Bearer guess"})).status_code == 401
        async with reading(url, nobody) as jane:
            for path in ("/metrics", "/explain?pod=a"):
                assert (await jane.get(path)).status_code == 403
        await w.client.raw("POST", BINDINGS, body=cluster_role_binding("elastic-gpu-metrics", "prometheus"))
        async with reading(url, w.server.add_user("prometheus", User("prometheus"))) as prometheus:
            assert "elasticgpu_extender_cards" in (await prometheus.get("/metrics")).text
            assert (await prometheus.get("/explain?pod=a")).status_code == 403


BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def cluster_role_binding(role: str, user: str) -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    return {"metadata": {"name": f"{user}-{role}"}, "roleRef": reference, "subjects": [subject]}


def test_the_scheduler_configuration_names_the_verbs_and_the_slot():
    configuration = scheduler_config(address="10.0.0.1:3456", kubeconfig="/k", pki="/pki")
    (ours,) = configuration["extenders"]
    assert ours["urlPrefix"] == "https://10.0.0.1:3456"
    assert ours["enableHTTPS"] is True
    assert ours["tlsConfig"] == {
        "serverName": "elastic-gpu-extender",
        "caFile": "/pki/ca.crt",
        "certFile": "/pki/client.crt",
        "keyFile": "/pki/client.key",
    }
    assert ours["managedResources"] == [{"name": names.SLOT, "ignoredByScheduler": False}]
    assert ours["bindVerb"] == "bind"
    assert ours["nodeCacheCapable"] is True
    assert configuration["percentageOfNodesToScore"] == 100
