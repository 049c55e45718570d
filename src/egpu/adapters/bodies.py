"""What the bodies of requests take of memory, all together, where anybody may send some.

When there is no room for more, the oldest that is still coming goes: who is what he says he is sends his within a
moment, and who sends drop by drop is the oldest.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from egpu.adapters.web import body_within


@dataclass(eq=False)
class _Body:
    held_bytes: int = 0


class Bodies:
    """Those that are held at one time. Not thread-safe: one event loop's."""

    def __init__(self, *, at_most_bytes: int) -> None:
        self._at_most_bytes = at_most_bytes
        self._held_bytes = 0
        self._coming: dict[_Body, asyncio.Timeout] = {}
        """Oldest first."""

    @contextlib.asynccontextmanager
    async def read(self, request: Request, limit_bytes: int) -> AsyncGenerator[bytes]:
        """The body, which counts until the block ends. Raises HTTPException as `body_within` does, and 503 when those
        that are being answered leave no room."""
        body = _Body()
        try:
            whole = await body_within(
                request, limit_bytes, on_chunk=lambda size, deadline: self._grow(body, size, deadline)
            )
            self._coming.pop(body, None)
            yield whole
        finally:
            self._coming.pop(body, None)
            self._held_bytes -= body.held_bytes

    def _grow(self, body: _Body, size: int, deadline: asyncio.Timeout) -> None:
        self._coming.setdefault(body, deadline)
        while self._held_bytes + size > self._at_most_bytes:
            oldest, its_deadline = next(iter(self._coming.items()))
            if oldest is body:
                raise HTTPException(503, "too much is being sent at once; try again")
            del self._coming[oldest]
            its_deadline.reschedule(asyncio.get_running_loop().time())
            self._held_bytes -= oldest.held_bytes
            oldest.held_bytes = 0
        body.held_bytes += size
        self._held_bytes += size
