"""The kubelet's own port, where an API server of another project asks for containers' logs.

HTTPS on loopback; clients need a certificate of the authority in the kubelet's configuration.

Known difference: the port serves nothing else, so no `exec`, `attach` and `port-forward`.
"""

import asyncio
import datetime
import socket
import time
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from egpu_base.http import web
from egpu_sim.cluster.container_log import ContainerLog, Wanted
from egpu_sim.cluster.kubelet.config import KubeletConfig, Listening
from egpu_sim.cluster.kubelet.containers import ContainerRecord
from egpu_sim.cluster.kubelet.launch import log_file
from egpu_sim.cluster.kubelet.worker import PodWorker


class KubeletPort:
    """`workers` are the node's pods, by uid."""

    def __init__(self, config: KubeletConfig, workers: Mapping[str, PodWorker]) -> None:
        self._config = config
        self._workers = workers

    async def serve(self, listening: Listening) -> None:
        """Answer until cancelled. Raises InvalidInput for bad certificates, OSError for a port that is taken."""
        tls = web.TLS(client_ca=listening.client_ca)
        tls.load_files(listening.certificate, listening.key)
        bound = socket.create_server(("127.0.0.1", listening.port))
        bound.setblocking(False)
        app = Starlette(routes=[Route("/containerLogs/{namespace}/{pod}/{container}", self._logs)])
        await web.serve(app, [bound], tls=tls)

    async def _logs(self, request: Request) -> Response:
        """Answer as `kubectl logs` needs it. The API server has validated the query."""
        where, query = request.path_params, request.query_params
        found = self._container(where["namespace"], where["pod"], where["container"])
        if found is None:
            return PlainTextResponse(f"container {where['container']!r} of pod {where['pod']!r} is not here", 404)
        worker, record = found
        runs = record.runs()
        previous = query.get("previous") == "true"
        number = len(runs) - 1 - previous
        path = log_file(self._config, worker.pod, record.name, runs[number].number) if number >= 0 else None
        if path is None or not await asyncio.to_thread(path.is_file):
            which = "previous terminated container" if previous else "container"
            return PlainTextResponse(f"{which} {record.name!r} in pod {where['pod']!r} has no log", 400)
        run = runs[number]
        log = ContainerLog(path, _wanted(query), lambda: run.exit is not None)
        return StreamingResponse(log.chunks(), media_type="text/plain")

    def _container(self, namespace: str, pod: str, container: str) -> tuple[PodWorker, ContainerRecord] | None:
        for worker in self._workers.values():
            if (worker.pod.namespace, worker.pod.name) == (namespace, pod):
                for record in (*worker.inits, *worker.apps):
                    if record.name == container:
                        return worker, record
        return None


def _wanted(query: Mapping[str, str]) -> Wanted:
    since_ns = 0
    if seconds := query.get("sinceSeconds"):
        since_ns = time.time_ns() - int(seconds) * 10**9
    elif moment := query.get("sinceTime"):
        since_ns = int(datetime.datetime.fromisoformat(moment).timestamp()) * 10**9
    tail, limit = query.get("tailLines"), query.get("limitBytes")
    return Wanted(
        follow=query.get("follow") == "true",
        tail_lines=None if tail is None else int(tail),
        limit_bytes=None if limit is None else int(limit),
        since_ns=since_ns,
        timestamps=query.get("timestamps") == "true",
    )
