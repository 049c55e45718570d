"""Loopback ports that stay reserved until they are given back."""

import contextlib
import socket
from collections.abc import Generator


class Ports:
    """Ports of components, which stay the same across restarts.

    A port that is only looked up may be taken before its server starts. So a socket keeps each port: it is bound and
    does not listen. Linux then gives the port to no program that asks for any port, to listen or to connect. A program
    that names the port can still listen there if both sockets have set SO_REUSEADDR, as every server does. While no
    program listens, connections are refused as usual.
    """

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def take(self) -> int:
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        self._reserved.append(reserved)
        return reserved.getsockname()[1]

    def give_back(self) -> None:
        while self._reserved:
            self._reserved.pop().close()


@contextlib.contextmanager
def ports() -> Generator[Ports, None, None]:
    """Yield ports that are released when the context is left."""
    taken = Ports()
    try:
        yield taken
    finally:
        taken.give_back()
