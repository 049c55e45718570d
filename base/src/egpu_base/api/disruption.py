"""PodDisruptionBudgets: the number of some pods that may be evicted at a time."""

from typing import ClassVar

from msgspec import field

from egpu_base.api.kubernetes import LabelSelector
from egpu_base.api.objects import Condition, Object
from egpu_base.api.wire import Resource, Wire


class PodDisruptionBudgetSpec(Wire, frozen=True, kw_only=True):
    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(Wire, frozen=True, kw_only=True):
    """The status. `disrupted_pods` has names of pods whose eviction was allowed but not seen yet, with the time."""

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
