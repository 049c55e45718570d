"""What deploy/monitoring asks for is what components publish, as Prometheus' own tools and a real Prometheus say."""

import importlib.util
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx2
import pytest
import yaml
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from egpu.apps.controller.cluster_metrics import ClusterMetrics
from egpu.core.placement.cache import SchedulerCache
from egpu.core.view import ClusterView, cluster_view
from egpu_base.api.kubernetes import Pod
from support.objects import card, cluster, place, placed, slice_pod
from support.ports import free_port

ROOT: Final = Path(__file__).resolve().parents[3]
MONITORING: Final = ROOT / "deploy" / "monitoring"
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Debian's prometheus is not there")


def a_cluster() -> ClusterView:
    """Two cards, half of one given to a pod."""
    cache = cluster(cards=2)
    what = slice_pod("p", core=50)
    bound = placed(what, place(cache, what))
    now = datetime(2026, 11, 23, tzinfo=UTC)
    return cluster_view(cache, nodes=(), pods=[bound], claims=(), gpus=(), usage={}, now=now)


def load(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(script, ROOT / "scripts" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table() -> ModuleType:
    return load("generate_metrics_table")


def expressions() -> list[str]:
    board: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    rules: dict[str, Any] = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return found + [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]


def test_the_board_and_the_alerts_ask_for_series_that_there_are(table: ModuleType) -> None:
    known = {table.series(metric) for metrics in table.published().values() for metric in metrics}
    asked = {name for text in expressions() for name in re.findall(r"elasticgpu_\w+", text)}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= known
    assert len(asked) > 15


def test_the_tables_of_series_are_up_to_date(table: ModuleType) -> None:
    assert table.tables() in (ROOT / "docs" / "reference" / "metrics.md").read_text()


def test_the_board_leaves_its_data_source_to_who_imports_it() -> None:
    board: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    assert [one["type"] for one in board["templating"]["list"]] == ["datasource", "query", "query"]
    sources = {part["datasource"]["uid"] for panel in board["panels"] for part in (panel, *panel["targets"])}
    assert sources == {"${datasource}"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@promtool
def test_the_alerts_fire_when_they_should() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yaml"], cwd=MONITORING, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = (MONITORING / "tests.yaml").read_text()
    rules: dict[str, Any] = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    assert all(rule["alert"] in tested for group in rules["groups"] for rule in group["rules"])


def cluster_page() -> bytes:
    return ClusterMetrics().page(a_cluster())


def test_what_others_named_stays_a_label_and_a_node_that_changed_is_written_anew() -> None:
    odd, metrics, now = 'T4 "x\\"\n}', ClusterMetrics(), datetime(2026, 11, 23, tzinfo=UTC)

    def given(cache: SchedulerCache, *pods: Pod) -> dict[tuple[str, str], float]:
        view = cluster_view(cache, nodes=(), pods=pods, claims=(), gpus=(), usage={}, now=now)
        families = {one.name: one for one in text_string_to_metric_families(metrics.page(view).decode())}
        samples = families["elasticgpu_card_core_given_ratio"].samples
        return {(one.labels["model"], one.labels["device_index"]): one.value for one in samples}

    cache = cluster()
    cache.gpu_changed(card("n0", 1, model=odd))
    assert given(cache) == {("T4", "0"): 0.0, (odd, "1"): 0.0}
    what = slice_pod("p", core=50)
    assert sum(given(cache, placed(what, place(cache, what))).values()) == 0.5


@promtool
def test_prometheus_finds_nothing_wrong_with_the_names_of_any_series(table: ModuleType) -> None:
    lines = [cluster_page().decode()]
    for who, metrics in table.published().items():
        for one in metrics:
            if who != "The controller":
                lines.append(f"# HELP {table.series(one)} {one.documentation}\n# TYPE {table.series(one)} {one.type}\n")
                if one.type != "histogram":
                    lines.append(f"{table.series(one)} 1\n")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input="".join(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Page(BaseHTTPRequestHandler):
    """The controller's /metrics, without the guard before it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST)
        self.end_headers()
        self.wfile.write(cluster_page())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@contextmanager
def controller_page() -> Generator[str]:
    """Its HOST:PORT."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's prometheus is not there")
def test_a_real_prometheus_scrapes_them_and_answers_every_question_of_the_board(tmp_path: Path) -> None:
    port = free_port()
    command = [
        *("prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with controller_page() as target, (tmp_path / "log").open("wb") as log:
        job = {"job_name": "controller", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
        config = {"rule_files": [str(MONITORING / "rules.yaml")], "scrape_configs": [job]}
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:
                    assert asked(client, "sum(elasticgpu_slice_core_given_ratio)") == 0.5
                    assert asked(client, "sum(elasticgpu_card_core_given_ratio)") == 0.5
                    assert asked(client, "elasticgpu_cluster_free_cards") == 1
                    for text in expressions():
                        if not text.startswith("label_values("):  # Grafana's own
                            query = text.replace("$node", ".*").replace("$namespace", ".*")
                            answer = client.get("/api/v1/query", params={"query": query}).json()
                            assert answer["status"] == "success", query
            finally:
                process.terminate()


def asked(client: httpx2.Client, query: str) -> float:
    """The answer, as soon as there is one."""
    for _ in range(600):
        try:
            found = client.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
            if found:
                return float(found[0]["value"][1])
        except (httpx2.HTTPError, ValueError):
            pass  # it is starting
        time.sleep(0.1)
    raise AssertionError(f"no answer to {query}")
