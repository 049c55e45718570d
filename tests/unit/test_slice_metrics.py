"""What an agent tells of slices is what their usage files say, other nodes' programs too, and can be read back."""

import asyncio
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from egpu.adapters.executors.process import Executor
from egpu.adapters.executors.record import ExecutorRecord
from egpu.adapters.slices import published as usage
from egpu.adapters.slices.pages import USAGE_DEVICE, USAGE_HEADER, USAGE_ROW, USAGE_ROWS_OFFSET, create_usage
from egpu.adapters.slices.published import parse_usage, read_usage
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.apps.agent.serving.pod_service import ServedContainer
from egpu.apps.agent.slice_metrics import MAX_PROCESSES, SliceMetrics
from egpu.apps.agent.slots.directories import USAGE_FILE, SlotRecord, Slots
from egpu.apps.dashboard import usage_sources
from egpu.apps.dashboard.config import DashboardConfig
from egpu.apps.dashboard.usage_sources import UsageSources, agent_url
from egpu.core.view import SliceKey, SliceUsage
from egpu_base.api.kubernetes import Pod, PodStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import CorruptData, Unavailable
from egpu_base.kubernetes import Change
from egpu_base.system.processes import Process, seconds_since_boot

MIB = 1024 * 1024
SHARE = CardShare(uuid="GPU-1", index=1, minor=1, core=50, memory_mib=512)


def write_usage(path: Path, *, used: int, peak: int = 0, refusals: int = 0, gpu_ns: int = 0, held_ns: int = 0) -> None:
    create_usage(path)
    figures = (used, peak, refusals, 0, 0, 0, 0, 0, gpu_ns, held_ns, 0)
    with path.open("r+b") as file:
        file.seek(USAGE_HEADER.size)
        file.write(USAGE_DEVICE.pack(*figures))


def told(slots: Slots, served: list[Any]) -> str:
    metrics = SliceMetrics(
        slots, node="n", node_ip="10.0.0.1", served=lambda: cast(list[Executor[ServedContainer]], served),
        findings=dict, cards=dict,
    )  # fmt: skip
    registry = CollectorRegistry(auto_describe=False)

    class Only(Collector):
        def collect(self) -> list[Metric]:
            return list(metrics.collect())

    registry.register(Only())
    return generate_latest(registry).decode()


def slot(
    slots: Slots, name: str, *, server: str = "", prepared_at: float = 0.0, core_limit: int = 0, latency: bool = False
) -> None:
    given = ContainerAllocation(
        provisioner="elasticgpu.io/vcuda", mode="shared", cards=(SHARE,), server=server, core_limit=core_limit,
        latency=latency,
    )  # fmt: skip
    record = SlotRecord(
        slot_id=name, namespace="team", pod=name, pod_uid=f"uid-{name}", container="app", generation=1,
        boot_id="", allocation=given, minors={}, server=server, prepared_at=prepared_at,
    )  # fmt: skip

    def fill(directory: Path) -> None:
        path = directory / USAGE_FILE
        write_usage(path, used=3 * MIB, peak=5 * MIB, refusals=2, gpu_ns=4_500_000_000, held_ns=1_500_000_000)

    slots.replace(record, fill)


class FakeExecutor:
    """As much of an executor as is told of."""

    def __init__(self, directory: Path, owner: ServedContainer) -> None:
        directory.mkdir()
        write_usage(directory / "usage", used=MIB)
        here = Process.of(1)
        self.directory = directory
        self.record = ExecutorRecord(
            name="pod-x", owner=owner, cards=(SHARE,), minors={}, pid=here.pid, start_time=here.start_time
        )


def test_what_a_container_uses_is_told_and_can_be_read_back(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "a", prepared_at=seconds_since_boot() - 100)
    text = told(slots, [])
    used = parse_usage(text)[SliceKey("team", "a", "app", "GPU-1")]
    assert (used.memory_bytes, used.peak_bytes, used.refusals) == (3 * MIB, 5 * MIB, 2)
    assert (used.gpu_seconds, used.throttled_seconds) == (4.5, 1.5)
    assert 100 <= used.age_seconds < 200
    assert used.idle_seconds == used.age_seconds, "it never launched anything"
    assert "# TYPE elasticgpu_container_throttled_seconds_total counter" in text
    assert 'node="n"' in text


