"""Columns of the kinds whose controllers make pods, as `kubectl get` prints them."""

from egpu_sim.cluster.apiserver.reading.table import AGE, NAME, Cell, Column, age
from egpu_sim.cluster.trees import Json, age_seconds, as_object, at, objects_at


def _number(*path: str) -> Cell:
    return lambda obj: int(at(obj, *path) or 0)


def _of(status: str, spec: str) -> Cell:
    return lambda obj: f"{at(obj, 'status', status) or 0}/{at(obj, 'spec', spec) or 0}"


def _containers(key: str) -> Cell:
    return lambda obj: ",".join(str(c.get(key)) for c in objects_at(obj, "spec", "template", "spec", "containers"))


def _selector(obj: Json) -> str:
    labels = as_object(at(obj, "spec", "selector", "matchLabels"))
    return ",".join(f"{key}={value}" for key, value in labels.items()) or "<none>"


_WIDE = (
    Column("Containers", _containers("name"), priority=1),
    Column("Images", _containers("image"), priority=1),
    Column("Selector", _selector, priority=1),
)

DEPLOYMENTS = (
    NAME,
    Column("Ready", _of("readyReplicas", "replicas")),
    Column("Up-to-date", _number("status", "updatedReplicas"), type="integer"),
    Column("Available", _number("status", "availableReplicas"), type="integer"),
    AGE,
    *_WIDE,
)
REPLICA_SETS = (
    NAME,
    Column("Desired", _number("spec", "replicas"), type="integer"),
    Column("Current", _number("status", "replicas"), type="integer"),
    Column("Ready", _number("status", "readyReplicas"), type="integer"),
    AGE,
    *_WIDE,
)


def _node_selector(obj: Json) -> str:
    labels = as_object(at(obj, "spec", "template", "spec", "nodeSelector"))
    return ",".join(f"{key}={value}" for key, value in labels.items()) or "<none>"


DAEMON_SETS = (
    NAME,
    Column("Desired", _number("status", "desiredNumberScheduled"), type="integer"),
    Column("Current", _number("status", "currentNumberScheduled"), type="integer"),
    Column("Ready", _number("status", "numberReady"), type="integer"),
    Column("Up-to-date", _number("status", "updatedNumberScheduled"), type="integer"),
    Column("Available", _number("status", "numberAvailable"), type="integer"),
    Column("Node Selector", _node_selector),
    AGE,
    *_WIDE,
)
STATEFUL_SETS = (NAME, Column("Ready", _of("readyReplicas", "replicas")), AGE, *_WIDE[:2])


def _job_status(job: Json) -> str:
    kinds = {str(c.get("type")) for c in objects_at(job, "status", "conditions") if c.get("status") == "True"}
    for kind, word in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if kind in kinds:
            return word
    return "Terminating" if at(job, "metadata", "deletionTimestamp") else "Running"


def _completions(job: Json) -> str:
    succeeded, wanted = at(job, "status", "succeeded") or 0, at(job, "spec", "completions")
    parallel = at(job, "spec", "parallelism") or 0
    return f"{succeeded}/1 of {parallel}" if wanted is None else f"{succeeded}/{wanted}"


def _duration(job: Json) -> str:
    start, end = age_seconds(at(job, "status", "startTime")), age_seconds(at(job, "status", "completionTime"))
    if start is None:
        return ""
    return age(at(job, "status", "startTime")) if end is None else f"{int(start - end)}s"


JOBS = (
    NAME,
    Column("Status", _job_status),
    Column("Completions", _completions),
    Column("Duration", _duration),
    AGE,
    *_WIDE,
)


def _pairs(quota: Json, prefix: str, *, requests: bool) -> str:
    hard, used = as_object(at(quota, "status", "hard")), as_object(at(quota, "status", "used"))
    names = [name for name in sorted(hard) if name.startswith(prefix) == (not requests)]
    return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in names)


QUOTAS = (
    NAME,
    Column("Request", lambda quota: _pairs(quota, "limits.", requests=True)),
    Column("Limit", lambda quota: _pairs(quota, "limits.", requests=False)),
    AGE,
)
PRIORITY_CLASSES = (
    NAME,
    Column("Value", _number("value"), type="integer"),
    Column("Global-Default", lambda each: bool(each.get("globalDefault")), type="boolean"),
    AGE,
    Column("PreemptionPolicy", lambda each: str(each.get("preemptionPolicy") or "")),
)


def _amount(field: str) -> Cell:
    return lambda budget: str(found) if (found := at(budget, "spec", field)) is not None else "N/A"


DISRUPTION_BUDGETS = (
    NAME,
    Column("Min Available", _amount("minAvailable")),
    Column("Max Unavailable", _amount("maxUnavailable")),
    Column("Allowed Disruptions", _number("status", "disruptionsAllowed"), type="integer"),
    AGE,
)
