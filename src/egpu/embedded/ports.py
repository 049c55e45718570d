"""Ports of this machine's loopback that stay ours until we give them back."""

import contextlib
import socket
from collections.abc import Generator


class Ports:
    """What components listen on, by the number alone, however often they are started again.

    A port that is only looked up and let go is somebody else's by the time its server starts, now and then. So each is
    kept by a socket that is bound and does not listen: Linux gives it to no program that asks for just any port, be
    it to listen or to connect, and yet lets whoever names it listen there, if both have set SO_REUSEADDR, as every
    server does. While nobody listens, connections are refused as ever.
    """

    def __init__(self) -> None:
        self._reserved: list[socket.socket] = []

    def take(self) -> int:
        """One more that nobody has."""
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        self._reserved.append(reserved)
        return reserved.getsockname()[1]

    def give_back(self) -> None:
        """All of them."""
        while self._reserved:
            self._reserved.pop().close()


@contextlib.contextmanager
def ports() -> Generator[Ports, None, None]:
    """Given back when the context is left."""
    taken = Ports()
    try:
        yield taken
    finally:
        taken.give_back()