def test_each_slice_has_its_quality_of_service_and_kind_as_labels(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "a")
    slot(slots, "b", core_limit=100, latency=True)
    served = FakeExecutor(
        tmp_path / "served", ServedContainer(namespace="team", pod="c", uid="u", container="app", peer="p", key="0")
    )
    lines = [line for line in told(slots, [served]).splitlines() if line.startswith("elasticgpu_container_info{")]
    words = {pod: next(line for line in lines if f'pod="{pod}"' in line) for pod in ("a", "b", "c")}
    assert 'qos="Guaranteed",work="batch"} 1.0' in words["a"]
    assert 'qos="Burstable",work="latency"} 1.0' in words["b"]
    assert 'qos="Guaranteed",work="batch"} 1.0' in words["c"]


def test_all_who_ask_are_told_the_same_share_and_asking_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "a")
    metrics = SliceMetrics(
        slots, node="n", node_ip="", served=list, findings=dict, cards=dict,
    )  # fmt: skip
    now = 0.0
    monkeypatch.setattr("egpu.apps.agent.slice_metrics.time.monotonic", lambda: now)

    def share() -> list[float]:
        found = [one for family in metrics.collect() for one in family.samples if one.name.endswith("_core_used_ratio")]
        return [one.value for one in found]

    metrics.sample()
    assert share() == [], "of one look nothing follows"
    now = 5.0
    write_usage(slots.usage_file("a"), used=MIB, gpu_ns=4_500_000_000 + 2_000_000_000)
    assert share() == []
    metrics.sample()
    now = 9.0
    write_usage(slots.usage_file("a"), used=MIB, gpu_ns=9_000_000_000)
    assert [share(), share()] == [[0.4], [0.4]]


def test_processes_are_told_of_by_the_pids_that_their_container_has(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "a")
    with slots.usage_file("a").open("r+b") as file:
        for number, used in enumerate((*range(40), 100)):
            file.seek(USAGE_ROWS_OFFSET + number * USAGE_ROW.size)
            bytes_by_class = (used * MIB, *[0] * 7)
            file.write(USAGE_ROW.pack(1, 0, 1000 + number, 0, 1, 1, 0, 2 * MIB, *[0] * 8, *bytes_by_class, *[0] * 8))
    text = told(slots, [])
    held = [min(2, used) for used in (*range(40), 100)]
    parked = parse_usage(text)[SliceKey("team", "a", "app", "GPU-1")].parked_bytes
    assert parked == sum(held) * MIB, "no process has more parked than it holds"
    told_of = [line for line in text.splitlines() if line.startswith("elasticgpu_process_memory_used_bytes{")]
    assert len(told_of) == MAX_PROCESSES
    assert 'container_pid="1040"' in told_of[0]
    assert told_of[0].endswith(f" {100.0 * MIB}") or told_of[0].endswith("1.048576e+08")
    used = parse_usage("\n".join(told_of))[SliceKey("team", "a", "app", "GPU-1")]
    assert used.processes[:2] == ((1040, 100 * MIB), (1039, 39 * MIB))


def test_of_a_slot_whose_age_nobody_wrote_down_no_history_is_told(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "a")
    text = told(slots, [])
    assert "elasticgpu_container_memory_used_bytes{" in text
    assert "elasticgpu_container_age_seconds{" not in text
    assert "elasticgpu_container_idle_seconds{" not in text


def test_a_program_of_another_node_is_told_of_where_its_card_is_and_nowhere_else(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "elsewhere", server="other-node", prepared_at=1.0)
    owner = ServedContainer(namespace="team", pod="far", uid="u", container="app", peer="server/n2", key="00")
    used = parse_usage(told(slots, [FakeExecutor(tmp_path / "served", owner)]))
    assert list(used) == [SliceKey("team", "far", "app", "GPU-1")]
    (one,) = used.values()
    assert one.memory_bytes == MIB
    assert one.age_seconds > 0


