"""The kubelet's socket for the API server (`egpu_sim.cluster.streams`): commands in containers, their own streams, and
usage."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import msgspec
import structlog

from egpu_sim.cluster.kubelet.attachment import attach, call, replay
from egpu_sim.cluster.kubelet.containers import ContainerRecord
from egpu_sim.cluster.kubelet.execution import Place, execute
from egpu_sim.cluster.kubelet.objects import Container
from egpu_sim.cluster.kubelet.runtime import Runtime, look
from egpu_sim.cluster.kubelet.usage import measure
from egpu_sim.cluster.kubelet.worker import PodWorker
from egpu_sim.cluster.streams import LINE_BYTES, SOCKET, Answer, Connection, Question, is_ours

log = structlog.get_logger(__name__)


class Streaming:
    """`workers` are the node's pods, by uid."""

    def __init__(self, runtime: Runtime, workers: Mapping[str, PodWorker]) -> None:
        self._runtime = runtime
        self._workers = workers

    @contextlib.asynccontextmanager
    async def serve(self, directory: Path) -> AsyncGenerator[None, None]:
        """Answer at `directory`/SOCKET until the context is left."""
        path = directory / SOCKET
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o600)
        server = await asyncio.start_unix_server(self._answer, sock=listener, limit=LINE_BYTES)
        try:
            yield
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            if is_ours(writer):
                await self._do(connection, msgspec.json.decode(await connection.hear(), type=Question))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, msgspec.MsgspecError) as error:
            log.info("a caller disconnected", reason=str(error))
        finally:
            writer.close()

    async def _do(self, connection: Connection, question: Question) -> None:
        if question.wants == "usage":
            await connection.say(Answer(found=await measure(self._workers)))
            return
        found = self._last(question)
        running = None if found is None else look(found[1])
        if found is None or (running is None and question.wants != "attach"):
            await connection.say(Answer(refused=f'container not found ("{question.container}")'))
            return
        container, directory = found
        if running is None:
            await connection.say(Answer())
            await replay(connection, question, directory)
        elif question.wants == "attach":
            await self._attach(connection, question, container, directory)
        else:
            await connection.say(Answer())
            place = Place(running.pid, container.working_dir or "/", self._runtime.wait(directory))
            await execute(connection, question, place)

    async def _attach(self, connection: Connection, question: Question, container: Container, directory: Path) -> None:
        try:
            supervisor = call(directory)
        except ConnectionRefusedError:  # It has just ended.
            await connection.say(Answer())
            await replay(connection, question, directory)
            return
        except OSError as error:
            await connection.say(Answer(refused=f"container {container.name}: {error.strerror}"))
            return
        with contextlib.closing(supervisor):
            await connection.say(Answer())
            await attach(connection, question, supervisor=supervisor, container=container, directory=directory)

    def _last(self, question: Question) -> tuple[Container, Path] | None:
        """Return the container with the directory of its last run; None before its first."""
        worker = self._workers.get(question.pod_uid)
        records: list[ContainerRecord] = [] if worker is None else [*worker.inits, *worker.apps]
        for record in records:
            if record.name == question.container and (last := record.last_begun) is not None:
                return record.container, last.directory
        return None
