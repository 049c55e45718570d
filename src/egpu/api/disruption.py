"""PodDisruptionBudgets: how many of some pods may be evicted at a time."""

from typing import ClassVar

from msgspec import field

from egpu.api.kubernetes import LabelSelector
from egpu.api.objects import Condition, Object
from egpu.api.wire import Resource, Wire


class PodDisruptionBudgetSpec(Wire, frozen=True, kw_only=True):
    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(Wire, frozen=True, kw_only=True):
    """`disrupted_pods`: names of pods whose eviction was allowed and has not been seen yet, and when it was."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class PodDisruptionBudget(Object, frozen=True, kw_only=True, tag_field="kind", tag="PodDisruptionBudget"):
    resource: ClassVar[Resource] = Resource("policy", "v1", "poddisruptionbudgets", namespaced=True)

    api_version: str = field(default_factory=lambda: "policy/v1")
    spec: PodDisruptionBudgetSpec = field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = field(default_factory=PodDisruptionBudgetStatus)
