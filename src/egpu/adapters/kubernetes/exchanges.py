"""A request and its whole answer, straight over the transport where that can be.

httpx2 looks at addresses, headers, cookies, redirects and encodings for longer than all the rest of an exchange takes,
and a binding is two exchanges. So its way is gone once, and again whenever the server does not know us any more; the
headers that it found every request must have (who we are among them) then go with all others as they are.
"""

import re
from collections.abc import Mapping
from typing import Final

import httpx2

from egpu.adapters.kubernetes.transport import Answer, Transport

UNAUTHORIZED: Final = 401
"""Nothing was done. A token may have been replaced, which httpx2's authentication looks up again."""
_PLAIN_PATH: Final = re.compile(r"[\w./:~-]+", re.ASCII)
"""Of other letters httpx2 knows how they are written."""
_OF_EVERY_REQUEST: Final = frozenset({b"host", b"user-agent", b"authorization"})


class Exchanges:
    """With one server. `transport`: that of `http`, where it is ours."""

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
        """Raises httpx2.HTTPError where no whole answer came."""
        if self._transport is not None and self._standing and params is None and _PLAIN_PATH.fullmatch(path):
            sent = self._request(method, path, content, headers)
            answer = await self._transport.exchange(sent, self._http.base_url, self._http.timeout)
            if answer.status != UNAUTHORIZED:
                return answer
        response = await self._http.request(method, self._base + path, content=content, params=params, headers=headers)
        kept = [pair for pair in response.request.headers.raw if pair[0].lower() in _OF_EVERY_REQUEST]
        self._standing = b"".join(b"%b: %b\r\n" % pair for pair in kept)
        return Answer(response.status_code, response.content)

    def _request(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> bytes:
        """As it is sent, with its body."""
        length = b"" if content is None else b"Content-Length: %d\r\n" % len(content)
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        line = b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self._folder, path.encode())
        return b"".join((line, self._standing, own.encode(), length, b"\r\n", content or b""))
