"""pods/log: container output read from the files that a kubelet on this machine writes.

A node says where its files are with the annotation `elasticgpu.io/pod-logs: DIRECTORY`; below it they lie as a kubelet
keeps them, `<namespace>_<pod>_<uid>/<container>/<restart count>.log`, one line of output per line. A cluster that
knows better passes its own `LogFinder`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

from egpu.embedded.apiserver.calls import Call
from egpu.embedded.apiserver.objects import Json, as_object, at, name_of, namespace_of, objects_at, uid_of
from egpu.embedded.apiserver.status import bad_request
from egpu.embedded.apiserver.store import Store, Stored

LOGS_ANNOTATION = "elasticgpu.io/pod-logs"
CHUNK_BYTES = 64 * 1024
POLL_SECONDS = 0.1
"""How often a followed file is looked at."""

_UNSUPPORTED = ("sinceSeconds", "sinceTime", "timestamps")

LogFinder: TypeAlias = Callable[[Json, str, bool], Path | None]
"""(pod, container, previous run instead of the present one) → its log file, or None when there is none."""


def annotated_logs(store: Store) -> LogFinder:
    """The finder that goes by the node's annotation."""

    def find(pod: Json, container: str, previous: bool) -> Path | None:
        node = store.get("nodes", ("", str(at(pod, "spec", "nodeName") or "")))
        root = None if node is None else at(node.obj, "metadata", "annotations", LOGS_ANNOTATION)
        if not root:
            return None
        restarts = int(_container_status(pod, container).get("restartCount") or 0) - int(previous)
        return Path(str(root)) / f"{namespace_of(pod)}_{name_of(pod)}_{uid_of(pod)}" / container / f"{restarts}.log"

    return find


def _container_status(pod: Json, container: str) -> Json:
    lists = ("initContainerStatuses", "containerStatuses")
    found = (s for name in lists for s in objects_at(pod, "status", name) if s.get("name") == container)
    return next(found, Json())


def _is_over(pod: Json | None, container: str) -> bool:
    """Whether nothing more will be written to the present log."""
    if pod is None or at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return True
    return at(_container_status(pod, container), "state", "terminated") is not None


class LogReader:
    """One request for a log. Raises RequestRefused when constructed for a container that is not there."""

    def __init__(self, store: Store, find: LogFinder, call: Call, pod: Stored) -> None:
        self._store = store
        self._pod = pod
        self.container = _chosen_container(call, pod.obj)
        query = call.query
        for name in _UNSUPPORTED:
            if query.get(name) not in (None, "", "false"):
                raise bad_request(f"{name} is not supported by this server: its logs carry no times")
        self._follow = query.get("follow") in ("true", "1")
        self._tail = _number(query, "tailLines")
        self._limit = _number(query, "limitBytes")
        previous = query.get("previous") in ("true", "1")
        if not at(pod.obj, "spec", "nodeName"):
            raise bad_request(f"pod {call.name} does not have a host assigned")
        path = find(pod.obj, self.container, previous)
        if path is None or not path.is_file():
            which = "previous terminated container" if previous else "container"
            raise bad_request(
                f'{which} "{self.container}" in pod "{call.name}" has no log'
                + ("" if previous else f" (waiting to start: {_waiting_reason(pod.obj, self.container)})")
            )
        self._path = path

    async def chunks(self) -> AsyncIterator[bytes]:
        """The log's bytes; with `follow`, until the container has ended."""
        left = self._limit
        with await asyncio.to_thread(self._path.open, "rb") as file:
            if self._tail is not None:
                await asyncio.to_thread(_seek_tail, file, self._tail)
            while True:
                over = not self._follow or self._ended()
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    if left is not None:
                        chunk = chunk[:left]
                        left -= len(chunk)
                    if chunk:
                        yield chunk
                    if left == 0:
                        return
                if over:
                    return
                await asyncio.sleep(POLL_SECONDS)

    def _ended(self) -> bool:
        current = self._store.get("pods", self._pod.key)
        same = current is not None and uid_of(current.obj) == uid_of(self._pod.obj)
        return _is_over(current.obj if current is not None and same else None, self.container)


def _waiting_reason(pod: Json, container: str) -> str:
    return str(at(_container_status(pod, container), "state", "waiting", "reason") or "ContainerCreating")


def _chosen_container(call: Call, pod: Json) -> str:
    spec = as_object(pod.get("spec"))
    names = [str(c.get("name")) for kind in ("initContainers", "containers") for c in objects_at(spec, kind)]
    wanted = call.query.get("container", "")
    if wanted:
        if wanted not in names:
            raise bad_request(f"container {wanted} is not valid for pod {call.name}")
        return wanted
    if len(names) != 1:
        raise bad_request(f"a container name must be specified for pod {call.name}, choose one of: [{' '.join(names)}]")
    return names[0]


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.isdecimal():
        raise bad_request(f"{name}: {text!r} is not a number")
    return int(text)


def _seek_tail(file: BinaryIO, lines: int) -> None:
    """Move to the start of the last `lines` lines."""
    if lines == 0:
        file.seek(0, 2)
        return
    starts: deque[int] = deque(maxlen=lines)
    position = 0
    for line in file:
        starts.append(position)
        position += len(line)
    file.seek(starts[0] if starts else 0)
