"""uvicorn's HTTP protocol on a parser in C, with the one limit that this parser lacks: the bytes of a request besides
its body. uvicorn keeps all of them in memory until a request is whole."""

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
"""The limit of request line and headers, and of the trailer after a chunked body; as much again may be on its way."""


class BoundedProtocol(HttpToolsProtocol):
    """Close a connection that sends more than MAX_HEAD_BYTES without a byte of a body or the end of a request."""

    _aside_bytes = 0
    _useful = False

    def data_received(self, data: bytes) -> None:
        self._useful = False
        super().data_received(data)
        self._aside_bytes = 0 if self._useful else self._aside_bytes + len(data)
        if self._aside_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"headers: larger than {MAX_HEAD_BYTES} bytes")

    def on_body(self, body: bytes) -> None:
        self._useful = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._useful = True
        super().on_message_complete()
