"""Refusals: every error that the server answers is a `Status` object, made here and raised as `RequestRefused`."""

from dataclasses import dataclass

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.trees import Json, encode

PAGE_NOT_FOUND = "404 page not found"


@dataclass(frozen=True)
class Cause:
    """One wrong field of an object (`StatusCause` on the wire)."""

    reason: str
    field: str
    message: str

    def sentence(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def required(field: str, message: str = "") -> Cause:
    return Cause("FieldValueRequired", field, f"Required value{': ' + message if message else ''}")


def invalid(field: str, value: object, message: str) -> Cause:
    return Cause("FieldValueInvalid", field, f"Invalid value: {_shown(value)}: {message}")


def unsupported(field: str, value: object, supported: list[str]) -> Cause:
    choices = ", ".join(f'"{item}"' for item in supported)
    return Cause("FieldValueNotSupported", field, f"Unsupported value: {_shown(value)}: supported values: {choices}")


def duplicate(field: str, value: object) -> Cause:
    return Cause("FieldValueDuplicate", field, f"Duplicate value: {_shown(value)}")


def forbidden_field(field: str, message: str) -> Cause:
    return Cause("FieldValueForbidden", field, f"Forbidden: {message}")


_TYPE_NAMES = {
    "dict": "object", "list": "array", "str": "string", "bool": "boolean", "int": "integer", "float": "number"
}  # fmt: skip


def wrong_type(field: str, value: object, expected: str) -> Cause:
    shown = _TYPE_NAMES.get(type(value).__name__, "null")
    return Cause(
        "FieldValueTypeInvalid",
        field,
        f'Invalid value: "{shown}": {field} in body must be of type {expected}: "{shown}"',
    )


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float):
        return "null" if value is None else str(value)
    return encode(value).decode()


def refused(code: int, reason: str, message: str, *, details: Json | None = None) -> RequestRefused:
    """Build the error for any Status; the functions below make the usual ones."""
    status: Json = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    if details:
        status["details"] = details
    return RequestRefused(code, reason, message, status)


def _details(group: str, kind: str, name: str) -> Json:
    details: Json = {"name": name} if name else {}
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def _qualified(group: str, plural: str) -> str:
    return f"{plural}.{group}" if group else plural


def bad_request(message: str) -> RequestRefused:
    return refused(400, "BadRequest", message)


def unauthorized() -> RequestRefused:
    return refused(401, "Unauthorized", "Unauthorized: a bearer token of this server's kubeconfig is needed")


def forbidden(group: str, plural: str, name: str, message: str) -> RequestRefused:
    text = f'{_qualified(group, plural)} "{name}" is forbidden: {message}'
    return refused(403, "Forbidden", text, details=_details(group, plural, name))


def not_found(group: str, plural: str, name: str) -> RequestRefused:
    text = f'{_qualified(group, plural)} "{name}" not found'
    return refused(404, "NotFound", text, details=_details(group, plural, name))


def no_such_path() -> RequestRefused:
    return refused(404, "NotFound", "the server could not find the requested resource")


def already_exists(group: str, plural: str, name: str) -> RequestRefused:
    text = f'{_qualified(group, plural)} "{name}" already exists'
    return refused(409, "AlreadyExists", text, details=_details(group, plural, name))


def conflict(group: str, plural: str, name: str, message: str) -> RequestRefused:
    text = f'Operation cannot be fulfilled on {_qualified(group, plural)} "{name}": {message}'
    return refused(409, "Conflict", text, details=_details(group, plural, name))


def modified(group: str, plural: str, name: str) -> RequestRefused:
    message = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(group, plural, name, message)


def page_not_found() -> RequestRefused:
    """Return the error for a path of no group at all: the only refusal that is plain text on the wire."""
    return refused(404, "NotFound", PAGE_NOT_FOUND)


def unexplained(message: str) -> RequestRefused:
    """Return an error without a reason, for which the real server answers a bare 500."""
    error = refused(500, "", message)
    del error.status["reason"]
    return error


def invalid_object(group: str, kind: str, name: str, causes: list[Cause]) -> RequestRefused:
    shown = [cause.sentence() for cause in causes]
    text = shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"
    qualified = f"{kind}.{group}" if group else kind
    details = _details(group, kind, name)
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    return refused(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details)


def method_not_allowed() -> RequestRefused:
    return refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(message: str) -> RequestRefused:
    return refused(415, "UnsupportedMediaType", message)


def expired(message: str) -> RequestRefused:
    return refused(410, "Expired", message)


def too_large_revision(asked: int, current: int) -> RequestRefused:
    details: Json = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    details["retryAfterSeconds"] = 1
    return refused(504, "Timeout", f"Too large resource version: {asked}, current: {current}", details=details)


def too_large(limit: int) -> RequestRefused:
    return refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit} bytes")


def internal(message: str) -> RequestRefused:
    return refused(500, "InternalError", f"Internal error occurred: {message}")


def success(*, group: str = "", kind: str = "", name: str = "", uid: str = "") -> Json:
    """Return the Status of a finished deletion, or of a binding."""
    status: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if kind:
        status["details"] = {**_details(group, kind, name), **({"uid": uid} if uid else {})}
    return status
