"""PodDisruptionBudgets: how many more evictions they allow now, and which budget a pod belongs to. Source: the eviction
subresource of Kubernetes, which decides in the end; plans contain no eviction that it would refuse."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from egpu_base.api.disruption import PodDisruptionBudget
from egpu_base.api.kubernetes import LabelSelector, LabelSelectorRequirement, Pod
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.wire import packed_bytes

ALWAYS_ALLOW: Final = "AlwaysAllow"
MOST_SELECTOR_BYTES: Final = 8 * 1024
"""The size of a selector, packed, beyond which a budget is kept as one of its whole namespace that allows nothing."""


def kept_budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    """Return the part of a budget that decides. Its author may write a megabyte into the rest, or into its selector,
    which would be compared with every pod."""
    meta = budget.metadata
    metadata = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
    )
    spec, status = budget.spec, replace(budget.status, disrupted_pods=None, conditions=None)
    if packed_bytes(spec.selector) > MOST_SELECTOR_BYTES:
        spec, status = replace(spec, selector=LabelSelector()), replace(status, disruptions_allowed=0)
    return replace(budget, metadata=metadata, spec=spec, status=status)


class Budgets:
    """The remaining evictions of all budgets, and what an eviction `charges`."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget] = ()) -> None:
        self._of_namespace: defaultdict[str, list[PodDisruptionBudget]] = defaultdict(list)
        self._left: dict[str, int] = {}
        for one in sorted(budgets, key=lambda one: one.key):
            self._of_namespace[one.namespace].append(one)
            current = one.status.observed_generation >= one.metadata.generation
            self._left[one.key] = one.status.disruptions_allowed if current else 0

    def charges(self, pod: Pod) -> tuple[str, ...]:
        """Return the budget that evicting the pod charges: none, one, or, if several select the pod (so that it cannot
        be evicted), all as one name that has nothing left."""
        if pod.status.phase == "Pending":
            return ()  # a pending pod's eviction disrupts nothing
        mine = [one for one in self._of_namespace.get(pod.namespace, ()) if selects(one.spec.selector, pod)]
        if len(mine) > 1:
            return (" and ".join(one.key for one in mine),)
        return tuple(one.key for one in mine if not _spares(one, pod))

    def allow(self, charges: Mapping[str, int]) -> bool:
        """Return whether these numbers of evictions, by budget, break no budget."""
        return all(count <= self._left.get(name, 0) for name, count in charges.items())

    def broken_by(self, pods: Iterable[Pod]) -> list[str]:
        """Return the budgets that evicting all of the pods would break."""
        counts = Counter(name for pod in pods for name in self.charges(pod))
        return sorted(name for name, count in counts.items() if count > self._left.get(name, 0))


def _spares(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Return whether evicting the pod is free, as it is not ready anyway."""
    if any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or []):
        return False
    if budget.spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW:
        return True
    status = budget.status
    return status.current_healthy >= status.desired_healthy > 0


def selects(selector: LabelSelector | None, pod: Pod) -> bool:
    """Return whether a budget's selector matches the pod. An empty one matches its whole namespace, None nothing."""
    if selector is None:
        return False
    labels = pod.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (selector.match_labels or {}).items()):
        return False
    return all(_meets(labels, one) for one in selector.match_expressions or [])


def _meets(labels: Mapping[str, str], asked: LabelSelectorRequirement) -> bool:
    value = labels.get(asked.key)
    match asked.operator:
        case "In":
            return value in (asked.values or [])
        case "NotIn":
            return value not in (asked.values or [])
        case "Exists":
            return value is not None
        case _:
            return value is None
