"""The admission server: /mutate and /validate. A malformed review gets a 400 with the reason."""

from collections.abc import Awaitable, Callable

import msgspec
import structlog
from prometheus_client import Counter, Histogram
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from egpu.api.admission import AdmissionRequest, AdmissionResponse, AdmissionReview, ResponseStatus
from egpu_base.errors import InvalidInput, RetryableError
from egpu_base.http.bodies import Bodies
from egpu_base.http.web import open_routes

MAX_BODY_BYTES = 16 * 1024 * 1024
"""An API server accepts objects of 3 MiB; a review has two of them."""
MAX_HELD_BYTES = 4 * MAX_BODY_BYTES
"""The limit for all reviews at one time: the API server shows no certificate, so any client in the cluster may send
some."""

Decide = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]

reviews = Counter("elasticgpu_webhook_reviews_total", "Admission reviews by path and outcome", ["path", "outcome"])
review_seconds = Histogram("elasticgpu_webhook_review_duration_seconds", "Duration of one admission review", ["path"])

log = structlog.get_logger(__name__)


def make_app(*, mutate: Decide, validate: Decide, not_ready: Callable[[], str | None]) -> Starlette:
    bodies = Bodies(at_most_bytes=MAX_HELD_BYTES)
    return Starlette(
        routes=[
            Route("/mutate", _reviewer(mutate, bodies), methods=["POST"]),
            Route("/validate", _reviewer(validate, bodies), methods=["POST"]),
            *open_routes(not_ready),
        ]
    )


def _reviewer(decide: Decide, bodies: Bodies) -> Callable[[Request], Awaitable[Response]]:
    async def review(request: Request) -> Response:
        async with bodies.read(request, MAX_BODY_BYTES) as body:
            return await answered(request.url.path, body)

    async def answered(path: str, body: bytes) -> Response:
        try:
            asked = _read(body)
        except InvalidInput as error:
            reviews.labels(path, "malformed").inc()
            return PlainTextResponse(f"{error}\n", status_code=400)
        with review_seconds.labels(path).time():
            answer = await _decide(decide, asked)
        reviews.labels(path, "allowed" if answer.allowed else "refused").inc()
        if not answer.allowed and answer.status is not None:
            log.info(
                "refused",
                kind=asked.kind.kind,
                namespace=asked.namespace,
                name=asked.name,
                operation=asked.operation,
                reason=answer.status.message,
            )
        return Response(msgspec.json.encode(AdmissionReview(response=answer)), media_type="application/json")

    return review


async def _decide(decide: Decide, asked: AdmissionRequest) -> AdmissionResponse:
    try:
        return await decide(asked)
    except RetryableError as error:
        log.warning("decision not possible now", uid=asked.uid, reason=str(error))
        return refuse(asked, f"cannot be checked now: {error}; try again", code=503)
    except Exception:
        log.exception("admission review failed", uid=asked.uid)
        return refuse(asked, "internal error: see the webhook's log", code=500)


def refuse(asked: AdmissionRequest, message: str, *, code: int = 422) -> AdmissionResponse:
    """Return a refusal that the API server passes on to the user."""
    reason = "Invalid" if code == 422 else "BadRequest" if code == 400 else "InternalError"
    return AdmissionResponse(
        uid=asked.uid, allowed=False, status=ResponseStatus(code=code, message=message, reason=reason)
    )


def _read(body: bytes) -> AdmissionRequest:
    try:
        review = msgspec.json.decode(body, type=AdmissionReview)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput("body", f"not an AdmissionReview: {error}") from error
    if review.kind != "AdmissionReview" or review.api_version != "admission.k8s.io/v1":
        raise InvalidInput("body", f"{review.api_version} {review.kind} is not admission.k8s.io/v1 AdmissionReview")
    if review.request is None or not review.request.uid:
        raise InvalidInput("request.uid", "is missing")
    return review.request
