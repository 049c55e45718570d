"""The tables of series in docs/reference/metrics.md, from what components publish."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

import httpx2
from markdown_table import put_between
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families

from egpu.adapters.cards.nvml import CardProcess, CardReading
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
from egpu_base.kubernetes import Client

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
QUESTIONS: Final[Mapping[str, Sequence[str]]] = {
    "what a container may use: memory, compute": ("container_memory_limit_bytes", "container_core_limit_ratio"),
    "what it uses: memory, compute": ("container_memory_used_bytes", "container_gpu_seconds_total",
                                      "container_core_used_ratio"),
    "given, of a slice": ("slice_memory_given_bytes", "slice_core_given_ratio"),
    "given, of a card; a node and a namespace are sums": ("card_memory_given_bytes", "card_core_given_ratio"),
    "idle; used ÷ allocated": ("container_idle_seconds", "container_age_seconds", "container_lost_gpu_seconds"),
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
"""Questions of users, and the series that answer them, without `elasticgpu_`."""
BEGIN, END = "<!-- series: begin -->", "<!-- series: end -->"


class NoCards:
    """A driver without cards: the list of series does not depend on them."""

    def read(self) -> tuple[CardReading, ...]:
        return ()

    def processes(self) -> dict[str, tuple[CardProcess, ...]]:
        return {}

    def used_bytes(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


def published() -> Mapping[str, list[Metric]]:
    """Return the series that each component publishes, by component; only ours."""
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
    """Return the name in queries: a counter's ends with _total."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def questions(known: Set[str]) -> str:
    """Return the table by question. Raises KeyError for a series that no component publishes."""
    rows: list[str] = []
    for what, names in QUESTIONS.items():
        told = [f"elasticgpu_{name}" for name in names]
        if missing := set(told) - known:
            raise KeyError(f"no component publishes {', '.join(missing)}")
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


def files() -> dict[Path, str]:
    return {TARGET: put_between(TARGET, BEGIN, END, f"\n\n{tables()}\n")}
