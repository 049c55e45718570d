"""The dashboard against the simulated API server: who gets in, what he sees, and what an answer carries."""

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import httpx2
import pytest
from msgspec.structs import replace

from egpu.adapters.slices.published import parse_usage
from egpu.api import names
from egpu.api.allocation import encode
from egpu.api.objects import ElasticGPU
from egpu.apps.dashboard import DashboardConfig
from egpu.apps.dashboard.access import Access
from egpu.apps.dashboard.app import Dashboard
from egpu.apps.dashboard.pages import Pages
from egpu.apps.dashboard.rendering import render
from egpu.apps.dashboard.sessions import SESSION_SECONDS, Sessions
from egpu_base.api.kubernetes import Node, NodeStatus, Pod
from egpu_base.api.objects import Condition, ObjectMeta
from egpu_base.api.quantities import Quantity
from egpu_base.kubernetes import Reflector
from egpu_sim.cluster.apiserver import User
from support.control_plane import ControlPlane, control_plane, everything_in, running
from support.objects import CORE, MEMORY, card, cluster, container, place, placed, pod
from support.ports import free_port
from support.waiting import until

MARKUP = "<script>alert(1)</script>"
CARD = "node=n0&uuid=GPU-n0-0"
PAGES = (
    *("/", "/workloads", "/bill", f"/card?{CARD}", "/pod?namespace=open&name=open-runs", "/policy", "/fit?core=30"),
    *(f"/history?{CARD}", "/parts/map", "/parts/summary", "/parts/pending", "/parts/workloads", "/parts/bill"),
)
GIVEN_BY_HAND = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/elastic-gpu-allocations"


@dataclass
class Served:
    plane: ControlPlane
    dashboard: Dashboard
    url: str
    http: httpx2.AsyncClient
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    async def get(self, path: str, user: str = "", *, cookie: str = "") -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.tokens[user]}"} if user else {}
        if cookie:
            headers["Cookie"] = cookie
        return await self.http.get(self.url + path, headers=headers)

    async def text(self, path: str, user: str) -> str:
        answer = await self.get(path, user)
        assert answer.status_code == 200, (path, answer.text)
        return answer.text


def waits(name: str, namespace: str, core: int) -> Pod:
    """A pod as it is after admission, for which there is no room, or nobody has looked yet."""
    one = pod(name, container("app", {CORE: core, MEMORY: 10}), namespace=namespace)
    demand = {names.DEMAND: encode(cluster(nodes=1, cards=1).request(one).demand)}
    return replace(one, metadata=replace(one.metadata, annotations=demand))


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Served]:
    """One node with a card whose model is markup; a pod of `open` and one of `secret` have some of it, one of each
    waits. `tenant` owns `open` and nothing else, `nobody` has no rights."""
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(control_plane(tmp_path))
        await plane.client.raw("DELETE", GIVEN_BY_HAND)  # there is no extender
        offered: dict[str, Quantity] = {
            names.GPU_CORE: "100",
            names.GPU_MEMORY: "16384",
            names.NVIDIA_GPU: "1",
            names.SLOT: "48",
            "pods": "9",
        }
        conditions = [Condition(type="Ready", status="True")]
        ready = NodeStatus(conditions=conditions, capacity=offered, allocatable=offered)
        await plane.client.create(Node, Node(metadata=ObjectMeta(name="n0"), status=ready))
        await plane.client.create(ElasticGPU, card("n0", 0, model=MARKUP))
        cache = cluster(nodes=1, cards=1)
        for namespace in ("open", "secret"):
            await plane.client.raw("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
            runs = pod(f"{namespace}-runs", container("app", {CORE: 30, MEMORY: 10}), namespace=namespace)
            runs = placed(runs, place(cache, runs, "n0"))
            cache.pod_changed(runs)
            for one in (runs, waits(f"{namespace}-waits", namespace, 70)):
                await plane.client.create(Pod, one, namespace=namespace)
        await everything_in(plane.client, "open", "tenant")
        listen = f"127.0.0.1:{free_port()}"
        dashboard = Dashboard(
            DashboardConfig(listen=listen, node_policy="binpack", card_policy="binpack"), plane.client
        )
        await stack.enter_async_context(running(dashboard))
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=30.0))
        everyone = {"admin": ("system:masters",), "tenant": (), "nobody": ()}
        tokens = {name: plane.server.add_token(User(name, groups)) for name, groups in everyone.items()}
        yield Served(plane, dashboard, f"http://{listen}", http, tokens)


