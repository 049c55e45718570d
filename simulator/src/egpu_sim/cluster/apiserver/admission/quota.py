"""ResourceQuota: limits what a namespace holds, counted at each write.

The objects themselves are the only record, so counts cannot drift: a deleted or finished object is free at once.
Nothing else runs between a charge and its write. Counted are pods, their requests and limits (any resource), and
objects of any kind (`count/RESOURCE.GROUP`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any, Final, TypeAlias

from egpu_base.api.quantities import canonical_quantity, quantity_or_zero
from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.kinds.podspec import canonical, validate_amount
from egpu_sim.cluster.apiserver.kinds.resources import Rules
from egpu_sim.cluster.apiserver.status import Cause, forbidden
from egpu_sim.cluster.apiserver.storage.store import Change, Store
from egpu_sim.cluster.trees import Json, as_list, as_object, at, copy, name_of, objects_at

SHELF: Final = "resourcequotas"
_COUNTED: Final = frozenset(
    {"configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services"}
)
"""Kinds that a quota may name without `count/`; `pods` then counts pods that have not finished."""
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")

Usage: TypeAlias = dict[str, Fraction]


class QuotaRules(Rules):
    def defaults(self, obj: Json) -> None:
        hard = as_object(at(obj, "spec", "hard"))
        hard.update({name: canonical(value) for name, value in hard.items()})

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {}

    def validate(self, obj: Json) -> list[Cause]:
        return [
            cause
            for name, value in as_object(at(obj, "spec", "hard")).items()
            for cause in validate_amount(_plain(name), value, f"spec.hard[{name}]", f"spec.hard[{name}]")
        ]


def _plain(name: str) -> str:
    kind, _, rest = name.partition(".")
    if kind in ("requests", "limits") and rest:
        return rest
    return "pods" if name in _COUNTED or name.startswith(("count/", "services.")) else name


class QuotaAdmission:
    """Charges writes to the quotas of their namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def charge(self, call: Call, old: Json | None, new: Json) -> None:
        """Check that every quota has room for what the write adds. Raises RequestRefused (403)."""
        if call.subresource not in ("", "resize") or not call.resource.namespaced:
            return
        for item in list(self._store.shelf(SHELF).items.values()):
            if item.key[0] != call.namespace or not _in_scope(item.obj, new):
                continue
            hard = as_object(at(item.obj, "spec", "hard"))
            added = _usage(call.resource.shelf, new)
            if old is not None:
                before = _usage(call.resource.shelf, old)
                added = {name: amount - before.get(name, Fraction(0)) for name, amount in added.items()}
            asked = {name: amount for name, amount in added.items() if name in hard and amount > 0}
            if call.resource.shelf == "pods" and old is None:
                _refuse_silence(call, item.obj, new)
            self._refuse_excess(call, item.obj, asked)

    def _refuse_excess(self, call: Call, quota: Json, asked: Usage) -> None:
        if not asked:
            return
        hard = as_object(at(quota, "spec", "hard"))
        used = used_in(self._store, call.namespace, quota)
        over = sorted(name for name, amount in asked.items() if used[name] + amount > quantity_or_zero(hard[name]))
        if over:
            requested, in_use = ",".join(_shown(over, asked, hard)), ",".join(_shown(over, used, hard))
            limited = ",".join(f"{name}={hard[name]}" for name in over)
            message = f"exceeded quota: {name_of(quota)}, requested: {requested}, used: {in_use}, limited: {limited}"
            raise forbidden(call.resource.group, call.resource.plural, call.name, message)


def _shown(names: Iterable[str], amounts: Usage, hard: Json) -> Iterator[str]:
    for name in names:
        yield f"{name}={written(amounts[name], like=str(hard[name]))}"


def written(amount: Fraction, *, like: str) -> str:
    """Return an amount as a quantity; in powers of 1024 where the limit is."""
    if like.endswith("i") and amount and amount % 1024 == 0:
        return canonical_quantity(f"{int(amount / 1024)}Ki")
    text = str(amount.numerator) if amount.denominator == 1 else f"{-(-amount * 1000 // 1)}m"
    return canonical_quantity(text)


def used_in(store: Store, namespace: str, quota: Json) -> Usage:
    """Return what a namespace uses of everything that a quota limits."""
    hard = as_object(at(quota, "spec", "hard"))
    total: Usage = dict.fromkeys(hard, Fraction(0))
    for shelf in {_shelf(name) for name in hard}:
        for item in store.shelf(shelf).items.values():
            if item.key[0] == namespace and _in_scope(quota, item.obj):
                for name, amount in _usage(shelf, item.obj).items():
                    if name in total:
                        total[name] += amount
    return total


