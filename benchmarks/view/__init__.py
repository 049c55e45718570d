"""The cost of a look at a large cluster: the dashboard's first page, its updates, and scrapes of components with
metrics. A second dashboard knows the use of all slices.

    api_server  a cluster of several namespaces, in which some wait
    usage       the use of its pods

Beside the figures stands a floor of the same run: the dashboard's sign-in form, without data of the cluster.
"""

import http.client
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.extender.api_server import TENANT
from benchmarks.extender.caller import Caller, memory_mib, processor_seconds
from benchmarks.extender.processes import Process, component, make_certificates, said_its_port
from benchmarks.extender.world import CARDS_PER_NODE, KINDS, allocation, node_name, waiting
from benchmarks.report import Report, median
from benchmarks.view.usage import USAGE
from egpu.api import names

NODES, PODS = 5_000, 20_000
QUICK_NODES, QUICK_PODS = 500, 2_000
ROUNDS: Final = 15
SHOWN: Final = 4
"""Nodes that are on the map's first page, whatever its length."""
SETTLE_SECONDS: Final = 1.2
"""A view serves all requests within a second: later ones make a new one."""
IDLE_SECONDS: Final = 0.1
"""A process that uses less in a second has settled …"""
MOST_SETTLE_SECONDS: Final = 60.0
"""… and is measured then, settled or not."""
GOAL_PAGE_MS: Final = 300.0
GOAL_UPDATE_MS: Final = 100.0
GOAL_UPDATE_KB: Final = 50.0
GOAL_SCRAPE_SECONDS: Final = 2.0
GOAL_MEMORY_MIB: Final = 500.0
EVERYTHING: Final = "somebody"
"""The token of a user who may list everything."""
DASHBOARDS: Final = ("dashboard", "dashboard with use")


@dataclass(frozen=True)
class Got:
    """An answer: its duration, the server's processor time meanwhile, its bytes on the wire, and its text unless
    compressed."""

    seconds: float
    processor_seconds: float
    wire_bytes: int
    body: bytes
    status: int


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    nodes, pods = (QUICK_NODES, QUICK_PODS) if report.options.quick else (NODES, PODS)
    found: dict[str, Any] = {"nodes": nodes, "cards": nodes * CARDS_PER_NODE, "pods": pods}
    with tempfile.TemporaryDirectory(prefix="egpu-benchmark-") as place:
        folder = Path(place)
        make_certificates(folder)
        report.progress(f"{nodes} nodes, {pods} pods")
        with said_its_port("benchmarks.view.api_server", str(nodes), str(pods), str(folder)) as server:
            shown = sorted(map(node_name, range(nodes)))[:SHOWN]
            api = Caller(server.port, folder, server.pid)
            with api:
                for name, options in zip(DASHBOARDS, ((), ("--usage", str(folder / USAGE))), strict=True):
                    with component("dashboard", folder, server.port, *options) as dashboard:
                        found[name] = _look(api, dashboard, shown, name.replace(" ", "-"))
            for who in ("controller", "extender"):
                with component(who, folder, server.port) as process:
                    found[who] = _scrape(process)
    _tables(report, found)
    _verdicts(report, found)
    return found


def _look(api: Caller, dashboard: Process, shown: Sequence[str], prefix: str) -> dict[str, Any]:
    """Get the first page, also as a user who may list one namespace, then updates. Each update follows the binding of a
    pod, whose name begins with `prefix`, to a node on that page."""
    _settled(dashboard.pid)
    get = _Getter(dashboard)
    first = get("/")
    time.sleep(SETTLE_SECONDS)
    tenants = get("/", token=TENANT)
    pages, updates, floor = list[Got](), list[Got](), list[Got]()
    parts = _parts(get("/", compressed=False).body.decode())
    for number in range(ROUNDS):
        _bind(api, f"{prefix}-{number}", shown[number % SHOWN], number % CARDS_PER_NODE)
        time.sleep(SETTLE_SECONDS)
        answers = [get(address) for address in parts]
        if answers[1].status != 200:
            raise RuntimeError(f"the map did not change: {answers[1].status}")
        updates.append(_together(answers))
        pages.append(get("/"))
        parts = _parts(get("/", compressed=False).body.decode())
        floor.append(get("/login"))
    return {
        "first page": _summary([first]),
        "tenant's first page": _summary([tenants]),
        "page": _summary(pages),
        "update": _summary(updates),
        "floor": _summary(floor),
        "memory_mib": memory_mib(dashboard.pid),
        "peak_mib": _peak_mib(dashboard.pid),
    }


def _bind(api: Caller, name: str, node: str, column: int) -> None:
    """Make a pod, and bind it, as kube-scheduler and extender would."""
    kind = KINDS[2]
    api.post("/api/v1/namespaces/default/pods", msgspec.json.encode(waiting(name, kind)))
    annotations = {names.ALLOCATION: allocation(node, kind, [column])}
    binding = {"metadata": {"name": name, "annotations": annotations}, "target": {"name": node}}
    api.post(f"/api/v1/namespaces/default/pods/{name}/binding", msgspec.json.encode(binding))


