"""Channels and servers on unix sockets, and our errors as gRPC statuses: shared by both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from egpu_base.errors import ElasticGPUError, NotSupported, RetryableError, TerminalError, Unavailable

T = TypeVar("T")

#: kubelet itself refuses a device list above 4 MiB; the pod list of a full node may be larger.
MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
#: Linux: sizeof(sockaddr_un.sun_path) with its final zero.
SOCKET_PATH_LIMIT_BYTES = 107

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    # Go's server refuses the percent-encoded socket path that this library would send as :authority.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
]

RECONNECT_SECONDS = 0.2
#: Without it the library waits ever longer, up to two minutes, although kubelet restarts within seconds.
_RECONNECTING: list[tuple[str, Any]] = [
    (f"grpc.{name}_reconnect_backoff_ms", int(RECONNECT_SECONDS * 1000)) for name in ("initial", "min", "max")
]


def address(socket: Path) -> str:
    """Return `socket` as a gRPC target. Raises NotSupported for a path that is too long for a unix socket."""
    path = str(socket.absolute())
    if len(path.encode()) > SOCKET_PATH_LIMIT_BYTES:
        raise NotSupported(
            f"{path}: a unix socket's path has at most {SOCKET_PATH_LIMIT_BYTES} bytes; use a shorter --kubelet-dir"
        )
    return f"unix:{path}"


def channel(socket: Path) -> grpc.aio.Channel:
    """Return a channel to the server at `socket`. It reconnects on use, at most RECONNECT_SECONDS after a failure."""
    return grpc.aio.insecure_channel(address(socket), options=[*_OPTIONS, *_RECONNECTING])


def server() -> grpc.aio.Server:
    aio: Any = grpc.aio  # its stubs leave type arguments open
    return aio.server(options=_OPTIONS)


async def listen(listener: grpc.aio.Server, socket: Path) -> None:
    """Start `listener` on `socket`, replacing a stale one. Raises Unavailable when the path cannot be bound."""
    target = address(socket)
    socket.parent.mkdir(parents=True, exist_ok=True)
    try:
        listener.add_insecure_port(target)
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {socket}: {error}") from error
    await listener.start()


async def call(reply: Awaitable[T], what: str, *, timeout_seconds: float) -> T:
    """Await one unary call. Turn gRPC's errors into ours: an error that is worth a retry is Unavailable."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await reply
    except TimeoutError as error:
        raise Unavailable(f"{what}: no answer within {timeout_seconds:g} s") from error
    except grpc.aio.AioRpcError as error:
        raise translated(error, what) from error
    except asyncio.CancelledError:
        # A channel closed under a running call cancels the call, not us.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Unavailable(f"{what}: the connection was closed") from None


def translated(error: grpc.aio.AioRpcError, what: str) -> ElasticGPUError:
    detail = f"{what}: {error.details() or error.code().name}"
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return NotSupported(detail)
    if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
        return TerminalError(detail)
    return Unavailable(detail)


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: ElasticGPUError) -> NoReturn:
    """Answer a call with `error`; kubelet puts the text into the pod's event."""
    retryable = isinstance(error, RetryableError)
    await context.abort(grpc.StatusCode.UNAVAILABLE if retryable else grpc.StatusCode.FAILED_PRECONDITION, str(error))
    raise AssertionError("abort does not return")