def _shelf(name: str) -> str:
    if name.startswith("count/"):
        plural, _, group = name.removeprefix("count/").partition(".")
        return f"{plural}.{group}" if group else plural
    return name if name in _COUNTED else "pods"


def _usage(shelf: str, obj: Json) -> Usage:
    """Return what one object uses, by the entries of quotas."""
    usage: Usage = {f"count/{shelf}": Fraction(1)}
    if shelf in _COUNTED and shelf != "pods":
        usage[shelf] = Fraction(1)
    if shelf != "pods" or at(obj, "status", "phase") in ("Succeeded", "Failed"):
        return usage
    usage["pods"] = Fraction(1)
    for kind in ("requests", "limits"):
        for name, amount in _of_pod(obj, kind).items():
            usage[f"{kind}.{name}"] = amount
            if kind == "requests" and name in _NATIVE:
                usage[name] = amount
    return usage


def _of_pod(pod: Json, kind: str) -> Usage:
    """Return a pod's requests or limits: the larger of the sum of all containers and of the largest init container."""
    together, most = Counter[str](), Counter[str]()
    for container in objects_at(pod, "spec", "containers"):
        together = _plus(together, container, kind)
    beside = Counter[str]()
    for container in objects_at(pod, "spec", "initContainers"):
        if container.get("restartPolicy") == "Always":
            beside = _plus(beside, container, kind)
            most |= beside
        else:
            most |= _plus(beside, container, kind)
    total: Any = (together + beside) | most
    return {str(name): Fraction(amount) for name, amount in total.items()}


def _plus(amounts: Counter[str], container: Json, kind: str) -> Counter[str]:
    asked: Any = {n: quantity_or_zero(v) for n, v in as_object(at(container, "resources", kind)).items()}
    return amounts + Counter(asked)


def _refuse_silence(call: Call, quota: Json, pod: Json) -> None:
    """Refuse pods whose containers do not set a quota's cpu or memory."""
    for name in sorted(as_object(at(quota, "spec", "hard"))):
        kind, _, resource = name.partition(".") if "." in name else ("requests", "", name)
        if resource not in ("cpu", "memory") or kind not in ("requests", "limits"):
            continue
        silent = [
            str(container.get("name"))
            for container in objects_at(pod, "spec", "containers")
            if resource not in as_object(at(container, "resources", kind))
        ]
        if silent:
            message = f"failed quota: {name_of(quota)}: must specify {name} for: {','.join(silent)}"
            raise forbidden(call.resource.group, call.resource.plural, call.name, message)


def _in_scope(quota: Json, obj: Json) -> bool:
    """Return whether a quota counts a pod; one without scopes counts all."""
    scopes = [*map(str, as_list(at(quota, "spec", "scopes")))]
    expressions = objects_at(quota, "spec", "scopeSelector", "matchExpressions")
    if not scopes and not expressions:
        return True
    terminating = at(obj, "spec", "activeDeadlineSeconds") is not None
    best_effort = at(obj, "status", "qosClass") == "BestEffort"
    holds = {
        "Terminating": terminating,
        "NotTerminating": not terminating,
        "BestEffort": best_effort,
        "NotBestEffort": not best_effort,
    }
    return all(holds.get(scope, True) for scope in scopes) and all(_selects(each, obj, holds) for each in expressions)


def _selects(expression: Json, obj: Json, holds: dict[str, bool]) -> bool:
    scope, operator = str(expression.get("scopeName")), expression.get("operator")
    if scope != "PriorityClass":
        return holds.get(scope, True)
    name = at(obj, "spec", "priorityClassName")
    match operator:
        case "In":
            return name in as_list(expression.get("values"))
        case "NotIn":
            return name not in as_list(expression.get("values"))
        case "Exists":
            return bool(name)
        case _:
            return not name


class QuotaStatus:
    """Keeps the status of quotas: a store listener."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def on_change(self, shelf: str, change: Change) -> None:
        """Update the usage of the namespace's quotas after a change."""
        namespace = change.item.key[0]
        for item in list(self._store.shelf(SHELF).items.values()):
            hard = as_object(at(item.obj, "spec", "hard"))
            if item.key[0] != namespace or (shelf != SHELF and not any(_shelf(name) == shelf for name in hard)):
                continue
            used = used_in(self._store, namespace, item.obj)
            shown = {name: written(amount, like=str(hard[name])) for name, amount in used.items()}
            if (status := {"hard": copy(hard), "used": shown}) != item.obj.get("status"):
                self._store.put(SHELF, {**copy(item.obj), "status": status})
