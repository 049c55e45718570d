"""The last act of an agent: with its rights it cleans the node, without them it has kubelet refuse."""

import asyncio
import random
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from egpu.apps.agent.farewell import Farewell
from egpu_base.errors import TerminalError, Unavailable
from egpu_sim.cluster.kubelet.devices import DeviceManager
from egpu_sim.cluster.kubelet.objects import Pod
from support.fake_api import FakeAPI, Json, status
from support.waiting import until

OURS = ("elasticgpu.io/gpu-core", "nvidia.com/gpu")
PATH = "/apis/apps/v1/namespaces/gpus/daemonsets/agent"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="egpu-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
async def kubelet(short: Path) -> AsyncGenerator[DeviceManager]:
    manager = DeviceManager(short, rng=random.Random(1), on_change=lambda: None)
    await manager.start()
    yield manager
    await manager.stop()


def cluster(**daemon_set: Any) -> FakeAPI:
    api = FakeAPI()
    amounts = {"cpu": "8", **dict.fromkeys(OURS, "100")}
    conditions = [{"type": "ElasticGPUReady", "status": "True"}, {"type": "Ready", "status": "True"}]
    state = {"capacity": amounts, "allocatable": amounts, "conditions": conditions}
    api.put("nodes", {"kind": "Node", "metadata": {"name": "n0"}, "status": state})
    api.put("daemonsets", {"kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "gpus", **daemon_set}})
    return api


def farewell(api: FakeAPI, directory: Path) -> Farewell:
    return Farewell(api.client(), "n0", daemon_set="gpus/agent", kubelet_dir=directory, offered=lambda: OURS)


def offered(api: FakeAPI) -> Json:
    return api.get("nodes", "n0")["status"]["capacity"]


async def test_an_agent_that_is_replaced_leaves_everything(kubelet: DeviceManager, short: Path) -> None:
    api = cluster()
    one = farewell(api, short)
    await one.learn()
    await one.end()
    assert offered(api)["elasticgpu.io/gpu-core"] == "100"
    assert kubelet.capacity() == ({}, {})


def gone(api: FakeAPI) -> None:
    api.remove("daemonsets", "agent", "gpus")


def leaving(api: FakeAPI) -> None:
    api.put(
        "daemonsets", {"metadata": {"name": "agent", "namespace": "gpus", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )


@pytest.mark.parametrize("removed", [gone, leaving])
async def test_an_agent_that_is_removed_takes_its_amounts_along(
    removed: Callable[[FakeAPI], None], kubelet: DeviceManager, short: Path
) -> None:
    api = cluster()
    one = farewell(api, short)
    await one.learn()
    removed(api)
    await one.end()
    assert offered(api) == {"cpu": "8"}
    assert api.get("nodes", "n0")["status"]["conditions"] == [{"type": "Ready", "status": "True"}]
    assert kubelet.capacity() == ({}, {}), "kubelet need not be told"


async def test_amounts_of_another_plugin_stay(kubelet: DeviceManager, short: Path) -> None:
    api = cluster()
    one = Farewell(
        api.client(),
        "n0",
        daemon_set="gpus/agent",
        kubelet_dir=short,
        offered=lambda: OURS[:1],
        others=lambda: {"nvidia.com/gpu"},
    )
    await one.learn()
    gone(api)
    await one.end()
    assert offered(api) == {"cpu": "8", "nvidia.com/gpu": "100"}


@pytest.mark.parametrize("code", [401, 403])
async def test_without_rights_kubelet_refuses_whoever_asks(code: int, kubelet: DeviceManager, short: Path) -> None:
    api = cluster()
    one = farewell(api, short)
    await one.learn()
    api.fault = lambda _api, _request: status(code, "Forbidden", 'User "agent" cannot get this')
    await one.end()
    assert offered(api)["elasticgpu.io/gpu-core"] == "100", "what the API server says now is kubelet's to change"
    assert kubelet.capacity() == (dict.fromkeys(OURS, 0), dict.fromkeys(OURS, 0))
    limits = {"elasticgpu.io/gpu-core": "10"}
    spec = {"containers": [{"name": "a", "image": "b", "resources": {"limits": limits, "requests": limits}}]}
    pod = msgspec.convert({"kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}, Pod)

    async def refused() -> bool:
        try:
            await kubelet.allocate(pod)
        except Unavailable:
            return False  # the plugin's end is not noticed yet
        except TerminalError as error:
            return "no healthy devices" in str(error)
        raise AssertionError("the pod runs without a GPU")

    await until(refused)


@pytest.mark.parametrize("code", [403, 500])
async def test_an_agent_that_never_could_ask_changes_nothing(code: int, kubelet: DeviceManager, short: Path) -> None:
    """As with the roles of an older version, or an API server that does not answer."""
    api = cluster()
    api.fault = lambda _api, request: status(code, "x", "no") if "daemonsets" in str(request.url) else None
    one = farewell(api, short)
    learning = asyncio.create_task(one.learn())
    await asyncio.sleep(0.1)
    learning.cancel()
    await asyncio.gather(learning, return_exceptions=True)
    await one.end()
    assert offered(api)["elasticgpu.io/gpu-core"] == "100"
    assert kubelet.capacity() == ({}, {})


async def test_a_silent_api_server_is_no_removal(kubelet: DeviceManager, short: Path) -> None:
    api = cluster()
    one = farewell(api, short)
    await one.learn()

    def silent(_api: FakeAPI, request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("away", request=request)

    api.fault = silent
    await one.end()
    assert kubelet.capacity() == ({}, {})
