"""Routes, authentication, and the headers of every answer.

/healthz and /readyz, the login form, and the files of `static` are open, and have no data of a cluster. Everything else
needs a bearer token, in a header or by the form, and shows what its owner may list."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from egpu.apps.dashboard.access import Gatekeeper
from egpu.apps.dashboard.knowledge import Knowledge
from egpu.apps.dashboard.pages import Looking, Pages
from egpu.apps.dashboard.rendering import digest, link, render
from egpu.apps.dashboard.sessions import Sessions
from egpu_base.errors import ElasticGPUError, NotFound
from egpu_base.http.web import body_within, open_routes
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.reviews import MAX_TOKEN_CHARACTERS, bearer_token

STATIC: Final = Path(__file__).parent / "static"
REFRESH_SECONDS: Final = 2
MAX_FORM_BYTES: Final = 4 * MAX_TOKEN_CHARACTERS
LOGIN: Final = "/login"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGES: Final = {
    "/": ("Overview", ("summary", "map", "pending")),
    "/workloads": ("Workloads", ("workloads",)),
    "/bill": ("Bill", ("bill",)),
    "/card": ("Card", ("card",)),
    "/pod": ("Pod", ("pod",)),
}
"""Pages that consist of live parts: title and parts."""

log = structlog.get_logger(__name__)

Answer = Callable[[Request, Looking], Response]


class DashboardServer:
    """The dashboard's HTTP server: `app`."""

    def __init__(self, client: Client, knowledge: Knowledge, *, secure: bool = False) -> None:
        """`secure`: it is served in TLS, and the browser sends its cookie nowhere else."""
        self._known = knowledge
        self._pages = Pages(knowledge)
        self._gatekeeper = Gatekeeper(client)
        self._sessions = Sessions()
        self._secure = secure

    def app(self) -> Starlette:
        routes = [
            *open_routes(self._known.not_ready),
            Route(LOGIN, self._login_form, methods=["GET"]),
            Route(LOGIN, self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            *(Route(path, self._guarded(self._page), methods=["GET"]) for path in PAGES),
            Route("/fit", self._guarded(self._fit), methods=["GET"]),
            Route("/policy", self._guarded(self._policy), methods=["GET"]),
            Route("/history", self._guarded(self._history), methods=["GET"]),
            Route("/parts/{part}", self._guarded(self._part), methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        handlers: Any = {HTTPException: _refused}
        compressed = Middleware(GZipMiddleware, minimum_size=1024)
        return Starlette(routes=routes, middleware=[Middleware(_Headed), compressed], exception_handlers=handlers)

    # --- who gets in ------------------------------------------------------------------------------------------------

    def _guarded(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                looking = await self._looking(request)
                return _sign_in(request) if looking is None else answer(request, looking)
            except NotFound as error:
                return _message(request, 404, "Not found", str(error))
            except ElasticGPUError as error:
                return _message(request, 503, "Not available now", str(error))

        return guarded

    async def _looking(self, request: Request) -> Looking | None:
        """Return what the user sees, or None without a valid token."""
        header = request.headers.get("authorization")
        if header is not None:
            token = bearer_token(header)
        else:
            token = self._sessions.token(request.cookies.get(_cookie(request), ""))
        if token is None:
            return None
        if (reason := self._known.not_ready()) is not None:
            raise HTTPException(503, f"this dashboard has just started: {reason}")
        access = await self._gatekeeper.access(token, self._known.namespaces())
        return None if access is None else self._pages.looking(access, request.query_params)

    async def _login_form(self, request: Request) -> Response:
        return HTMLResponse(render("login.html", {"problem": ""}))

    async def _login(self, request: Request) -> Response:
        """Accept a token that the API server knows."""
        if _of_another_site(request):
            raise HTTPException(403, "this form came from another site")
        form = parse_qs((await body_within(request, MAX_FORM_BYTES)).decode(errors="replace"))
        token = bearer_token(f"Bearer {form.get('token', [''])[0]}")
        try:
            known = token is not None and await self._gatekeeper.access(token, ()) is not None
        except ElasticGPUError as error:
            return HTMLResponse(render("login.html", {"problem": f"the API server does not answer: {error}"}), 503)
        if token is None or not known:
            return HTMLResponse(render("login.html", {"problem": "the API server does not know this token"}), 401)
        answer = RedirectResponse("./", 303)
        self._give_cookie(answer, request, self._sessions.begin(token))
        return answer

    async def _logout(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(_cookie(request), ""))
        answer = RedirectResponse(f".{LOGIN}", 303)
        self._give_cookie(answer, request, "", max_age=0)
        return answer

    def _give_cookie(self, answer: Response, request: Request, number: str, *, max_age: int | None = None) -> None:
        """Set a cookie without a path: it gets the path of the form, so other services behind the same proxy do not get
        it."""
        answer.set_cookie(
            _cookie(request),
            number,
            max_age=max_age,
            path=None,
            httponly=True,
            samesite="strict",
            secure=self._secure,
        )

    # --- answers ----------------------------------------------------------------------------------------------------

    def _page(self, request: Request, looking: Looking) -> Response:
        title, parts = PAGES[request.url.path]
        live = [self._live(part, looking)[0] for part in parts]
        chart = link("/history", **looking.query) if request.url.path == "/card" else ""
        return _html("page.html", looking, title=title, path=request.url.path, parts=live, chart=chart)

    def _part(self, request: Request, looking: Looking) -> Response:
        """Return a part, or 204 if the page has it already."""
        part = request.path_params["part"]
        if part not in self._pages.parts:
            raise NotFound(f"part {part} does not exist")
        live, seen = self._live(part, looking)
        if seen == request.query_params.get("seen"):
            return Response(status_code=204)
        return HTMLResponse(render("part.html", {"part": live}))

    def _live(self, part: str, looking: Looking) -> tuple[dict[str, Any], str]:
        """Return the values of a live part's template, and their digest."""
        content = render(f"parts/{part}.html", self._pages.parts[part](looking))
        seen = digest(content)
        asked = {key: value for key, value in looking.query.items() if key != "seen"} | {"seen": seen}
        return {
            "name": part,
            "content": content,
            "url": link(f"/parts/{part}", **asked),
            "seconds": REFRESH_SECONDS,
        }, seen

    def _fit(self, request: Request, looking: Looking) -> Response:
        return _html("fit.html", looking, title="Would it fit?", path=request.url.path, **self._pages.fit(looking))

    def _policy(self, request: Request, looking: Looking) -> Response:
        return _html("policy.html", looking, title="Policy", path=request.url.path, **self._pages.policy(looking))

    def _history(self, _: Request, looking: Looking) -> Response:
        return JSONResponse(self._pages.history(looking))


class _Headed:
    """Adds HEADERS to every answer; only files that never change may be cached."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kept = str(scope.get("path", "")).startswith("/static/")
        added = {**HEADERS, "Cache-Control": "no-cache" if kept else "no-store"}
        headers = [(name.lower().encode(), value.encode()) for name, value in added.items()]

        async def headed(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await self._app(scope, receive, headed)


def _cookie(request: Request) -> str:
    """Return the cookie's name. Cookies belong to a host, whatever the port: each dashboard of a machine needs its own
    name."""
    return f"egpu-{request.url.port or 443}"


def _of_another_site(request: Request) -> bool:
    """Return whether a form of another site is sent here. Browsers report it; older ones name the page's host, which a
    proxy may have changed."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


def _sign_in(request: Request) -> Response:
    """Return the form for a browser that asks for a page; requests with their own token, or for a part, get a short
    text."""
    headers = {"WWW-Authenticate": "Bearer"}
    if "hx-request" in request.headers:
        headers["HX-Redirect"] = f".{LOGIN}"  # the page goes there, not a part of it
    elif "authorization" not in request.headers and "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(render("login.html", {"problem": ""}), 401, headers)
    return Response("this dashboard needs a bearer token of the cluster\n", 401, headers, "text/plain")


def _html(template: str, looking: Looking, **values: Any) -> Response:
    return HTMLResponse(render(template, {"user": looking.access.user, "access": looking.access, **values}))


def _message(request: Request, status: int, title: str, reason: str) -> Response:
    if "hx-request" in request.headers or request.url.path.count("/") > 1:  # relative links would be wrong
        return Response(f"{reason}\n", status, media_type="text/plain")
    return HTMLResponse(render("message.html", {"title": title, "reason": reason}), status)


async def _refused(request: Request, error: HTTPException) -> Response:
    return _message(request, error.status_code, "Request refused", str(error.detail))
