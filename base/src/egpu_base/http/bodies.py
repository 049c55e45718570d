"""Limit the memory that the bodies of all requests take together, where any caller may send some.

When there is no more room, the oldest body that is still being received is dropped. A good client sends its body within
a moment, and one that sends drop by drop is the oldest.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from egpu_base.http.web import body_within


@dataclass(eq=False)
class _Body:
    held_bytes: int = 0


class Bodies:
    """The bodies that are held at one time. Not thread-safe: for one event loop."""

    def __init__(self, *, at_most_bytes: int) -> None:
        self._at_most_bytes = at_most_bytes
        self._held_bytes = 0
        self._coming: dict[_Body, asyncio.Timeout] = {}
        """Oldest first."""

    @contextlib.asynccontextmanager
    async def read(self, request: Request, limit_bytes: int) -> AsyncGenerator[bytes]:
        """Read the body, which counts until the block ends. Raises HTTPException as `body_within` does, and 503 when
        the bodies that are being answered leave no room."""
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
                raise HTTPException(503, "too many bytes in flight; try again")
            del self._coming[oldest]
            its_deadline.reschedule(asyncio.get_running_loop().time())
            self._held_bytes -= oldest.held_bytes
            oldest.held_bytes = 0
        body.held_bytes += size
        self._held_bytes += size