async def test_agents_are_found_by_their_pods_and_one_that_is_silent_takes_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(address: str, *, name: str = "elastic-gpu-agent", namespace: str = "gpus") -> Pod:
        meta = ObjectMeta(name=f"agent-{address}", namespace=namespace, labels={"app.kubernetes.io/name": name})
        return Pod(metadata=meta, status=PodStatus(pod_ip=address))

    pods = [at("10.0.0.1"), at("fd00::1"), at(""), at("10.0.0.2", name="other"), at("10.0.0.3", namespace="team")]
    ours = ["https://10.0.0.1:8083/metrics", "https://[fd00::1]:8083/metrics"]
    assert [url for pod in pods if (url := agent_url(pod, "gpus"))] == ours
    slots = Slots(tmp_path / "slots")
    slot(slots, "a")
    page = told(slots, []).encode()

    class Agent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = 200 if self.headers["Authorization"] == "Bearer t" else 401
            self.send_response(status)
            self.end_headers()
            self.wfile.write(page)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ports = [one.getsockname()[1] for one in (silent, server.socket)]
        monkeypatch.setattr(usage_sources, "agent_url", lambda pod, _: f"http://127.0.0.1:{pod.status.pod_ip}/metrics")
        (tmp_path / "token").write_text("t\n")
        asking = UsageSources(DashboardConfig(ask_agents=True, token_file=tmp_path / "token", usage=("/nowhere",)))
        agents = [at(str(port)) for port in ports]
        for pod in agents:
            asking.pod_changed(Change(None, pod))
        found = await asking.ask()
        assert list(found) == [SliceKey("team", "a", "app", "GPU-1")]
        assert (asking.asked, asking.silent) == (3, 2)
        (tmp_path / "token").write_text("another\n")
        assert await asking.ask() == {}, "old figures are not shown as new ones"
        assert (asking.asked, asking.silent) == (3, 3)
        asking.pod_changed(Change(agents[0], None))
        (tmp_path / "token").write_text("t\n")
        assert len(await asking.ask()) == 1
        assert (asking.asked, asking.silent) == (2, 1), "of a pod that is gone nothing is expected"
        server.shutdown()


async def test_an_agent_that_says_too_much_or_nothing_in_time_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(usage, "MAX_AGENT_BYTES", 1000)
    done = asyncio.Event()

    async def chatters(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"#" * 2000)
        await done.wait()
        writer.close()

    async def says_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    for handler, error in ((chatters, CorruptData), (says_nothing, Unavailable)):
        async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
            with pytest.raises(error):
                await usage.ask_agent(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics", token="")
            done.set()
            done.clear()


def test_what_a_prometheus_tells_is_read_part_by_part(tmp_path: Path) -> None:
    """It adds labels and the time, and its answer may be cut anywhere."""
    labels = 'container="a\\"}b",device_uuid="GPU-1",instance="x",job="j",namespace="n",pod="p"'
    lines = ["# TYPE elasticgpu_container_idle_seconds untyped"]
    lines += [f"elasticgpu_container_idle_seconds{{{labels}}} 7.5 1763900000000"]
    lines += [f"elasticgpu_container_memory_used_bytes{{{labels}}} 2.097152e+06 1763900000000", "up{} 1 1"]
    text = "\n".join(lines) + "\n"
    whole = parse_usage(text)
    assert whole == {SliceKey("n", "p", 'a"}b', "GPU-1"): SliceUsage(idle_seconds=7.5, memory_bytes=2 * MIB)}
    for cut in range(len(text)):
        reading = usage.Reading()
        reading.take(text[:cut])
        reading.take(text[cut:])
        assert reading.ended() == whole


@pytest.mark.parametrize(
    "text",
    [
        "elasticgpu_container_idle_seconds{pod=",
        'elasticgpu_container_idle_seconds{pod="p"} 1\n',
        'elasticgpu_container_memory_used_bytes{namespace="a",pod="p",container="c",device_uuid="u"} NaN\n',
    ],
)
def test_what_no_agent_would_publish_is_refused(text: str) -> None:
    with pytest.raises(CorruptData):
        parse_usage(text)


def test_a_file_is_read_and_one_that_is_not_there_said(tmp_path: Path) -> None:
    slots = Slots(tmp_path / "slots")
    slot(slots, "a", prepared_at=1.0)
    (tmp_path / "page").write_text(told(slots, []))
    assert len(read_usage([str(tmp_path / "page")])) == 1
    with pytest.raises(Unavailable):
        read_usage([str(tmp_path / "missing")])
