"""`kubectl exec`, `cp`, `attach` and `port-forward`: the streams of a container, by WebSocket.

Each message is one byte for the channel and the payload (`egpu_sim.cluster.streams` names the channels). The protocol
is Kubernetes' `v5.channel.k8s.io`, or version 4, which cannot close standard input. A request in the older protocol,
SPDY, gets advice (`absent`). The kubelet runs commands and has the streams of a container's own process.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from starlette.websockets import WebSocket, WebSocketDisconnect

from egpu_sim.cluster.apiserver.calls import Call
from egpu_sim.cluster.apiserver.nodes import forwarding, kubelets
from egpu_sim.cluster.apiserver.nodes.containers import chosen_container, container_status
from egpu_sim.cluster.apiserver.status import bad_request, unexplained
from egpu_sim.cluster.apiserver.storage.store import Store
from egpu_sim.cluster.streams import ERROR, STDERR, STDIN, STDOUT, Connection, Question
from egpu_sim.cluster.trees import Json, at, uid_of

STREAMED = ("exec", "attach", "portforward")
"""Subresources of pods."""
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STREAMS = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR}


class Streaming:
    """Carries out `create` of pods/exec and pods/attach."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def serve(self, call: Call, socket: WebSocket) -> None:
        """Serve a call. Raises RequestRefused before it accepts."""
        pod = self._store.get("pods", call.key)
        if pod is None:
            raise call.not_found()
        if call.subresource == "portforward":
            await self._forward(socket, pod.obj, call)
            return
        query = parse_qs(socket.scope["query_string"].decode(), keep_blank_values=True)
        single = {name: values[-1] for name, values in query.items()}
        container = running_container(call, single, pod.obj)
        protocol = _protocol(socket, PROTOCOLS)
        await self._pass(socket, protocol, pod.obj, _question(query, call, pod.obj, container))

    async def _pass(self, socket: WebSocket, protocol: str, pod: Json, question: Question) -> None:
        async with kubelets.ask(self._store, str(at(pod, "spec", "nodeName")), question) as (connection, answer):
            if answer.refused:
                raise unexplained(f"unable to upgrade connection: {answer.refused}")
            await socket.accept(protocol)
            sending = asyncio.create_task(_pass_on(socket, connection))
            try:
                while (frame := await connection.receive()) is not None:
                    channel, payload = frame
                    await socket.send_bytes(bytes([channel]) + payload)
                    if channel == ERROR:
                        break
                await socket.close()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _forward(self, socket: WebSocket, pod: Json, call: Call) -> None:
        if (phase := at(pod, "status", "phase")) != "Running":
            raise bad_request(f"pod {call.name} does not run: its phase is {phase}")
        await socket.accept(_protocol(socket, (forwarding.PROTOCOL,)))
        await forwarding.Forwarding(socket).serve()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client may have closed it
            await socket.close()


def _protocol(socket: WebSocket, known: Sequence[str]) -> str:
    """Return the first protocol that both sides have. Raises RequestRefused."""
    found = next((each for each in known if each in socket.scope["subprotocols"]), None)
    if found is None:
        raise bad_request(f"none of the protocols in the request is supported; supported are {', '.join(known)}")
    return found


def running_container(call: Call, query: Mapping[str, str], pod: Json) -> str:
    """Return the container of a call. Raises RequestRefused unless it runs, or has ended and its output is wanted."""
    container = chosen_container(call, query, pod)
    wanted = ("running", "terminated") if call.subresource == "attach" else ("running",)
    status = container_status(pod, container)
    if all(at(status, "state", one) is None for one in wanted):
        raise unexplained(f'unable to upgrade connection: container not found ("{container}")')
    return container


def _question(query: Mapping[str, list[str]], call: Call, pod: Json, container: str) -> Question:
    command = query.get("command", [])
    if call.subresource == "exec" and not command:
        raise bad_request("you must specify at least 1 command for the container")
    wanted = [channel for name, channel in _STREAMS.items() if query.get(name, [""])[-1] in ("true", "1")]
    terminal = query.get("tty", [""])[-1] in ("true", "1")
    if not wanted:
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    if terminal and STDERR in wanted:
        raise bad_request("tty and stderr cannot both be true")
    return Question(
        wants=call.subresource, pod_uid=uid_of(pod), container=container, command=command, streams=wanted,
        terminal=terminal,
    )  # fmt: skip


async def _pass_on(socket: WebSocket, connection: Connection) -> None:
    """Pass on the client's frames until the client goes. Then close the connection, and so end what it started, on any
    error: for TLS that was lost while nothing was read, uvicorn raises AttributeError."""
    try:
        with contextlib.suppress(WebSocketDisconnect, ConnectionError):
            while message := await socket.receive_bytes():
                await connection.send(message[0], message[1:])
    finally:
        connection.writer.close()
