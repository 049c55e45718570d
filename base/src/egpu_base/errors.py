"""The exceptions that one package raises for another to handle, in one tree.

    ElasticGPUError
    ├── TerminalError                 terminal: the same request fails again
    │   ├── InvalidInput              a field is wrong: `field`, `reason`
    │   │   ├── InvalidQuantity       not a number that we can count with
    │   │   └── InvalidDemand         a pod or claim asks for something that cannot be a demand
    │   ├── UnknownProvisioner        no technology of that name
    │   ├── NotSupported              known by name, not built (yet, or for this machine)
    │   │   └── MissingExtra          an optional package is not installed
    │   ├── CorruptData               bytes or annotations that we did not write
    │   ├── NotPrivate                another user owns, or can change, a directory of state
    │   ├── NotFound                  the API server has no such object (HTTP 404)
    │   ├── Refused                   the API server refuses the request (HTTP 400, 401, 403, 405, 422)
    │   │   └── NotAllowed            no role lets this client do it
    │   ├── RequestRefused            the simulated API server answers a request with this Status
    │   └── NativeMissing             a native library is not built or installed
    └── RetryableError                retryable: the same request may succeed later
        ├── Conflict                  another client was faster (HTTP 409, changed resourceVersion)
        │   └── AlreadyExists         an object of that name is there
        ├── LeadershipLost            another process leads now: this one must stop writing
        ├── Gone                      the history of a watch has expired (HTTP 410): list again
        ├── Unavailable               a server or a node does not answer
        │   └── OutcomeUnknown        it took the request and sent no answer
        ├── BudgetSpent               evicting the pod would break a PodDisruptionBudget now (HTTP 429)
        ├── DoesNotFit                no card can take the demand now
        └── TooSoon                   their slice was ended for an overrun; the message says how long to wait

Each is terminal or retryable by its branch, and `retryable` says so. An exception that never leaves its package is
defined there. Messages say what was asked, what was found and what to do.
"""


class ElasticGPUError(Exception):
    """The root of the tree. `retryable` tells a caller's loop whether to retry."""

    retryable = False


class TerminalError(ElasticGPUError):
    """A terminal error: the same request will fail again."""


class InvalidInput(TerminalError):
    """A field of a user's input is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class InvalidQuantity(InvalidInput):
    """A quantity is not a number that we can count with."""


class InvalidDemand(InvalidInput):
    """A pod or claim asks for something that cannot be a demand."""


class UnknownProvisioner(TerminalError):
    """No technology has that name."""


class NotSupported(TerminalError):
    """A feature that is not built, or not possible on this machine."""


class MissingExtra(NotSupported):
    """A feature needs a package that only one of our extras installs."""

    def __init__(self, what: str, *, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed: pip install 'elastic-gpu[{extra}]'")


class CorruptData(TerminalError):
    """Bytes or annotations that do not decode."""


class NotPrivate(TerminalError):
    """Another user owns, or can change, a directory whose contents we would believe."""


class NotFound(TerminalError):
    """The API server has no such object."""


class Refused(TerminalError):
    """The API server understood the request and refuses it."""


class NotAllowed(Refused):
    """No role of the API server's lets this client do what it asked."""


class RequestRefused(TerminalError):
    """The simulated API server answers a request with this `Status` (code, reason, and the object on the wire)."""

    def __init__(self, code: int, reason: str, message: str, status: dict[str, object]) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.status = status


class NativeMissing(TerminalError):
    """A native library or program of ours is not found."""


class RetryableError(ElasticGPUError):
    """A retryable error: the same request may succeed later."""

    retryable = True


class Conflict(RetryableError):
    """Another client changed the object first."""


class AlreadyExists(Conflict):
    """An object of that name exists already."""


class LeadershipLost(RetryableError):
    """Another process leads now, or the API server does not answer in time: this process must stop writing."""


class Gone(RetryableError):
    """The history from which a watch or a page starts has expired."""


class Unavailable(RetryableError):
    """A peer does not answer."""


class OutcomeUnknown(Unavailable):
    """A write was sent, and no answer came: it may or may not be done. Read again before deciding."""


class BudgetSpent(RetryableError):
    """An eviction would break a PodDisruptionBudget now."""


class DoesNotFit(RetryableError):
    """No card can take the demand now."""


class TooSoon(RetryableError):
    """A slice of the same holder was ended for an overrun a moment ago. The message says how long to wait."""
