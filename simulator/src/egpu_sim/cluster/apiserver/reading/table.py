"""`meta.k8s.io` Tables, which `kubectl get` prints. Columns of the built-in kinds, and those of CRDs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from egpu_sim.cluster.apiserver.reading import jsonpath
from egpu_sim.cluster.trees import (
    Json,
    age_seconds,
    as_list,
    as_object,
    at,
    encode,
    name_of,
    objects_at,
)

Cell: TypeAlias = Callable[[Json], Any]


@dataclass(frozen=True)
class Column:
    """One column; one of priority above 0 is in wide output only."""

    name: str
    cell: Cell
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""

    def definition(self) -> Json:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def age(timestamp: object) -> str:
    """Return an age as kubectl shows it: two units while short, one when long."""
    seconds = age_seconds(timestamp)
    if seconds is None:
        return "<unknown>"
    total = max(int(seconds), 0)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


NAME = Column("Name", name_of, format="name", description="Name must be unique within a namespace.")
AGE = Column("Age", lambda obj: age(at(obj, "metadata", "creationTimestamp")), description="Time since creation.")


def _text(*path: str, missing: str = "<none>") -> Cell:
    return lambda obj: str(value) if (value := at(obj, *path)) not in (None, "") else missing


def _count(*path: str) -> Cell:
    return lambda obj: len(at(obj, *path) or ())


def _sidecars(pod: Json) -> set[str]:
    """Return the names of the init containers that run as long as the pod."""
    starting = objects_at(pod, "spec", "initContainers")
    return {str(c.get("name")) for c in starting if c.get("restartPolicy") == "Always"}


def _counted(pod: Json) -> list[Json]:
    """Return the statuses of sidecars and containers."""
    sidecars = _sidecars(pod)
    starting = [s for s in objects_at(pod, "status", "initContainerStatuses") if s.get("name") in sidecars]
    return [*starting, *objects_at(pod, "status", "containerStatuses")]


def _pod_ready(pod: Json) -> str:
    total = len(as_list(at(pod, "spec", "containers"))) + len(_sidecars(pod))
    return f"{sum(bool(s.get('ready')) for s in _counted(pod))}/{total}"


def _container_state(status: Json) -> str:
    """Return why a container is not simply running; empty when it is."""
    waiting, terminated = at(status, "state", "waiting"), at(status, "state", "terminated")
    if waiting is not None:
        return str(as_object(waiting).get("reason") or "")
    if terminated is None:
        return ""
    end = as_object(terminated)
    if end.get("reason"):
        return str(end["reason"])
    return f"Signal:{end['signal']}" if end.get("signal") else f"ExitCode:{end.get('exitCode', 0)}"


def _initialising(pod: Json) -> str:
    """Return the state of the first init container that the pod waits for; empty when there is none."""
    conditions = objects_at(pod, "status", "conditions")
    if any(c.get("type") == "Initialized" and c.get("status") == "True" for c in conditions):
        return ""
    sidecars = _sidecars(pod)
    starting = objects_at(pod, "status", "initContainerStatuses")
    for number, status in enumerate(starting):
        terminated = at(status, "state", "terminated")
        if terminated is not None and as_object(terminated).get("exitCode") == 0:
            continue
        if status.get("name") in sidecars and status.get("started"):
            continue
        state = _container_state(status)
        return f"Init:{state}" if state and state != "PodInitializing" else f"Init:{number}/{len(starting)}"
    return ""


def _running_word(pod: Json, word: str) -> str:
    """Return the state of a pod whose init containers are done: its first container's that does not simply run."""
    running = False
    for status in reversed(objects_at(pod, "status", "containerStatuses")):
        state = _container_state(status)
        if state:
            word = state
        elif status.get("ready") and at(status, "state", "running") is not None:
            running = True
    return "Running" if word == "Completed" and running else word


def pod_status(pod: Json) -> str:
    """Return the one word (or reason) for a pod's state."""
    word = str(at(pod, "status", "reason") or at(pod, "status", "phase") or "Unknown")
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated"
        for c in objects_at(pod, "status", "conditions")
    ):
        word = "SchedulingGated"
    word = _initialising(pod) or _running_word(pod, word)
    if at(pod, "metadata", "deletionTimestamp"):
        word = "Unknown" if at(pod, "status", "reason") == "NodeLost" else "Terminating"
    return word


def _pod_restarts(pod: Json) -> str:
    every = objects_at(pod, "status", "initContainerStatuses") + objects_at(pod, "status", "containerStatuses")
    statuses = every if _initialising(pod) else _counted(pod)
    total = sum(int(s.get("restartCount") or 0) for s in statuses)
    ends = [end for s in statuses if (end := at(s, "lastState", "terminated", "finishedAt"))]
    return f"{total} ({age(max(ends))} ago)" if total and ends else str(total)


PODS = (
    NAME,
    Column("Ready", _pod_ready, description="Ready containers, of all."),
    Column("Status", pod_status, description="State of the pod."),
    Column("Restarts", _pod_restarts, description="Restarts of its containers."),
    AGE,
    Column("IP", _text("status", "podIP"), priority=1),
    Column("Node", _text("spec", "nodeName"), priority=1),
    Column("Nominated Node", _text("status", "nominatedNodeName"), priority=1),
    Column("Readiness Gates", lambda pod: "<none>", priority=1),
)


def _node_status(node: Json) -> str:
    ready = next((c for c in objects_at(node, "status", "conditions") if c.get("type") == "Ready"), None)
    words = ["Unknown"] if ready is None else ["Ready" if ready.get("status") == "True" else "NotReady"]
    return ",".join(words + (["SchedulingDisabled"] if at(node, "spec", "unschedulable") else []))


