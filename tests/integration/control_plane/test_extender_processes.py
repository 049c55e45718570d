"""The control plane as real processes: they start, survive an API server that comes and goes, and stop cleanly."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from egpu.api import names
from egpu.api.objects import ElasticGPU
from egpu.api.webhooks import MutatingWebhookConfiguration
from egpu.apps.extender.job_mix import ANNOTATION
from egpu.laptop.installation import install
from egpu_base.api.kubernetes import Lease, Node
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes import Client
from egpu_sim.cluster import apiserver
from support.control_plane import CONFIGURATIONS, ControlPlane, asking, control_plane
from support.objects import card
from support.ports import free_port
from support.waiting import until

EGPU = [sys.executable, "-c", "from egpu.cli import main; main()"]


@asynccontextmanager
async def process(*arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    one = await asyncio.create_subprocess_exec(
        *EGPU, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield one
    finally:
        if one.returncode is None:
            one.kill()
        await one.communicate()


def extender_process(
    w: ControlPlane, health_port: int, port: int = 0
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    listens = f"--listen=127.0.0.1:{port}", f"--health-listen=127.0.0.1:{health_port}"
    return process("extender", f"--kubeconfig={w.kubeconfig}", *listens, *w.credentials.flags())


async def ready(port: int) -> bool:
    async with httpx2.AsyncClient(trust_env=False) as http:
        try:
            return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx2.HTTPError:
            return False


async def test_each_process_gets_ready_and_stops_on_sigterm(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        kubeconfig = f"--kubeconfig={w.kubeconfig}"
        admission, *ports = (free_port() for _ in range(4))
        w.services["elastic-gpu-webhook"] = "127.0.0.1", admission
        for configuration in CONFIGURATIONS:
            await w.client.create(type(configuration), configuration)
        listens = [f"--listen=127.0.0.1:{port}" for port in ports]
        async with (
            process("controller", kubeconfig, listens[0], "--webhook-service=elastic-gpu-webhook") as one,
            process("webhook", kubeconfig, listens[1], f"--webhook-listen=127.0.0.1:{admission}") as two,
            extender_process(w, ports[2]) as three,
        ):
            for port in ports:
                await until(lambda port=port: ready(port))
            assert await w.client.get(MutatingWebhookConfiguration, "elastic-gpu")
            for each in (one, two, three):
                each.send_signal(signal.SIGTERM)
            assert [await each.wait() for each in (one, two, three)] == [0, 0, 0]


async def test_a_process_that_cannot_listen_ends_with_one_clear_line(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        async with extender_process(w, port) as one:
            _, said = await one.communicate()
        taken.close()
        assert one.returncode not in (0, None)
        assert f"cannot listen on 127.0.0.1:{port}" in said.decode().splitlines()[-1]
        assert "Traceback" not in said.decode()


async def test_an_extender_that_is_taken_over_ends_with_an_error(tmp_path: Path):
    async with control_plane(tmp_path) as w:
        ports = [free_port(), free_port()]
        async with extender_process(w, ports[0]) as old:
            await until(lambda: ready(ports[0]))
            async with extender_process(w, ports[1]):
                await until(lambda: ready(ports[1]))
                assert await asyncio.wait_for(old.wait(), 15) not in (0, None)
                assert await ready(ports[1])


async def test_a_process_waits_for_an_api_server_that_is_not_there_yet(tmp_path: Path):
    """Without the CRDs every list fails: that does not end the process, and it is ready as soon as they are there."""
    port = free_port()
    async with (
        apiserver.serve(apiserver.Config(directory=tmp_path)) as server,
        process("controller", f"--kubeconfig={server.kubeconfig}", f"--listen=127.0.0.1:{port}") as one,
        Client.from_kubeconfig(server.kubeconfig) as client,
    ):
        await until(lambda: healthy(port))
        assert not await ready(port)
        await install(client)
        await until(lambda: ready(port))
        assert one.returncode is None


async def healthy(port: int) -> bool:
    async with httpx2.AsyncClient(trust_env=False) as http:
        try:
            return (await http.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
        except httpx2.HTTPError:
            return False


def asks(name: str, core: int, memory_mib: int, model: str = "") -> dict[str, Any]:
    limits = {names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory_mib)}
    spec: dict[str, Any] = {"containers": [{"name": "app", "image": "x", "resources": {"limits": limits}}]}
    if model:
        spec["nodeSelector"] = {"gpu": model}
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": spec}


NODES = ("n0", "n1", "n2", "n3")


async def decisions(w: ControlPlane, port: int) -> list[dict[str, int]]:
    """What the extender makes of some pods, by node: the questions change nothing."""
    found: list[dict[str, int]] = []
    async with asking(f"https://127.0.0.1:{port}", w.credentials) as http:
        for core in range(5, 100, 5):
            body = {"Pod": asks("probe", core, 100 * core), "NodeNames": list(NODES)}
            answer = (await http.post("/prioritize", json=body)).json()
            found.append({line["Host"]: line["Score"] for line in answer})
    return found


async def kept_arrivals(w: ControlPlane) -> int:
    lease = await w.client.get(Lease, "elastic-gpu-extender", namespace="elastic-gpu-system")
    return json.loads((lease.metadata.annotations or {}).get(ANNOTATION, '{"arrivals": 0}'))["arrivals"]


async def test_an_extender_killed_and_started_again_decides_as_before(tmp_path: Path):
    """It has learned which shapes come and which of them are bound to a model; SIGKILL does not make it forget."""
    async with control_plane(tmp_path) as w:
        for number, node in enumerate(NODES):
            made = Node(metadata=ObjectMeta(name=node, labels={"gpu": f"m{number % 2}"}))
            await w.client.create(Node, made)
            for index in range(2):
                await w.client.create(ElasticGPU, card(node, index, model=f"m{number % 2}"))
        health, port = free_port(), free_port()
        async with extender_process(w, health, port) as one:
            await until(lambda: ready(health), seconds=60)
            ignorant = await decisions(w, port)
            async with asking(f"https://127.0.0.1:{port}", w.credentials) as http:
                for number in range(40):
                    pod = asks(f"p{number}", 70, 9000) if number % 4 else asks(f"p{number}", 30, 6000, "m0")
                    await http.post("/filter", json={"Pod": pod, "NodeNames": list(NODES)})
            await until(lambda: arrived(w, 40), seconds=60)
            learned = await decisions(w, port)
            assert learned != ignorant, "what was learned makes a difference here"
            one.kill()
            await one.wait()
        async with extender_process(w, health, port):
            await until(lambda: ready(health), seconds=60)

            async def as_before() -> bool:
                return await decisions(w, port) == learned

            await until(as_before, seconds=60)  # prices are computed beside the service


async def arrived(w: ControlPlane, count: int) -> bool:
    return await kept_arrivals(w) == count
