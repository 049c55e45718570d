"""An application to which bodies are posted, on a few paths: Starlette's requests and answers, and nothing else of it,
for what it does around a page costs more than some of the answers."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]


class Posts:
    """An ASGI application. A handler answers all that can go wrong; what it raises all the same is the server's 500."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        """`handlers` by path."""
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["path"])
        if handler is None:
            response: Response = PlainTextResponse("Not Found", status_code=404)
        elif scope["method"] != "POST":
            response = PlainTextResponse("Method Not Allowed", status_code=405, headers={"Allow": "POST"})
        else:
            response = await handler(Request(scope, receive))
        await response(scope, receive, send)
