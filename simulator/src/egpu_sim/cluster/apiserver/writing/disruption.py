"""PodDisruptionBudgets, and the evictions that they allow or refuse (`POST pods/NAME/eviction`).

Source: Kubernetes' own eviction subresource, 1.36. A budget's controller (`egpu_sim.cluster.controllers.disruption`)
writes how many disruptions it allows. An eviction takes one of them before it deletes the pod.
"""

import re
from dataclasses import replace
from typing import Any, Final

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.resources import Rules
from egpu_sim.cluster.apiserver.status import (
    Cause,
    bad_request,
    forbidden,
    invalid,
    refused,
    required,
    unexplained,
    unsupported,
)
from egpu_sim.cluster.apiserver.storage.selectors import object_selector
from egpu_sim.cluster.apiserver.storage.store import Store
from egpu_sim.cluster.apiserver.writing.deletion import DeleteOptions, Deleter
from egpu_sim.cluster.trees import (
    Json,
    as_list,
    as_object,
    at,
    copy,
    labels_of,
    metadata,
    name_of,
    now,
    objects_at,
)

SHELF: Final = "poddisruptionbudgets"
COUNTS: Final = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
ALWAYS_ALLOW: Final = "AlwaysAllow"
MOST_DISRUPTED: Final = 2000
"""Evictions of one budget that its controller has not seen yet."""
REFUSAL: Final = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL: Final = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


class PodDisruptionBudgetRules(Rules):
    def prepare_create(self, obj: Json) -> None:
        obj["status"] = dict.fromkeys(COUNTS, 0)

    def validate(self, obj: Json) -> list[Cause]:
        spec = as_object(obj.get("spec"))
        causes: list[Cause] = []
        if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
            causes.append(invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
        for field in ("minAvailable", "maxUnavailable"):
            causes += _amount(f"spec.{field}", spec.get(field))
        try:
            object_selector(as_object(spec.get("selector")))
        except ValueError as error:
            causes.append(invalid("spec.selector", spec.get("selector"), str(error)))
        policy = spec.get("unhealthyPodEvictionPolicy")
        if policy not in (None, ALWAYS_ALLOW, "IfHealthyBudget"):
            causes.append(unsupported("spec.unhealthyPodEvictionPolicy", policy, [ALWAYS_ALLOW, "IfHealthyBudget"]))
        return causes

    def validate_status(self, obj: Json) -> list[Cause]:
        status = as_object(obj.get("status"))
        missing = [required(f"status.{field}") for field in COUNTS if status.get(field) is None]
        return missing + [
            invalid(f"status.{field}", status[field], "must be greater than or equal to 0")
            for field in COUNTS
            if isinstance(status.get(field), int) and status[field] < 0
        ]


def _amount(field: str, value: Any) -> list[Cause]:
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]+%", value):
            message = "a valid percent string must be a numeric string followed by an ending '%'"
            return [invalid(field, value, f"{message} (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')")]
        return [invalid(field, value, "must not be greater than 100%")] if int(value[:-1]) > 100 else []
    if isinstance(value, int) and value < 0:
        return [invalid(field, value, "must be greater than or equal to 0")]
    return []