def _scrape(process: Process) -> dict[str, Any]:
    _settled(process.pid)
    get = _Getter(process)
    scrapes = [get("/metrics", compressed=False) for _ in range(3)]
    lines = sum(not line.startswith(b"#") for line in scrapes[-1].body.splitlines())
    return {
        "scrape": _summary(scrapes),
        "series": lines,
        "memory_mib": memory_mib(process.pid),
        "peak_mib": _peak_mib(process.pid),
    }


class _Getter:
    """Asks one process over one connection, as a browser does."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._connection = http.client.HTTPConnection("127.0.0.1", process.monitoring_port, timeout=120)

    def __call__(self, path: str, *, compressed: bool = True, token: str = EVERYTHING) -> Got:
        """Get a page. Raises RuntimeError for anything but an answer or "nothing is new"."""
        headers = {"Authorization": f"Bearer {token}"} | ({"Accept-Encoding": "gzip"} if compressed else {})
        spent, began = processor_seconds(self._process.pid), time.perf_counter()
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        if answer.status not in (200, 204):
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        head = sum(len(name) + len(value) + 4 for name, value in answer.getheaders())
        cost = processor_seconds(self._process.pid) - spent
        return Got(took, cost, head + len(body), body, answer.status)


def _settled(pid: int) -> None:
    """Wait until a ready process has finished the rest of its start: a look at every claim and card, and prices."""
    deadline = time.monotonic() + MOST_SETTLE_SECONDS
    while time.monotonic() < deadline:
        spent = processor_seconds(pid)
        time.sleep(1)
        if processor_seconds(pid) - spent < IDLE_SECONDS:
            return


def _parts(page: str) -> list[str]:
    """Return the addresses of the page's live parts."""
    return [unescape(one).removeprefix(".") for one in re.findall(r'hx-get="([^"]+)"', page)]


def _together(answers: Sequence[Got]) -> Got:
    return Got(
        sum(one.seconds for one in answers),
        sum(one.processor_seconds for one in answers),
        sum(one.wire_bytes for one in answers),
        b"",
        200,
    )


def _summary(answers: Sequence[Got]) -> dict[str, float]:
    """Return the median of several, and the slowest."""
    return {
        "ms": median(one.seconds for one in answers) * 1e3,
        "slowest_ms": max(one.seconds for one in answers) * 1e3,
        "processor_ms": median(one.processor_seconds for one in answers) * 1e3,
        "kb": max(one.wire_bytes for one in answers) / 1e3,
    }


def _peak_mib(pid: int) -> float:
    """Return the peak resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmHWM")


def _tables(report: Report, found: dict[str, Any]) -> None:
    columns = ("", "ms", "slowest ms", "processor ms", "kB on the wire")
    pages = ("first page", "tenant's first page", "page", "update", "floor")
    rows = [(f"{name}: {what}", *found[name][what].values()) for name in DASHBOARDS for what in pages]
    rows += [(f"{who}: scrape, {found[who]['series']} series", *found[who]["scrape"].values())
             for who in ("controller", "extender")]  # fmt: skip
    report.table(f"{found['nodes']} nodes of {CARDS_PER_NODE} cards, {found['pods']} pods", columns, rows)
    sizes = [(who, found[who]["memory_mib"], found[who]["peak_mib"]) for who in (*DASHBOARDS, "controller", "extender")]
    report.table("memory", ("", "MiB", "at most, MiB"), sizes)


def _verdicts(report: Report, found: dict[str, Any]) -> None:
    for name in DASHBOARDS:
        looked = found[name]
        for page in ("first page", "tenant's first page"):
            took = looked[page]["ms"]
            report.verdict(f"{name}: {page}", f"{took:.0f} ms", f"at most {GOAL_PAGE_MS:g} ms", took <= GOAL_PAGE_MS)
        took, size, what = looked["update"]["ms"], looked["update"]["kb"], f"{name}: an update"
        report.verdict(what, f"{took:.0f} ms", f"at most {GOAL_UPDATE_MS:g} ms", took <= GOAL_UPDATE_MS)
        report.verdict(what, f"{size:.1f} kB", f"at most {GOAL_UPDATE_KB:g} kB", size <= GOAL_UPDATE_KB)
    for who in ("controller", "extender"):
        seconds = found[who]["scrape"]["slowest_ms"] / 1e3
        goal = f"at most {GOAL_SCRAPE_SECONDS:g} s"
        report.verdict(f"a scrape of the {who}", f"{seconds:.2f} s", goal, seconds <= GOAL_SCRAPE_SECONDS)
    for who in (*DASHBOARDS, "controller", "extender"):
        peak = found[who]["peak_mib"]
        goal = f"at most {GOAL_MEMORY_MIB:g} MiB"
        report.verdict(f"memory of the {who}", f"{peak:.0f} MiB", goal, peak <= GOAL_MEMORY_MIB)
