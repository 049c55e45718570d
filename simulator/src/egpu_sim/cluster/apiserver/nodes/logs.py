"""pods/log: container output from the files that a kubelet on this machine writes.

A node's annotation `elasticgpu.io/pod-logs: DIRECTORY` names their directory. Below it they lie as with a real kubelet,
`<namespace>_<pod>_<uid>/<container>/<restart count>.log`, in the CRI's format (`egpu_sim.cluster.log_lines`). Another
cluster can pass its own `LogFinder`.
"""

import datetime
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.nodes.containers import chosen_container, container_status
from egpu_sim.cluster.apiserver.status import bad_request, forbidden_field, invalid, invalid_object
from egpu_sim.cluster.apiserver.storage.store import Store, Stored
from egpu_sim.cluster.container_log import ContainerLog, Wanted
from egpu_sim.cluster.streams import LOGS_ANNOTATION
from egpu_sim.cluster.trees import Json, at, name_of, namespace_of, uid_of

LogFinder: TypeAlias = Callable[[Json, str, bool], Path | None]
"""(pod, container, previous run instead of the present one) → its log file, or None."""


def annotated_logs(store: Store) -> LogFinder:
    """Return the finder that reads the node's annotation."""

    def find(pod: Json, container: str, previous: bool) -> Path | None:
        node = store.get("nodes", ("", str(at(pod, "spec", "nodeName") or "")))
        root = None if node is None else at(node.obj, "metadata", "annotations", LOGS_ANNOTATION)
        if not root:
            return None
        restarts = int(container_status(pod, container).get("restartCount") or 0) - int(previous)
        return Path(str(root)) / f"{namespace_of(pod)}_{name_of(pod)}_{uid_of(pod)}" / container / f"{restarts}.log"

    return find


def _is_over(pod: Json | None, container: str) -> bool:
    if pod is None or at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return True
    return at(container_status(pod, container), "state", "terminated") is not None


class LogReader:
    """One request for a log, with a `query` of PodLogOptions. Raises RequestRefused when constructed for an unknown
    container or invalid options."""

    def __init__(self, store: Store, find: LogFinder, call: Call, pod: Stored, query: Mapping[str, str]) -> None:
        self._store = store
        self._pod = pod
        wanted = Wanted(
            follow=query.get("follow") in ("true", "1"),
            tail_lines=_number(query, "tailLines"),
            limit_bytes=_number(query, "limitBytes"),
            since_ns=_since(query),
            timestamps=query.get("timestamps") in ("true", "1"),
        )
        self.container = chosen_container(call, query, pod.obj)
        previous = query.get("previous") in ("true", "1")
        path = find(pod.obj, self.container, previous)
        if path is None or not path.is_file():
            which = "previous terminated container" if previous else "container"
            raise bad_request(
                f'{which} "{self.container}" in pod "{call.name}" has no log'
                + ("" if previous else f" (waiting to start: {_waiting_reason(pod.obj, self.container)})")
            )
        self._log = ContainerLog(path, wanted, self._ended)

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the log's text; with `follow`, until the container has ended."""
        return self._log.chunks()

    def _ended(self) -> bool:
        current = self._store.get("pods", self._pod.key)
        same = current is not None and uid_of(current.obj) == uid_of(self._pod.obj)
        return _is_over(current.obj if current is not None and same else None, self.container)


def _waiting_reason(pod: Json, container: str) -> str:
    return str(at(container_status(pod, container), "state", "waiting", "reason") or "ContainerCreating")


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise bad_request(f"{name}: {text!r} is not a number")
    return int(text)


def _since(query: Mapping[str, str]) -> int:
    """Return the time of the first wanted line, in nanoseconds since 1970. Raises RequestRefused."""
    seconds, moment = _number(query, "sinceSeconds"), query.get("sinceTime", "")
    if seconds is not None and moment:
        cause = forbidden_field("", "at most one of `sinceTime` or `sinceSeconds` may be specified")
    elif seconds == 0:
        cause = invalid("sinceSeconds", 0, "must be greater than 0")
    elif seconds is not None:
        return time.time_ns() - seconds * 10**9
    elif not moment:
        return 0
    else:
        try:
            return int(datetime.datetime.fromisoformat(moment).timestamp()) * 10**9
        except ValueError:
            raise bad_request(f"sinceTime: {moment!r} is not a time of RFC 3339") from None
    raise invalid_object("", "PodLogOptions", "", [cause])