def _node_roles(node: Json) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in as_object(at(node, "metadata", "labels")) if key.startswith(prefix)]
    return ",".join(sorted(filter(None, roles))) or "<none>"


def _node_address(kind: str) -> Cell:
    def cell(node: Json) -> str:
        addresses = objects_at(node, "status", "addresses")
        return next((str(a.get("address")) for a in addresses if a.get("type") == kind), "<none>")

    return cell


NODES = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _node_roles),
    AGE,
    Column("Version", _text("status", "nodeInfo", "kubeletVersion", missing="")),
    Column("Internal-IP", _node_address("InternalIP"), priority=1),
    Column("External-IP", _node_address("ExternalIP"), priority=1),
    Column("OS-Image", _text("status", "nodeInfo", "osImage", missing="<unknown>"), priority=1),
    Column("Kernel-Version", _text("status", "nodeInfo", "kernelVersion", missing="<unknown>"), priority=1),
    Column(
        "Container-Runtime", _text("status", "nodeInfo", "containerRuntimeVersion", missing="<unknown>"), priority=1
    ),
)


def _event_times(event: Json) -> tuple[object, object, int]:
    """Return (first seen, last seen, count)."""
    series = as_object(event.get("series"))
    created = at(event, "metadata", "creationTimestamp")
    first = event.get("firstTimestamp") or event.get("eventTime") or created
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    return first, last, int(series.get("count") or event.get("count") or 1)


def _event_object(event: Json) -> str:
    return f"{str(at(event, 'involvedObject', 'kind') or '').lower()}/{at(event, 'involvedObject', 'name') or ''}"


def _event_source(event: Json) -> str:
    component = at(event, "source", "component") or event.get("reportingComponent") or ""
    host = at(event, "source", "host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


EVENTS = (
    Column("Last Seen", lambda e: age(_event_times(e)[1])),
    Column("Type", _text("type", missing="")),
    Column("Reason", _text("reason", missing="")),
    Column("Object", _event_object),
    Column("Subobject", _text("involvedObject", "fieldPath", missing=""), priority=1),
    Column("Source", _event_source, priority=1),
    Column("Message", lambda e: str(e.get("message") or "").strip()),
    Column("First Seen", lambda e: age(_event_times(e)[0]), priority=1),
    Column("Count", lambda e: _event_times(e)[2], type="integer", priority=1),
    Column("Name", name_of, format="name", priority=1),
)

NAMESPACES = (NAME, Column("Status", _text("status", "phase", missing="")), AGE)
CONFIG_MAPS = (
    NAME,
    Column("Data", lambda o: len(o.get("data") or ()) + len(o.get("binaryData") or ()), type="integer"),
    AGE,
)
SECRETS = (NAME, Column("Type", _text("type", missing="")), Column("Data", _count("data"), type="integer"), AGE)
SERVICE_ACCOUNTS = (NAME, Column("Secrets", _count("secrets"), type="integer"), AGE)
LEASES = (NAME, Column("Holder", _text("spec", "holderIdentity", missing="")), AGE)
WEBHOOKS = (NAME, Column("Webhooks", _count("webhooks"), type="integer"), AGE)
DEFINITIONS = (NAME, Column("Created At", _text("metadata", "creationTimestamp", missing="")))
SERVICES = (
    NAME,
    Column("Type", _text("spec", "type")),
    Column("Cluster-IP", _text("spec", "clusterIP")),
    Column("External-IP", lambda o: "<none>"),
    Column(
        "Port(s)",
        lambda o: (
            ",".join(f"{p.get('port')}/{p.get('protocol', 'TCP')}" for p in objects_at(o, "spec", "ports")) or "<none>"
        ),
    ),
    AGE,
)
DEFAULT = (NAME, AGE)


def declared_columns(declared: Iterable[Json]) -> tuple[Column, ...]:
    """Return the columns of a CRD version's `additionalPrinterColumns` (Name first; Age by default)."""
    columns = [_declared(column) for column in declared]
    return (NAME, *columns) if columns else DEFAULT


def _declared(column: Json) -> Column:
    path, kind = str(column.get("jsonPath") or ""), str(column.get("type") or "string")

    def cell(obj: Json) -> Any:
        try:
            found = jsonpath.find(obj, path)
        except ValueError:
            return None
        if not found:
            return None
        if kind == "date":
            return age(found[0])
        if kind in ("integer", "number"):
            return found[0] if isinstance(found[0], int | float) else None
        if kind == "boolean":
            return found[0] if isinstance(found[0], bool) else None
        return found[0] if isinstance(found[0], str) else encode(found[0]).decode()

    return Column(
        str(column.get("name") or ""),
        cell,
        type=kind,
        format=str(column.get("format") or ""),
        priority=int(column.get("priority") or 0),
        description=str(column.get("description") or ""),
    )


def partial(obj: Json, version: str) -> Json:
    """Return the object's metadata alone (`PartialObjectMetadata`)."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj.get("metadata", {}),
    }


def row(columns: Iterable[Column], obj: Json, version: str, include: str) -> Json:
    """Return one object as a row; `include` is Metadata (the default), Object or None."""
    cells: Json = {"cells": [column.cell(obj) for column in columns]}
    if include == "Object":
        cells["object"] = obj
    elif include != "None":
        cells["object"] = partial(obj, version)
    return cells


def table(
    columns: Iterable[Column], rows: list[Json], version: str, list_metadata: Json, *, header: bool = True
) -> Json:
    """Return a Table of rows; watches leave the header out after the first event."""
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": list_metadata,
        "columnDefinitions": [column.definition() for column in columns] if header else [],
        "rows": rows,
    }
