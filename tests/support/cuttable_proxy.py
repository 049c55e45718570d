"""A way to a port of this machine that can be cut at any moment: all connections over it break, new ones are taken."""

import asyncio
import contextlib


class CuttableProxy:
    """Listens on `port` of loopback and carries bytes to `target`, a port of loopback as well."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)

    @property
    def connections(self) -> int:
        return len(self._open)

    def cut(self) -> int:
        """Break every connection, wherever in a message it is; how many there were."""
        count = len(self._open)
        for end in list(self._ends):
            end.transport.abort()
        return count

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        ends = [writer]
        self._ends.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                ends.append(back)
                self._ends.add(back)
                ways = [asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for end in ends:
                self._ends.discard(end)
                end.close()
            self._open.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
