"""Asks as kube-scheduler and an API server do: one request after another on one connection; and what that cost."""

import socket
import ssl
import time
from pathlib import Path
from typing import NamedTuple


class Asked(NamedTuple):
    """An answer's body, how long it took, and what the process that gave it spent meanwhile."""

    body: bytes
    seconds: float
    processor_seconds: float


def processor_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far, to the nanosecond."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9


def memory_mib(pid: int) -> float:
    """Of a process, what is resident and nobody else's, MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no Pss")


class Caller:
    """One connection, in TLS with the certificates of `folder`, to the process `pid`. Context manager."""

    def __init__(self, port: int, folder: Path, pid: int) -> None:
        context = ssl.create_default_context(cafile=folder / "ca.crt")
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self._pid = pid

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def post(self, path: str, body: bytes) -> Asked:
        """Raises RuntimeError for any answer but a success."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        spent, began = processor_seconds(self._pid), time.perf_counter()
        self._socket.sendall(head.encode() + b"\r\n\r\n" + body)
        status, answer = self._read()
        took = time.perf_counter() - began
        if status not in (200, 201):
            raise RuntimeError(f"{path}: {status} {answer[:300]!r}")
        return Asked(answer, took, processor_seconds(self._pid) - spent)

    def _read(self) -> tuple[int, bytes]:
        read = bytearray()
        while (end := read.find(b"\r\n\r\n")) < 0:
            read += self._some()
        head = bytes(read[:end]).lower()
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        del read[: end + 4]
        while len(read) < length:
            read += self._some()
        return int(head.split(b" ", 2)[1]), bytes(read)

    def _some(self) -> bytes:
        found = self._socket.recv(1 << 18)
        if not found:
            raise RuntimeError("the server hung up")
        return found
