"""Write the tables of series in docs/monitoring.md from what components publish; with --check, only say whether they
are up to date.

Usage: python scripts/generate_metrics_table.py [--check]
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import httpx2
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from egpu.adapters.kubernetes import Client
from egpu.adapters.nvml import CardProcess, CardReading
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.slots.directories import Slots
from egpu.apps.broker.app import PoolMetrics
from egpu.apps.broker.service import LeaseService
from egpu.apps.controller.cluster_metrics import ClusterMetrics
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.view import View
from egpu.apps.webhook import server as webhook
from egpu.core.view import ClusterView

TARGET = Path(__file__).resolve().parent.parent / "docs" / "monitoring.md"
BEGIN, END = "<!-- series: begin -->", "<!-- series: end -->"


class NoCards:
    """A driver that knows of no card: which series there are does not hang on it."""

    def read(self) -> tuple[CardReading, ...]:
        return ()

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        return {}

    def used_bytes(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


def published() -> Mapping[str, list[Metric]]:
    """What each component publishes, by the component; of ours only."""
    assert webhook.reviews
    pool = CollectorRegistry()
    pool.register(PoolMetrics(LeaseService(policy="default", settle_seconds=0)))
    with tempfile.TemporaryDirectory() as folder:
        inventory = Inventory(NoCards(), interval_seconds=1)
        agent = AgentMetrics(node="", node_ip="", slots=Slots(Path(folder) / "slots"), inventory=inventory)
        extender = Metrics(View(Client(httpx2.AsyncClient())))
        metrics = {
            "Each node's agent": agent.registry.collect(),
            "The controller": text_string_to_metric_families(ClusterMetrics().page(ClusterView()).decode()),
            "The extender": extender.registry.collect(),
            "The webhook": REGISTRY.collect(),
            "The pool's broker": pool.collect(),
        }
        return {who: _ours(found) for who, found in metrics.items()}


def _ours(metrics: Iterable[Metric]) -> list[Metric]:
    return sorted((one for one in metrics if one.name.startswith("elasticgpu_")), key=lambda one: one.name)


def series(metric: Metric) -> str:
    """The name that a query has: a counter's ends with _total."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def tables() -> str:
    parts: list[str] = []
    for who, metrics in published().items():
        rows = "\n".join(f"| `{series(one)}` | {one.type} | {one.documentation.rstrip('.')} |" for one in metrics)
        parts.append(f"### {who}\n\n| series | type | what it is |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when it is not up to date")
    text = TARGET.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"
    if parser.parse_args().check:
        if text != fresh:
            print(f"{TARGET} is not up to date: run scripts/generate_metrics_table.py", file=sys.stderr)
        return int(text != fresh)
    TARGET.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
