"""The exceptions that one package raises for another to handle, in one tree.

    ElasticGPUError
    ├── TerminalError                 terminal: asking again changes nothing
    │   ├── InvalidInput              a field is wrong: `field`, `reason`
    │   │   ├── InvalidQuantity       not a number that we can count with
    │   │   └── InvalidDemand         a pod or claim asks for something that cannot be a demand
    │   ├── UnknownProvisioner        no technology of that name
    │   ├── NotSupported              known by name, not built (yet, or for this machine)
    │   │   └── MissingExtra          an optional package is not installed
    │   ├── CorruptData               bytes or annotations that nobody of ours wrote
    │   ├── NotPrivate                a directory of state is, or can be changed by, somebody else's
    │   ├── NotFound                  the API server has no such object (HTTP 404)
    │   ├── Refused                   the API server refuses the request (HTTP 400, 401, 403, 405, 422)
    │   ├── RequestRefused            the embedded API server answers a request with this Status
    │   └── NativeMissing             a native library was not built or installed
    └── RetryableError                retryable: the world may be different next time
        ├── Conflict                  somebody else was faster (HTTP 409, changed resourceVersion)
        │   └── AlreadyExists         an object of that name is there
        ├── LeadershipLost            another process leads now: this one must stop writing
        ├── Gone                      the watched history is no longer kept (HTTP 410): list again
        ├── Unavailable               a server or a node does not answer
        │   └── OutcomeUnknown        it took the request and did not say what became of it
        ├── BudgetSpent               evicting the pod would break a PodDisruptionBudget now (HTTP 429)
        ├── DoesNotFit                no card can take the demand now
        └── TooSoon                   a slice of theirs was ended for an overrun: they wait as long as it says

Each is terminal or retryable by the branch it is on, and says so by `retryable`. An exception that never leaves the
package which raises it is defined there. Messages say what was asked, what was found and what to do.
"""


class ElasticGPUError(Exception):
    """Root of the tree. `retryable` tells a caller's loop whether to come back."""

    retryable = False


class TerminalError(ElasticGPUError):
    """Terminal: the same request will fail again."""


class InvalidInput(TerminalError):
    """A field of somebody's input is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class InvalidQuantity(InvalidInput):
    """Not a number we can count with."""


class InvalidDemand(InvalidInput):
    """A pod or claim asks for something that cannot be a demand."""


class UnknownProvisioner(TerminalError):
    """No technology of that name."""


class NotSupported(TerminalError):
    """Known by name, not built, or not possible on this machine."""


class MissingExtra(NotSupported):
    """Something needs a package that only one of our extras installs."""

    def __init__(self, what: str, *, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed: pip install 'elastic-gpu[{extra}]'")


class CorruptData(TerminalError):
    """Bytes or annotations that do not decode."""


class NotPrivate(TerminalError):
    """A directory whose contents would be believed belongs to somebody else, or can be changed by others."""


class NotFound(TerminalError):
    """The API server has no such object."""


class Refused(TerminalError):
    """The API server understood the request and refuses it."""


class RequestRefused(TerminalError):
    """The embedded API server answers a request with this `Status` (code, reason, and the object on the wire)."""

    def __init__(self, code: int, reason: str, message: str, status: dict[str, object]) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.status = status


class NativeMissing(TerminalError):
    """A native library or program of ours cannot be found."""


class RetryableError(ElasticGPUError):
    """Retryable: the same request may succeed later."""

    retryable = True


class Conflict(RetryableError):
    """Somebody else changed the object first."""


class AlreadyExists(Conflict):
    """An object of that name is already there."""


class LeadershipLost(RetryableError):
    """Another process leads now, or nobody can be asked in time: this one must stop writing."""


class Gone(RetryableError):
    """The resourceVersion that a watch or a page starts from is no longer kept."""


class Unavailable(RetryableError):
    """A peer does not answer."""


class OutcomeUnknown(Unavailable):
    """A write was sent and no answer came: it may or may not have been done. Read again before deciding."""


class BudgetSpent(RetryableError):
    """An eviction would break a PodDisruptionBudget now."""


class DoesNotFit(RetryableError):
    """No card can take the demand now."""


class TooSoon(RetryableError):
    """A slice of the same holder was ended for an overrun a moment ago; the message says how long to wait."""
