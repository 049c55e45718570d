"""What needs an optional package says so where it is not installed; what does not need it works."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from egpu.api import names
from egpu.apps.extender import Extender, ExtenderConfig
from egpu.apps.extender.filter_results import FilterResults
from egpu.apps.extender.placing import Placing
from egpu.cli.plots import Line, write_plot
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.node_names import NodeNames
from egpu.core.policies.registry import NAMES, Policies
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.replay.run import run
from egpu.core.replay.workload import published_arrivals
from egpu_base.errors import MissingExtra
from support.fake_api import FakeAPI
from support.objects import BINPACK, card, claim, claim_pod, gpu_class

PRICES = r"highspy, which is not installed: pip install 'elastic-gpu\[prices\]'"
PLOTS = r"matplotlib, which is not installed: pip install 'elastic-gpu\[plots\]'"


@pytest.fixture
def no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)


@pytest.mark.usefixtures("no_solver")
def test_an_extender_that_should_price_does_not_start() -> None:
    with pytest.raises(MissingExtra, match=PRICES):
        Extender(ExtenderConfig(), FakeAPI().client())
    Extender(ExtenderConfig(node_policy="binpack", card_policy="spread"), FakeAPI().client())


@pytest.mark.usefixtures("no_solver")
@pytest.mark.parametrize("policy", NAMES)
def test_a_simulation_of_prices_says_so_and_others_run(policy: str) -> None:
    pods = [Shape(1000, 1024, 1, 500)]
    workload = published_arrivals(pods, nodes=1, capacity_milli=2000, load=1.0, seed=1)
    machines = [Machine("n", 8000, 8192, 2)]
    if policy in ("price", "price-known"):
        with pytest.raises(MissingExtra, match=PRICES):
            run(policy, machines, workload, Mix.of(pods), clock=time.perf_counter)
    else:
        assert run(policy, machines, workload, Mix.of(pods), clock=time.perf_counter).refused_pods == 0


def pricing_class() -> SchedulerCache:
    """A class that asks for prices, and a claim of it that waits for its pod."""
    cache = SchedulerCache()
    cache.gpu_changed(card("n0", 0))
    cache.class_changed(gpu_class("dear", wait=True, parameters={"policy": "price"}))
    cache.claim_changed(claim("c", {names.GPU_CORE: 30, names.GPU_MEMORY: 1024}, "dear"))
    return cache


@pytest.mark.usefixtures("no_solver")
def test_a_pod_whose_class_asks_for_prices_is_not_placed_by_another_policy() -> None:
    cache, what = pricing_class(), claim_pod("p", "c")
    with pytest.raises(MissingExtra, match=PRICES):
        cache.ranking.choose(cache.request(what), "n0", BINPACK)
    view: Any = SimpleNamespace(cache=cache)
    assert Placing(view, BINPACK, FilterResults()).prioritize(what, NodeNames(["n0"])).tolist() == [0]


def test_with_the_package_it_is_placed_by_its_class() -> None:
    cache = pricing_class()
    request = cache.request(claim_pod("p", "c"))
    assert request.policies(BINPACK) == Policies.named("price", "price")
    assert cache.ranking.choose(request, "n0", BINPACK).node == "n0"


def test_drawing_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    panels = [("title", [Line("one", [0.0, 1.0], [0.0, 1.0])])]
    with pytest.raises(MissingExtra, match=PLOTS):
        write_plot(tmp_path / "a.png", panels, x_title="x")
    write_plot(tmp_path / "a.svg", panels, x_title="x")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg")


def test_no_program_loads_them_before_they_are_needed() -> None:
    modules = "egpu.apps.agent.app, egpu.apps.broker.app, egpu.apps.extender.app, egpu.apps.webhook.app, egpu.cli.app"
    script = f"import sys, {modules}; print([name for name in ('highspy', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