class Evictions:
    """Deletes pods where their budgets allow it."""

    def __init__(self, store: Store, deleter: Deleter) -> None:
        self._store = store
        self._deleter = deleter

    async def evict(self, call: Call, body: Json) -> None:
        """Evict a pod. Raises RequestRefused: 429 when a budget is spent."""
        if metadata(body).get("name") not in (None, "", call.name):
            raise bad_request(f"name in URL ({call.name}) does not match name in the Eviction object")
        asked = as_object(body.get("deleteOptions"))
        options = DeleteOptions.read(asked)
        call = _with_dry_run(call, as_list(asked.get("dryRun")))
        stored = self._store.get(call.resource.shelf, call.key)
        if stored is None:
            raise call.not_found()
        if not _budgets_do_not_count(stored.obj):
            self._take(call, stored.obj)
        if not call.dry_run and options.uid in ("", metadata(stored.obj).get("uid")):
            self._tell(call)
        await self._deleter.delete(call, options)

    def _take(self, call: Call, pod: Json) -> None:
        """Take one disruption from the pod's budget."""
        budgets = self._budgets_of(pod)
        if len(budgets) > 1:
            raise unexplained(SEVERAL)
        if not budgets or (not _is_ready(pod) and _spares_unready(budgets[0])):
            return
        budget = budgets[0]
        _check(budget)
        if not call.dry_run:
            spent = copy(budget)
            status = as_object(spent["status"])
            status["disruptionsAllowed"] -= 1
            as_object(status.setdefault("disruptedPods", {}))[call.name] = now()
            self._store.put(SHELF, spent)

    def _budgets_of(self, pod: Json) -> list[Json]:
        found: list[Json] = []
        for (namespace, _), item in sorted(self._store.shelf(SHELF).items.items()):
            selector = at(item.obj, "spec", "selector")
            if namespace != metadata(pod).get("namespace") or selector is None:
                continue
            selects = object_selector(as_object(selector))
            if selects is None or selects(labels_of(pod)):
                found.append(item.obj)
        return found

    def _tell(self, call: Call) -> None:
        stored = self._store.get(call.resource.shelf, call.key)
        if stored is None or metadata(stored.obj).get("deletionTimestamp"):
            return
        pod = copy(stored.obj)
        status = as_object(pod.setdefault("status", {}))
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": None,
            "lastTransitionTime": now(),
        }
        others = [one for one in objects_at(status, "conditions") if one.get("type") != condition["type"]]
        status["conditions"] = [*others, condition]
        self._store.put(call.resource.shelf, pod)


def _with_dry_run(call: Call, asked: list[Any]) -> Call:
    """Return the call as a dry run if the eviction asks for one. Raises RequestRefused if the two disagree."""
    in_query = call.query.get("dryRun")
    if asked and in_query and asked != [in_query]:
        raise bad_request(
            f"Non-matching dry-run options in request and content: [{in_query}] and [{' '.join(map(str, asked))}]"
        )
    return replace(call, query={**call.query, "dryRun": str(asked[0])}) if asked else call


def _budgets_do_not_count(pod: Json) -> bool:
    """Return whether the pod has not begun, has ended, or is terminating: evicting it disrupts nothing."""
    ending = metadata(pod).get("deletionTimestamp") is not None
    return ending or at(pod, "status", "phase") in ("Succeeded", "Failed", "Pending")


def _is_ready(pod: Json) -> bool:
    return any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in objects_at(pod, "status", "conditions")
    )


def _spares_unready(budget: Json) -> bool:
    """Return whether the budget lets pods go that are not ready, without counting them."""
    status = as_object(budget.get("status"))
    healthy, desired = int(status.get("currentHealthy") or 0), int(status.get("desiredHealthy") or 0)
    return at(budget, "spec", "unhealthyPodEvictionPolicy") == ALWAYS_ALLOW or healthy >= desired > 0


def _check(budget: Json) -> None:
    """Raise RequestRefused if the budget allows no disruption now."""
    status, name = as_object(budget.get("status")), name_of(budget)
    if int(status.get("observedGeneration") or 0) < int(metadata(budget).get("generation") or 0):
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
    allowed = int(status.get("disruptionsAllowed") or 0)
    if allowed < 0:
        raise forbidden("policy", "poddisruptionbudget", name, "pdb disruptions allowed is negative")
    if len(as_object(status.get("disruptedPods"))) > MOST_DISRUPTED:
        message = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise forbidden("policy", "poddisruptionbudget", name, message)
    if allowed == 0:
        raise _too_many(_why_spent(name, status), 0)


def _why_spent(name: str, status: Json) -> str:
    conditions = objects_at(status, "conditions")
    said = [c for c in conditions if c.get("type") == "DisruptionAllowed" and c.get("status") == "False"]
    reason, message = (said[0].get("reason"), said[0].get("message")) if said else ("", "")
    if message and reason == "SyncFailed":
        return f"The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
    healthy, desired = int(status.get("currentHealthy") or 0), int(status.get("desiredHealthy") or 0)
    if healthy <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
    if message:
        return f"The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _too_many(cause: str, retry_after_seconds: int) -> RequestRefused:
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if retry_after_seconds:
        details["retryAfterSeconds"] = retry_after_seconds
    return refused(429, "TooManyRequests", REFUSAL, details=details)
