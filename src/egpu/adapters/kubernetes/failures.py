"""HTTP and Status errors of the API server, said in our own exception tree."""

import httpx2
import msgspec

from egpu.adapters.kubernetes.transport import Answer
from egpu.errors import (
    AlreadyExists,
    BudgetSpent,
    Conflict,
    ElasticGPUError,
    Gone,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)

READ_METHODS = frozenset({"GET", "HEAD"})
TOO_LARGE = "request is too large"
"""Of an object beyond what etcd stores. The API server passes it on as a 500, but it will be so again."""


class StatusCause(msgspec.Struct):
    """One reason of several, or the reason's reason."""

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
        """What a PodDisruptionBudget has against it; "" where none has."""
        causes = self.details.causes or [] if self.details is not None else []
        return next((cause.message for cause in causes if cause.reason == "DisruptionBudget"), "")


def from_status(status: Status, what: str, *, method: str = "GET") -> ElasticGPUError:
    """The error that a Status stands for. `what` names the request in the message."""
    text = f"{what}: {status.message or status.reason or f'HTTP {status.code}'}"
    match status.code:
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
            return Unavailable(text)  # turned away before it was looked at
        case code if code >= 500 and TOO_LARGE in status.message:
            return Refused(text)
        case code if code >= 500:
            return Unavailable(text) if method in READ_METHODS else OutcomeUnknown(text)
        case _:
            return Refused(text)


def from_answer(answer: Answer, what: str, *, method: str = "GET") -> ElasticGPUError:
    """The error that a whole answer is."""
    try:
        status = msgspec.json.decode(answer.content, type=Status)
    except (msgspec.DecodeError, msgspec.ValidationError):
        status = Status(message=answer.content.decode(errors="replace")[:500].strip())
    status.code = answer.status
    return from_status(status, what, method=method)


def from_transport(error: httpx2.HTTPError, what: str, *, method: str) -> ElasticGPUError:
    """No whole answer came. Only where nothing can have been sent is a write known to be undone."""
    text = f"{what}: {type(error).__name__} {error}".rstrip()
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    if method in READ_METHODS or never_sent:
        return Unavailable(text)
    return OutcomeUnknown(text)