async def test_only_health_and_the_form_are_open(served: Served) -> None:
    served.tokens["stranger"] = "made-up"
    for path in PAGES:
        browsing = await served.http.get(served.url + path, headers={"Accept": "text/html"})
        without, wrong = await served.get(path), await served.get(path, "stranger")
        for refused in (browsing, without, wrong):
            assert (refused.status_code, refused.headers.get("www-authenticate")) == (401, "Bearer"), path
            assert not re.search("n0|open|secret", refused.text), path
        assert 'action="./login"' in browsing.text, path
        assert (await served.get(path, "admin")).status_code == 200, path
    assert (await served.get("/healthz")).text == "ok\n"
    for path in ("/healthz", "/login", "/nowhere", "/static/dashboard.css", *PAGES):
        policy = (await served.get(path, "admin")).headers["content-security-policy"]
        assert "script-src 'self'" in policy, path
        assert "unsafe" not in policy, path


async def test_what_a_user_may_not_list_he_does_not_see(served: Served) -> None:
    for path in PAGES:
        answer = await served.get(path, "tenant")
        assert "secret" not in answer.text, path
    workloads = await served.text("/workloads", "tenant")
    assert "open/open-waits" in workloads
    assert "GPU-n0-0" not in await served.text("/", "tenant"), "he may not list cards"
    assert (await served.get("/pod?namespace=open&name=open-runs", "tenant")).status_code == 200
    for path in ("/pod?namespace=secret&name=secret-runs", f"/card?{CARD}"):
        assert (await served.get(path, "tenant")).status_code == 404, path
    assert "open" not in await served.text("/workloads", "nobody")
    everything = await served.text("/workloads", "admin")
    for name in ("open/open-runs", "secret/secret-runs", "open/open-waits", "secret/secret-waits"):
        assert name in everything


async def test_markup_in_names_stays_text(served: Served) -> None:
    for path in (*PAGES, f"/?{urlencode({'q': MARKUP})}", f"/fit?{urlencode({'core': MARKUP, 'select': MARKUP})}",
                 f"/pod?{urlencode({'namespace': MARKUP, 'name': MARKUP})}"):  # fmt: skip
        assert MARKUP not in (await served.get(path, "admin")).text, path
    page = await served.text("/", "admin")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert not re.search(r"<script>|\son\w+=|style=", page), "its policy would not let it run"


async def test_a_part_is_sent_where_it_has_changed(served: Served) -> None:
    page = await served.text("/", "admin")
    addresses = [one.replace("&amp;", "&") for one in re.findall(r'hx-get="([^"]+)"', page)]
    parts = {one.partition("?")[0].removeprefix("."): one.removeprefix(".") for one in addresses}
    assert set(parts) == {"/parts/summary", "/parts/map", "/parts/pending"}
    assert (await served.get(parts["/parts/map"], "admin")).status_code == 204
    await served.plane.client.delete(Pod, "secret-runs", namespace="secret", grace_period_seconds=0)
    await until(lambda: _changed(served, parts["/parts/map"]))
    assert "secret" not in await served.text("/parts/map", "admin")


async def _changed(served: Served, address: str) -> bool:
    return (await served.get(address, "admin")).status_code == 200


