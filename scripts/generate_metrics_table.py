"""Write the tables of series in docs/monitoring.md from what components publish; with --check, only say whether they
are up to date.

Usage: python scripts/generate_metrics_table.py [--check]
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

import httpx2
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families

from egpu.adapters.kubernetes import Client
from egpu.adapters.nvml import CardProcess, CardReading
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.metrics import AgentMetrics
from egpu.apps.agent.slots.directories import Slots
from egpu.apps.broker.metrics import PoolMetrics
from egpu.apps.broker.service import LeaseService
from egpu.apps.controller.cluster_metrics import ClusterMetrics
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.view import View
from egpu.apps.webhook import server as webhook
from egpu.core.view import ClusterView

TARGET = Path(__file__).resolve().parent.parent / "docs" / "monitoring.md"
QUESTIONS: Final[Mapping[str, Sequence[str]]] = {
    "what a container may use: memory, compute": ("container_memory_limit_bytes", "container_core_limit_ratio"),
    "what it uses: memory, compute": ("container_memory_used_bytes", "container_gpu_seconds_total",
                                      "container_core_used_ratio"),
    "given, of a slice": ("slice_memory_given_bytes", "slice_core_given_ratio"),
    "given, of a card; a node and a namespace are sums": ("card_memory_given_bytes", "card_core_given_ratio"),
    "idle; used ÷ given": ("container_idle_seconds", "container_age_seconds", "container_lost_gpu_seconds"),
    "pods that wait, by reason": ("cluster_pending_pods", "pending_pod_seconds"),
    "claims, by phase": ("cluster_claims",),
    "fragmentation and what is stranded": ("cluster_fragmentation_ratio", "cluster_stranded_core_cards",
                                           "cluster_stranded_memory_bytes"),
    "lease ages": ("pool_leases", "pool_lease_age_seconds"),
    "latencies": ("extender_filter_duration_seconds", "extender_prioritize_duration_seconds",
                  "extender_bind_duration_seconds", "webhook_review_duration_seconds", "agent_allocate_seconds",
                  "agent_prepare_seconds", "pool_acquire_seconds"),
    "refusals": ("extender_filters_total", "extender_binds_total", "webhook_reviews_total", "agent_refusals_total",
                 "container_memory_refusals_total", "pool_refusals_total"),
    "sick and over-committed cards": ("card_healthy", "card_overcommitted", "cluster_unhealthy_cards"),
    "the bill": ("container_lost_gpu_seconds", "bill_lost_gpu_seconds", "bill_losing_cards"),
    "the card itself, where there is no DCGM": ("card_temperature_celsius", "card_power_watts", "card_busy_ratio",
                                                "card_memory_driver_bytes"),
}  # fmt: skip
"""What people ask, and which series say it; `elasticgpu_` is before each."""
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
    service = LeaseService(policy="default", settle_seconds=0)
    pool = service.acquisitions.registry
    pool.register(PoolMetrics(service))
    with tempfile.TemporaryDirectory() as folder:
        inventory = Inventory(NoCards(), interval_seconds=1)
        agent = AgentMetrics(
            node="", node_ip="", slots=Slots(Path(folder) / "slots"), inventory=inventory, hardware=dict
        )
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


def questions(known: Set[str]) -> str:
    """Raises KeyError for a series that nobody publishes."""
    rows: list[str] = []
    for what, names in QUESTIONS.items():
        told = [f"elasticgpu_{name}" for name in names]
        if missing := set(told) - known:
            raise KeyError(f"nobody publishes {', '.join(missing)}")
        rows.append(f"| {what} | {', '.join(f'`{name}`' for name in told)} |")
    head = "### By question\n\n| question | series |\n|---|---|\n"
    return head + "\n".join(rows) + "\n"


def tables() -> str:
    told = published()
    parts = [questions({series(one) for metrics in told.values() for one in metrics})]
    for who, metrics in told.items():
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
