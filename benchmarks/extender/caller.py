"""Ask as kube-scheduler and an API server do, one request after another on one connection, and measure the cost."""

import gc
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Final, NamedTuple

MAX_BYTES: Final = 16 << 20
"""The size limit of a request or an answer."""
MAX_HEAD_BYTES: Final = 1 << 14


class Asked(NamedTuple):
    """An answer's body, its duration, and the server's processor time meanwhile."""

    body: bytes
    seconds: float
    processor_seconds: float


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process so far, to the nanosecond."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9


def memory_mib(pid: int) -> float:
    """Return a process's own resident memory, in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no Pss")


class Caller:
    """One connection, in TLS with the certificates of `folder`, to the process `pid`. Context manager.

    Its own memory is allocated before the clock runs: half a megabyte in new memory for each request costs a
    millisecond of page faults, which would count for the server.
    """

    def __init__(self, port: int, folder: Path, pid: int) -> None:
        context = ssl.create_default_context(cafile=folder / "ca.crt")
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self._pid = pid
        self._buffer = memoryview(bytearray(os.urandom(MAX_BYTES)))  # written to, and so allocated

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def get(self, path: str) -> Asked:
        """Ask for an object. Raises RuntimeError for any answer but a success."""
        return self._ask("GET", path, b"")

    def post(self, path: str, body: bytes) -> Asked:
        """Send a request. Raises RuntimeError for any answer but a success."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: bytes) -> Asked:
        length = f"Content-Length: {len(body)}"
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{length}"
        text = head.encode() + b"\r\n\r\n" + body
        self._buffer[: len(text)] = text
        gc.disable()
        spent, began = processor_seconds(self._pid), time.perf_counter()
        self._socket.sendall(self._buffer[: len(text)])
        status, answer = self._read()
        took = time.perf_counter() - began
        spent = processor_seconds(self._pid) - spent
        gc.enable()
        found = bytes(answer)
        if status not in (200, 201):
            raise RuntimeError(f"{path}: {status} {found[:300]!r}")
        return Asked(found, took, spent)

    def _read(self) -> tuple[int, memoryview]:
        """Return status and body of the answer, which stays until the next."""
        size, end = 0, -1
        while end < 0:
            size = self._some(size)
            end = bytes(self._buffer[: min(size, MAX_HEAD_BYTES)]).find(b"\r\n\r\n")
        head = bytes(self._buffer[:end]).lower()
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        whole = end + len(b"\r\n\r\n") + length
        if whole > MAX_BYTES:
            raise RuntimeError(f"an answer of {length} bytes")
        while size < whole:
            size = self._some(size)
        return int(head.split(b" ", 2)[1]), self._buffer[whole - length : whole]

    def _some(self, size: int) -> int:
        """Read on; return how many bytes are there now."""
        found = self._socket.recv_into(self._buffer[size:])
        if not found:
            raise RuntimeError("the server closed the connection")
        return size + found
