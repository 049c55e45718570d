"""Addresses to listen on, and sockets there."""

import ipaddress
import socket
from dataclasses import dataclass

from egpu_base.errors import InvalidInput

BACKLOG = 1024


@dataclass(frozen=True)
class Listen:
    """An address to listen on; port 0 takes any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Listen":
        """Parse "host:port", "[v6]:port" or ":port" (every interface). Raises InvalidInput."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise InvalidInput("listen", f"{text!r} is not HOST:PORT, such as 127.0.0.1:8080")
        return cls(host.strip("[]") or "0.0.0.0", int(port))

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def open_socket(listen: Listen) -> socket.socket:
    """Open a listening socket. Raises InvalidInput with the address and the reason."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    # The protocol is explicit: asyncio turns Nagle's delay off (40 ms an answer) only on sockets that name TCP.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((listen.host, listen.port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise InvalidInput("listen", f"cannot listen on {listen}: {error.strerror or error}") from error
    sock.setblocking(False)
    return sock


def bound(sock: socket.socket) -> Listen:
    """Return the actual address of the socket."""
    host, port = sock.getsockname()[:2]
    return Listen(host, port)
