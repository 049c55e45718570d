"""HTTP and Status errors of the API server, as errors of our own tree."""

import time
from collections.abc import Callable
from typing import Final

import httpx2
import msgspec

from egpu_base.errors import (
    AlreadyExists,
    BudgetSpent,
    Conflict,
    ElasticGPUError,
    Gone,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from egpu_base.kubernetes.transport import Answer

READ_METHODS = frozenset({"GET", "HEAD"})
TOO_LARGE = "request is too large"
"""The text for an object beyond etcd's limit. The API server passes it on as a 500, but a retry fails again."""

OF_A_ROLE: Final = '" cannot '
"""The text of a 403 that RBAC gives: User "x" cannot list resource … Webhooks and quotas give other texts."""
ROLES_READY_SECONDS: Final = 60.0
"""The time after an outage in which a 403 may come from an API server that has not read its roles yet."""


class StatusCause(msgspec.Struct):
    """One reason of several, or a more detailed reason."""

    reason: str = ""
    message: str = ""


class StatusDetails(msgspec.Struct):
    causes: list[StatusCause] | None = None


class Status(msgspec.Struct):
    """metav1.Status, the API server's own error form."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None

    def budget(self) -> str:
        """Return the objection of a PodDisruptionBudget, or ""."""
        causes = self.details.causes or [] if self.details is not None else []
        return next((cause.message for cause in causes if cause.reason == "DisruptionBudget"), "")


def from_status(status: Status, what: str, *, method: str = "GET") -> ElasticGPUError:
    """Return the error for a Status. `what` names the request in the message."""
    text = f"{what}: {status.message or status.reason or f'HTTP {status.code}'}"
    match status.code:
        case 403 if OF_A_ROLE in status.message:
            return NotAllowed(text)
        case 404:
            return NotFound(text)
        case 409 if status.reason == "AlreadyExists":
            return AlreadyExists(text)
        case 409:
            return Conflict(text)
        case 410:
            return Gone(text)
        case 429 if why := status.budget():
            return BudgetSpent(f"{text} {why}")
        case 429:
            return Unavailable(text)  # rejected before any processing
        case code if code >= 500 and TOO_LARGE in status.message:
            return Refused(text)
        case code if code >= 500:
            return Unavailable(text) if method in READ_METHODS else OutcomeUnknown(text)
        case _:
            return Refused(text)


def from_answer(answer: Answer, what: str, *, method: str = "GET") -> ElasticGPUError:
    """Return the error for a whole answer."""
    try:
        status = msgspec.json.decode(answer.content, type=Status)
    except (msgspec.DecodeError, msgspec.ValidationError):
        status = Status(message=answer.content.decode(errors="replace")[:500].strip())
    status.code = answer.status
    return from_status(status, what, method=method)


def from_transport(error: httpx2.HTTPError, what: str, *, method: str) -> ElasticGPUError:
    """Return the error without a whole answer. A write is known to be undone only where nothing can have been sent."""
    text = f"{what}: {type(error).__name__} {error}".rstrip()
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    if method in READ_METHODS or never_sent:
        return Unavailable(text)
    return OutcomeUnknown(text)


class Outages:
    """Tells a missing role from an API server that has just started.

    Such a server answers with 403 until it has read its roles. So NotAllowed becomes Unavailable in the first minute
    after the server was away; a client that never saw it away gets NotAllowed at once.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._away = float("-inf")

    def judge(self, failure: ElasticGPUError) -> ElasticGPUError:
        """Note an outage, and return the error to raise."""
        if isinstance(failure, Unavailable):
            self._away = self._now()
        elif isinstance(failure, NotAllowed) and self._now() - self._away < ROLES_READY_SECONDS:
            return Unavailable(f"{failure} (the API server was away a moment ago, and may not know its roles yet)")
        return failure
