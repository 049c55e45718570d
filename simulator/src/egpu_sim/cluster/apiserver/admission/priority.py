"""Priority admission: sets a pod's `spec.priority` by its class, before any webhook sees the pod."""

from typing import Any, Final

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.resources import Rules
from egpu_sim.cluster.apiserver.status import Cause, forbidden, forbidden_field, invalid
from egpu_sim.cluster.apiserver.storage.store import Store
from egpu_sim.cluster.trees import Json, as_object, at

SHELF: Final = "priorityclasses"
SYSTEM_PREFIX: Final = "system-"
SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
HIGHEST_USER_PRIORITY: Final = 1_000_000_000


def system_class(name: str, value: int) -> Json:
    """Return one of the two classes that every cluster has."""
    part = "cluster" if "cluster" in name else "node"
    article = "must be running in the cluster" if part == "cluster" else "must not be moved from their current node"
    return {
        "kind": "PriorityClass",
        "apiVersion": "scheduling.k8s.io/v1",
        "metadata": {"name": name, "generation": 1},
        "value": value,
        "description": f"Used for system critical pods that {article}.",
        "preemptionPolicy": "PreemptLowerPriority",
    }


class PriorityClassRules(Rules):
    def defaults(self, obj: Json) -> None:
        obj.setdefault("value", 0)
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")

    def validate(self, obj: Json) -> list[Cause]:
        name, value = str(at(obj, "metadata", "name") or ""), obj.get("value")
        causes: list[Cause] = []
        if name.startswith(SYSTEM_PREFIX) and SYSTEM_CLASSES.get(name) != value:
            message = f"priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only"
            causes.append(forbidden_field("metadata.name", message))
        elif isinstance(value, int) and value > HIGHEST_USER_PRIORITY and name not in SYSTEM_CLASSES:
            message = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            causes.append(forbidden_field("value", message))
        if obj.get("preemptionPolicy") not in ("Never", "PreemptLowerPriority"):
            message = 'supported values: "Never", "PreemptLowerPriority"'
            causes.append(invalid("preemptionPolicy", obj.get("preemptionPolicy"), message))
        return causes

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        causes = self.validate(new)
        for field in ("value", "preemptionPolicy"):
            if old.get(field) != new.get(field):
                causes.append(invalid(field, new.get(field), "field is immutable"))
        return causes


class PriorityAdmission:
    def __init__(self, store: Store) -> None:
        self._store = store

    def admit(self, call: Call, pod: Json, old: Json | None) -> None:
        """Set priority and preemption policy of a pod, in place. Raises RequestRefused (403)."""
        spec = as_object(pod.get("spec"))
        if old is not None:
            for field in ("priority", "preemptionPolicy"):
                if spec.get(field) is None and at(old, "spec", field) is not None:
                    spec[field] = at(old, "spec", field)
            return
        name = str(spec.get("priorityClassName") or "")
        found = self._named(name) if name else self._default()
        if name and found is None:
            raise forbidden("", "pods", call.name, f"no PriorityClass with name {name} was found")
        value: Any = (found or {}).get("value", 0)
        if found is not None:
            spec["priorityClassName"] = at(found, "metadata", "name")
        if spec.get("priority") not in (None, value):
            asked = spec["priority"]
            message = (
                f"the integer value of priority ({asked}) must not be provided in pod spec; priority admission "
                f"controller computed {value} from the given PriorityClass name"
            )
            raise forbidden("", "pods", call.name, message)
        policy = (found or {}).get("preemptionPolicy", "PreemptLowerPriority")
        if spec.get("preemptionPolicy") not in (None, policy):
            message = (
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
                f"priority admission controller computed {policy} from the given PriorityClass name"
            )
            raise forbidden("", "pods", call.name, message)
        spec["priority"], spec["preemptionPolicy"] = value, policy

    def _named(self, name: str) -> Json | None:
        item = self._store.get(SHELF, ("", name))
        return None if item is None else item.obj

    def _default(self) -> Json | None:
        """Return the global default; the lowest of several."""
        defaults = [item.obj for item in self._store.shelf(SHELF).items.values() if item.obj.get("globalDefault")]
        return min(defaults, key=lambda each: int(each.get("value") or 0), default=None)
