"""What people look at, on a cluster of four nodes: the dashboard in a real browser, `egpu top` on a real terminal."""

import asyncio
import contextlib
import fcntl
import os
import pty
import random
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from egpu.adapters import native
from egpu.adapters.kubernetes.announced_usage import announced
from egpu.adapters.slices.pages import UsageReader
from egpu.adapters.slices.published import read_usage
from egpu.api import names
from egpu.api.allocation import decode_allocation
from egpu.cli.top import ALTERNATE, ORDINARY
from egpu.laptop import manifests
from egpu_base.api.kubernetes import Pod
from egpu_base.api.quantities import format_mib
from egpu_base.kubernetes import Client
from support.browser import CHROMIUM, browser
from support.commands import Place, up
from support.waiting import DEADLINE_SECONDS, until


@pytest.fixture(scope="module")
def facts() -> Iterator[dict[str, Any]]:
    """What `egpu up -o json` says of the cluster."""
    with tempfile.TemporaryDirectory(prefix="egpu-test-", dir="/tmp") as root:
        place = Place(Path(root))
        with up(place, "--nodes", "4", "--gpus", "1") as (_, said):
            yield {**said, "environment": place.environment(KUBECONFIG=said["kubeconfig"])}


def a_pod(name: str, *, command: Sequence[str] = ("sleep", "1000"), **limits: int) -> dict[str, Any]:
    asked = {f"elasticgpu.io/{key.replace('_', '-')}": value for key, value in limits.items()}
    container = {"name": "app", "image": "any", "command": list(command), "resources": {"limits": asked}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def start(kubeconfig: str, *pods: dict[str, Any]) -> None:
    async def work() -> None:
        async with Client.from_kubeconfig(kubeconfig) as client:
            await manifests.create(client, list(pods))

    asyncio.run(work())


def end(kubeconfig: str, name: str) -> None:
    async def work() -> None:
        async with Client.from_kubeconfig(kubeconfig) as client:
            await client.delete(Pod, name, namespace="default", grace_period_seconds=0)
            await until(lambda: _gone(client, name))

    asyncio.run(work())


async def _gone(client: Client, name: str) -> bool:
    return await client.find(Pod, name, namespace="default") is None


WHOLE_REASON = """(() => {
    const why = document.querySelector('td.why').getBoundingClientRect();
    const box = document.querySelector('.pending .scroll');
    return why.left >= 0 && why.right <= 400 && box.scrollWidth <= box.clientWidth;
})()"""
"""Nothing of a reason is cut off on a telephone."""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: chromium)")
def test_the_dashboard_shows_pods_as_they_come_and_go(facts: dict[str, Any], tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        page = tab()
        page.open(facts["dashboard"])
        page.until("document.querySelectorAll('.node').length === 4")
        assert "#" not in page.run("location.href"), "the token does not stay in the address"
        assert "No pod waits for cards" in page.text()

        start(facts["kubeconfig"], a_pod("first", gpu_core=60, gpu_memory=1024), a_pod("second", gpu=4))
        page.until("document.querySelectorAll('.bars .given').length === 2")
        page.until("document.querySelector('.summary').innerText.includes('15 %')")
        page.until("document.querySelector('.pending').innerText.includes('none of 4 nodes has room')")
        page.look(width=400)
        page.until(WHOLE_REASON)
        page.look(width=1280)
        page.run("document.querySelector('.pending a').click()")
        page.until("document.querySelectorAll('.refusals > li').length > 0")
        assert "app asks for 4 whole cards" in page.text()

        page.open(facts["dashboard"].partition("/login")[0] + "/fit?kind=cards&cards=1")
        assert "3 of 4 nodes have room for it" in page.text()
        page.run("document.querySelector('a.brand').click()")
        page.until("document.querySelectorAll('.bars .given').length === 2")
        for name in ("first", "second"):
            end(facts["kubeconfig"], name)
        page.until("document.querySelectorAll('.bars .given').length === 0")
        page.until("document.querySelector('.pending').innerText.includes('No pod waits')")
        page.run("document.querySelector('.cards a').click()")
        page.until("document.querySelector('#chart canvas') !== null")
        page.look(width=360)
        page.until(
            "document.documentElement.scrollWidth <= 360"
        )  # the chart is drawn anew; nothing is beside the screen

        assert page.complaints() == []
        dashboard = facts["dashboard"].partition("/login")[0]
        elsewhere = [url for url in page.requests() if not url.startswith((dashboard, "data:"))]
        assert elsewhere == []


SERVICE_PATH = "/api/v1/namespaces/elastic-gpu-system/services/https:elastic-gpu-dashboard:pages/proxy"


@contextlib.contextmanager
def service_proxy(dashboard: str) -> Generator[str]:
    """What `kubectl proxy` and the API server make of it together: below a path, with another host in the request and
    without credentials in its header; and of the cookie what a dashboard beyond loopback makes."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward(None)

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["Content-Length"])))

        def forward(self, body: bytes | None) -> None:
            kept = {name: value for name, value in self.headers.items() if name not in ("Host", "Authorization")}
            url = dashboard + self.path.removeprefix(SERVICE_PATH)
            with httpx2.Client(trust_env=False) as http:
                answer = http.request(self.command, url, content=body, headers={**kept, "Accept-Encoding": "identity"})
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                self.send_header(name, f"{value}; Secure" if name == "set-cookie" else value)
            self.end_headers()
            self.wfile.write(answer.content)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: chromium)")
def test_the_dashboard_behind_the_api_servers_proxy(facts: dict[str, Any], tmp_path: Path) -> None:
    dashboard, _, token = facts["dashboard"].partition("/login#token=")
    with service_proxy(dashboard) as host, browser(tmp_path) as tab:
        page = tab()
        page.open(f"{host}{SERVICE_PATH}/login#token={token}")
        page.until("document.querySelectorAll('.node').length === 4")
        page.run("document.querySelector('.cards a').click()")
        page.until("document.querySelector('#chart canvas') !== null")
        page.run("[...document.querySelectorAll('nav a')].find((a) => a.textContent === 'Bill').click()")
        page.until("document.body.innerText.includes('GPU-hours lost so far')")
        page.run("document.querySelector('.leave button').click()")
        page.until("document.querySelector('#login') !== null")
        assert page.complaints() == []
        asked = page.requests()
        assert all(url.startswith((f"{host}{SERVICE_PATH}/", "data:")) for url in asked), asked


def on_screen(
    environment: dict[str, str], size: tuple[int, int], script: Sequence[tuple[str, bytes]], *options: str
) -> tuple[str, int, bool]:
    """`egpu top` on a terminal of `size` columns and lines, each key pressed once a text was shown since the last: all
    that was written, the exit code, and whether the terminal is as it was."""
    ours, theirs = pty.openpty()
    columns, lines = size
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "egpu", "top", *options],
        env={**environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    shown, since, left = b"", 0, list(script)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while process.poll() is None:
        assert time.monotonic() < deadline, f"waits for {left[:1]}: {shown[since:].decode(errors='replace')}"
        if select.select([ours], [], [], 0.1)[0]:
            shown += os.read(ours, 1 << 16)
        if left and left[0][0].encode() in shown[since:]:
            since = len(shown)
            os.write(ours, left.pop(0)[1])
    while select.select([ours], [], [], 0.1)[0]:
        shown += os.read(ours, 1 << 16)
    same = termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    return shown.decode(errors="replace"), process.returncode, same


@pytest.mark.parametrize(("size", "leave", "code"), [((80, 24), b"q", 0), ((200, 60), b"\x03", 130)])
def test_top_on_a_terminal(facts: dict[str, Any], size: tuple[int, int], leave: bytes, code: int) -> None:
    start(facts["kubeconfig"], a_pod("waits", gpu=4))
    script = [
        ("q quit", b"G"),
        ("none of 4 nodes", b"e"),
        ("asks for 4 whole cards", b"\x1b"),
        ("q quit", b"/node-2\r"),
        ("filter: node-2", leave),
    ]
    shown, rc, same = on_screen(facts["environment"], size, script)
    end(facts["kubeconfig"], "waits")
    assert rc == code, shown[-500:]
    assert same, "the terminal is as it was"
    assert shown.count(ALTERNATE) == shown.count(ORDINARY) == 1
    assert "Traceback" not in shown
    assert "node-4" in shown


RBAC = "/apis/rbac.authorization.k8s.io/v1"


def test_commands_know_where_agents_tell_what_slices_use(facts: dict[str, Any]) -> None:
    """`egpu top` and `egpu bill` ask there without any option."""
    found = announced(Path(facts["kubeconfig"]))
    assert len(found.urls) == 4, "one for each node"
    assert found.token_file is not None
    assert read_usage(found.urls, token=found.token_file.read_text()) == {}, "no slice yet"


@contextlib.contextmanager
def viewer_of_one_namespace(facts: dict[str, Any]) -> Generator[str]:
    """A kubeconfig of the dashboard's viewer, who meanwhile may look at `default` alone."""
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "elastic-gpu-viewer"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"}
    binding = {"metadata": {"name": "viewer"}, "roleRef": reference, "subjects": [subject]}
    everywhere, here = f"{RBAC}/clusterrolebindings", f"{RBAC}/namespaces/default/rolebindings"

    async def may_look(at: str, not_at: str) -> None:
        async with Client.from_kubeconfig(facts["kubeconfig"]) as client:
            await client.raw("DELETE", f"{not_at}/viewer")
            await client.raw("POST", at, body=binding)

    config = yaml.safe_load(Path(facts["kubeconfig"]).read_text())
    config["users"][0]["user"] = {"token": facts["dashboard"].partition("#token=")[2]}
    file = Path(facts["kubeconfig"]).with_name("viewer.kubeconfig")
    file.write_text(yaml.safe_dump(config))
    asyncio.run(may_look(here, everywhere))
    try:
        yield str(file)
    finally:
        asyncio.run(may_look(everywhere, here))


def test_top_for_who_may_list_one_namespace(facts: dict[str, Any]) -> None:
    start(facts["kubeconfig"], a_pod("mine", gpu_core=60, gpu_memory=1024), a_pod("large", gpu=4))
    script = [
        ("you may not list", b"G"),
        ("on node-", b"g"),
        ("default/large", b"e"),
        ("0/4 nodes", b"\x1b"),
        ("q quit", b"q"),
    ]
    with viewer_of_one_namespace(facts) as kubeconfig:
        environment = {**facts["environment"], "KUBECONFIG": kubeconfig}
        shown, rc, same = on_screen(environment, (200, 60), script)
        piped, others = (
            subprocess.run(
                [sys.executable, "-m", "egpu", "top", *options],
                env=environment, capture_output=True, text=True, check=False,
            )
            for options in ([], ["-n", "kube-system"])
        )  # fmt: skip
    for name in ("mine", "large"):
        end(facts["kubeconfig"], name)
    assert (rc, same) == (0, True), shown[-500:]
    assert "card 0: 60 %" in shown
    assert "default/mine" in piped.stdout
    assert "not shown: you may not list elasticgpu" in piped.stderr
    assert others.returncode == 1
    assert 'cannot list resource "pods"' in others.stderr


HOLDS = [str(native.path("samples/egpu-sample-memory")), "--hold=100000"]
"""Takes all the memory that it may, and keeps it."""


def a_storm(kubeconfig: str) -> None:
    """Pods that come and go while others do, until some run and some wait."""
    rng = random.Random(5)
    for number in range(3):
        made = [
            a_pod(f"storm-{number}-{each}", command=HOLDS, gpu_core=rng.choice((10, 20, 30)),
                  gpu_memory=rng.choice((512, 700, 1500)))
            for each in range(4)
        ]  # fmt: skip
        start(kubeconfig, *made, a_pod(f"storm-{number}-waits", gpu=4 + number))
        for each in range(2) if number else ():
            asyncio.run(ended_at_once(kubeconfig, f"storm-{number - 1}-{each}"))


async def ended_at_once(kubeconfig: str, name: str) -> None:
    async with Client.from_kubeconfig(kubeconfig) as client:
        await client.delete(Pod, name, namespace="default", grace_period_seconds=0)


async def listed(kubeconfig: str) -> list[Pod]:
    async with Client.from_kubeconfig(kubeconfig) as client:
        return [pod for pod in await client.list(Pod) if names.DEMAND in pod.annotations]


Slices = dict[tuple[str, str, str], tuple[int, int, int]]
"""By node and card, pod, and container: percent and MiB given, and MiB used."""


def by_the_objects(pods: Sequence[Pod], state_dir: str) -> Slices:
    """What pods' annotations say was given, and the usage pages of their slots was used."""
    used = dict[tuple[str, str], int]()
    for file in Path(state_dir).glob("**/agent/slots/*/owner.json"):
        owner = msgspec.json.decode(file.read_bytes())
        devices = UsageReader(file.parent / "usage").read().devices
        used[owner["pod"], owner["container"]] = devices[0].memory_bytes >> 20 if devices else 0
    found: Slices = {}
    for pod in pods:
        if pod.spec.node_name:
            allocation = decode_allocation(pod.annotations[names.ALLOCATION])
            for container, given in allocation.containers.items():
                (share,) = given.cards
                key = f"{allocation.node}/{share.index}", f"{pod.namespace}/{pod.name}", container
                found[key] = share.core, share.memory_mib, used.get((pod.name, container), -1)
    return found


def by_the_page(page: str) -> Slices:
    """The rows of the dashboard's table of slices."""
    found: Slices = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        cells = [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        if len(cells) == 7:
            core, memory = cells[3].split(" %, ")
            used = cells[4].partition(" %, ")[2]
            found[cells[2], cells[0], cells[1]] = int(core), parse_mib(memory), parse_mib(used) if used else -1
    return found


def parse_mib(text: str) -> int:
    """As the page writes it."""
    return next(mib for mib in range(1 << 16) if format_mib(mib) == text)


def by_the_metrics(text: str) -> tuple[dict[tuple[str, str, str], tuple[int, int]], float]:
    """The controller's: what each container was given, likewise, and how many pods wait."""
    core, memory, waiting = dict[tuple[str, str, str], int](), dict[tuple[str, str, str], int](), 0.0
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name.startswith("elasticgpu_slice_"):
                said = one.labels
                key = f"{said['node']}/{said['device_index']}", f"{said['namespace']}/{said['pod']}", said["container"]
                if one.name.endswith("core_given_ratio"):
                    core[key] = round(100 * one.value)
                else:
                    memory[key] = int(one.value) >> 20
            elif one.name == "elasticgpu_cluster_pending_pods":
                waiting += one.value
    return {key: (core[key], memory[key]) for key in core}, waiting


async def test_after_a_storm_all_show_what_the_objects_and_the_usage_pages_say(facts: dict[str, Any]) -> None:
    await asyncio.to_thread(a_storm, facts["kubeconfig"])
    address, _, token = facts["dashboard"].partition("/login#token=")
    scraper = (Path(facts["stateDir"]) / "dashboard.token").read_text()
    said: list[object] = []

    async def agree() -> bool:
        pods = await listed(facts["kubeconfig"])
        expected = by_the_objects(pods, facts["stateDir"])
        waiting = sum(not pod.spec.node_name for pod in pods)
        async with httpx2.AsyncClient(trust_env=False, timeout=30.0) as http:
            workloads = await http.get(f"{address}/workloads", headers={"Authorization": f"Bearer {token}"})
            summary = await http.get(f"{address}/parts/summary", headers={"Authorization": f"Bearer {token}"})
            metrics = await http.get(facts["metrics"]["controller"], headers={"Authorization": f"Bearer {scraper}"})
        series, counted = by_the_metrics(metrics.text)
        shown = by_the_page(workloads.text)
        said[:] = expected, shown, series, waiting, counted
        given = {key: (core, memory) for key, (core, memory, _) in expected.items()}
        settled = all(used > memory - 64 for _, memory, used in expected.values())
        return (
            settled
            and shown == expected
            and series == given
            and counted == waiting >= 3
            and f"<dt>Pods waiting</dt><dd>{waiting}</dd>" in summary.text
            and len(expected) >= 6
        )

    await until(agree, lambda: f"they agree: {said}")
    for pod in await listed(facts["kubeconfig"]):
        await ended_at_once(facts["kubeconfig"], pod.name)
