"""A client of an executor that says what it likes: frames of the wire (docs/internals/wire.md), true or not."""

import secrets
import socket
import struct
from pathlib import Path
from typing import Any, Final

from support.repository import ROOT
from support.waiting import DEADLINE_SECONDS

OPS: Final = {
    parts[2]: int(parts[1])
    for parts in (line.split() for line in (ROOT / "native/wire/ops.txt").read_text().splitlines())
    if parts[0] == "op"
}
HASH: Final = int(
    next(
        line.split("(")[1].rstrip(")")
        for line in (ROOT / "native/wire/generated/ops.h").read_text().splitlines()
        if "TABLE_HASH" in line
    ),
    16,
)


def hello(*, token: bytes = b"", session: bytes | None = None, table: int = HASH, flags: int = 0) -> bytes:
    body = struct.pack(
        "<8sIIQ16sIIIIQ", b"EGPUWIRE", 1, 0, table, session or secrets.token_bytes(16), 1, len(token), flags, 0, 0
    )
    return struct.pack("<HHIQ", 1, 0, len(body) + len(token), 0) + body + token


class Raw:
    """A client that says what it likes."""

    def __init__(self, sock: Path, **fields: Any) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(str(sock))
        self.socket.sendall(hello(**fields))
        op, _, length, _ = struct.unpack("<HHIQ", self.take(16))
        body = self.take(length)
        assert op == 2
        self.status = struct.unpack("<I", body[:4])[0]
        if self.status == 0:
            self.socket.sendall(struct.pack("<HHIQII", 9, 0, 8, 0, 0, 0))
        self.seq = 0

    def take(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            data = self.socket.recv(count - len(got))
            if not data:
                raise EOFError
            got += data
        return got

    def post(
        self, op: int | str, payload: bytes = b"", *, flags: int = 1, length: int | None = None, seq: int | None = None
    ) -> None:
        self.seq += 1
        number = OPS[op] if isinstance(op, str) else op
        header = struct.pack(
            "<HHIQ", number, flags, len(payload) if length is None else length, self.seq if seq is None else seq
        )
        self.socket.sendall(header + payload)

    def call(self, op: int | str, payload: bytes = b"") -> tuple[int, bytes]:
        self.post(op, payload)
        while True:
            kind, _, length, _ = struct.unpack("<HHIQ", self.take(16))
            body = self.take(length)
            if kind == 3:
                return struct.unpack("<I", body[:4])[0], body[8:]

    def gone(self) -> bool:
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True