async def test_no_page_reads_all_pods(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept packed; of a large cluster it takes a second."""

    def read_all(them: Reflector[Pod]) -> Iterator[Pod]:
        assert them.kind is not Pod
        return iter(them._objects)

    await until(lambda: _has(served, "/pod?namespace=open&name=open-waits", "admin", "card 0"))
    monkeypatch.setattr(Reflector, "__iter__", read_all)
    for path in ("/", "/workloads", "/bill", "/pod?namespace=secret&name=secret-waits", "/fit?core=30&memory=10"):
        assert (await served.get(path, "admin")).status_code == 200, path


async def test_a_demand_is_placed_in_thought(served: Served) -> None:
    fits = await served.text("/fit?kind=vcuda&core=30&memory=1024", "admin")
    assert "1 of 1 nodes have room for it" in fits
    refused = await served.text("/fit?kind=cards&cards=1", "admin")
    assert "none of 1 nodes has room" in refused
    assert "card 0" in refused
    wrong = await served.text("/fit?kind=vcuda&core=30&memory=99999", "admin")
    assert "spec.containers[app].resources.limits[elasticgpu.io/gpu-memory]" in wrong
    assert "You may not list nodes and cards" in await served.text("/fit?core=30", "tenant")
    assert len(await served.plane.client.list(Pod)) == 4, "nothing is made"


USAGE = """\
elasticgpu_container_age_seconds{namespace="%(of)s",pod="%(of)s-runs",container="app",device_uuid="GPU-n0-0"} 36000
elasticgpu_container_idle_seconds{namespace="%(of)s",pod="%(of)s-runs",container="app",device_uuid="GPU-n0-0"} %(idle)s
"""


PARKED = """\
elasticgpu_container_memory_used_bytes{namespace="open",pod="open-runs",container="app",device_uuid="GPU-n0-0"} 3e9
elasticgpu_container_memory_parked_bytes{namespace="open",pod="open-runs",container="app",device_uuid="GPU-n0-0"} %s
"""


async def test_parked_memory_is_beside_the_use_of_a_slice(served: Served) -> None:
    known = served.dashboard.knowledge
    await known.use(parse_usage(PARKED % 0))
    await until(lambda: _has(served, "/pod?namespace=open&name=open-runs", "admin", "2861 MiB"))
    assert not await _has(served, "/pod?namespace=open&name=open-runs", "admin", "parked")
    await known.use(parse_usage(PARKED % (2 << 30)))
    await until(lambda: _has(served, "/pod?namespace=open&name=open-runs", "admin", "2048 MiB parked"))


async def test_the_bill_is_of_what_one_may_list(served: Served) -> None:
    known = served.dashboard.knowledge
    await known.use(parse_usage(USAGE % {"of": "secret", "idle": 7200}))
    await until(lambda: _has(served, "/bill?q=open-waits", "admin", "end pod secret/secret-runs, which is idle"))
    pages = Pages(known)
    access = Access("tenant", nodes=True, cards=True, pods=frozenset({"open"}), claims=frozenset({"open"}))
    values = pages.parts["bill"](pages.looking(access, {}))
    assert [line.subject.name for line, _ in values["lines"]] == ["open-waits"]
    assert "secret" not in render("parts/bill.html", values)

    await known.use(parse_usage("".join(USAGE % {"of": namespace, "idle": 7200} for namespace in ("open", "secret"))))
    await until(lambda: _has(served, "/bill", "admin", "end pod open-runs: it does not use its card"))
    whole = await served.text("/bill", "admin")
    assert "10h" in whole, "the history"
    row = r"<td>(open|secret)</td>.*?>(\d)</td>.*?>([\d.]+)</td>.*?>([\d.]+)</td>"
    sums = re.findall(row, whole, re.DOTALL)
    # 30 % of a card for ten hours each, and 70 % for each of two that wait since a moment
    assert [(name, lines, per_day) for name, lines, _, per_day in sums] == [
        ("open", "2", "24.00"), ("secret", "2", "24.00"),
    ]  # fmt: skip
    assert all(3.0 <= float(lost) <= 3.2 for _, _, lost, _ in sums), sums
    assert "GPU-hours by team" in await served.text("/bill?by=team", "admin")
    assert "GPU-hours by &lt;b&gt;" in await served.text("/bill?by=<b>", "admin")
    assert "Nothing is lost" in await served.text("/bill", "nobody")


async def _has(served: Served, path: str, user: str, what: str) -> bool:
    return what in await served.text(path, user)


async def test_the_form_takes_a_token_and_keeps_it_from_the_browser(served: Served) -> None:
    async def sign_in(token: str, **headers: str) -> httpx2.Response:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return await served.http.post(f"{served.url}/login", data={"token": token}, headers=said)

    assert (await sign_in("made-up")).status_code == 401
    elsewhere = "http://elsewhere.example"
    assert (await sign_in(served.tokens["admin"], Origin=elsewhere)).status_code == 403
    assert (await sign_in(served.tokens["admin"], Origin=served.url, Sec_Fetch_Site="cross-site")).status_code == 403
    behind_a_proxy = await sign_in(served.tokens["admin"], Origin=elsewhere, Sec_Fetch_Site="same-origin")
    done = await sign_in(served.tokens["admin"], Origin=served.url)
    for one in (behind_a_proxy, done):
        assert (one.status_code, one.headers["location"]) == (303, "./")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "path" not in cookie.lower(), "a proxy's other services do not get it"
    assert served.tokens["admin"] not in cookie
    shown = cookie.partition(";")[0]
    assert "secret/secret-waits" in (await served.get("/", cookie=shown)).text
    await served.http.post(f"{served.url}/logout", headers={"Cookie": shown})
    served.http.cookies.clear()
    assert (await served.get("/", cookie=shown)).status_code == 401


async def test_its_pages_work_below_a_path_of_a_proxy(served: Served) -> None:
    """The API server's service proxy serves it below a path, and takes the Authorization header away."""
    for path in (*PAGES, "/login"):
        page = await served.text(path, "admin")
        addresses = re.findall(r'(?:href|src|action|hx-get|data-source)="([^"#]*)"', page)
        assert all(one.startswith("./") for one in addresses), path
        assert addresses or path.startswith("/history") or path == "/parts/summary", path
    assert (await served.get("/history?path=x&node=n0&uuid=GPU-n0-0", "admin")).status_code == 200
    part = await served.http.get(f"{served.url}/parts/map", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "./login")
    assert (await served.text(f"/card?{CARD}&path=x", "admin")).count("path=x") == 2


def test_a_session_that_is_not_used_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("egpu.apps.dashboard.sessions.time.monotonic", lambda: now)
    sessions = Sessions()
    number = sessions.begin("token")
    for now in (SESSION_SECONDS, 2 * SESSION_SECONDS):
        assert sessions.token(number) == "token", now
    now += SESSION_SECONDS + 1
    assert sessions.token(number) is None
