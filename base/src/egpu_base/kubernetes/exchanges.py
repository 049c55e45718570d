"""A request and its whole answer, straight over the transport if possible.

httpx2 handles addresses, headers, cookies, redirects and encodings, which takes longer than all the rest of an
exchange, and a binding is two exchanges. So httpx2 makes the first request, and one more whenever the server rejects
our credentials. Later requests reuse the headers that it made (our credentials among them).
"""

import re
from collections.abc import Mapping
from typing import Final

import httpx2

from egpu_base.kubernetes.transport import Answer, Transport

UNAUTHORIZED: Final = 401
"""The statuses after which nothing was done. A token may be replaced; httpx2's authentication reads it again."""
_PLAIN_PATH: Final = re.compile(r"[\w./:~-]+", re.ASCII)
"""The letters that need no encoding; httpx2 encodes others."""
_OF_EVERY_REQUEST: Final = frozenset({b"host", b"user-agent", b"authorization"})


class LongAnswer(Exception):
    """An answer that is longer than the caller takes. The rest of it is not read."""


class Exchanges:
    """Exchanges with one server. `transport` is the transport of `http`, where it is ours."""

    def __init__(self, http: httpx2.AsyncClient, transport: Transport | None = None) -> None:
        self._http = http
        self._transport = transport
        self._base = str(http.base_url).rstrip("/")
        self._folder = http.base_url.raw_path.rstrip(b"/")
        self._standing = b""
        """Header lines of every request; empty until httpx2 has made one."""

    async def ask(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str],
    ) -> Answer:
        """Send a request and return its answer. Raises httpx2.HTTPError without a whole answer."""
        if self._transport is not None and self._standing and params is None and _PLAIN_PATH.fullmatch(path):
            sent = self._request(method, path, content, headers)
            answer = await self._transport.exchange(sent, self._http.base_url, self._http.timeout)
            if answer.status != UNAUTHORIZED:
                return answer
        response = await self._http.request(method, self._base + path, content=content, params=params, headers=headers)
        kept = [pair for pair in response.request.headers.raw if pair[0].lower() in _OF_EVERY_REQUEST]
        self._standing = b"".join(b"%b: %b\r\n" % pair for pair in kept)
        return Answer(response.status_code, response.content)

    async def ask_bounded(
        self, path: str, *, params: Mapping[str, str], headers: Mapping[str, str], most: int
    ) -> Answer:
        """GET an answer of at most so many bytes. Raises httpx2.HTTPError without a whole answer, LongAnswer."""
        found: list[bytes] = []
        async with self._http.stream("GET", self._base + path, params=params, headers=headers) as response:
            async for chunk in response.aiter_bytes():
                found.append(chunk)
                if (most := most - len(chunk)) < 0:
                    raise LongAnswer(path)
        return Answer(response.status_code, b"".join(found))

    def _request(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Return the bytes of a request, with its body."""
        length = b"" if content is None else b"Content-Length: %d\r\n" % len(content)
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        line = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self._folder, path.encode())
        return b"".join((line, self._standing, own.encode(), length, b"\r\n", content or b""))
