"""Content types: the formats that a client accepts, and the format that it sent."""

from dataclasses import dataclass
from typing import Any, cast

import msgspec
import yaml

from egpu_sim.cluster.apiserver.http import protobuf
from egpu_sim.cluster.apiserver.status import bad_request, refused, unsupported_media_type
from egpu_sim.cluster.trees import Json, decode

JSON = "application/json"
SUMMARY_BYTES = 30
META_VERSIONS = ("v1", "v1beta1")


@dataclass(frozen=True)
class Form:
    """The form of an answer: `kind` empty (the objects), Table, PartialObjectMetadata or APIGroupDiscoveryList."""

    kind: str = ""
    version: str = "v1"


def accepted_form(accept: str) -> Form:
    """Return the first form in an Accept header that this server has. Raises RequestRefused (406)."""
    if not accept:
        return Form()
    for entry in accept.split(","):
        media, *parameters = (part.strip() for part in entry.split(";"))
        options = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if media not in (JSON, "*/*", "application/*"):
            continue
        kind, version = options.get("as", ""), options.get("v", "v1")
        if not kind:
            return Form()
        if kind == "APIGroupDiscoveryList" and version in ("v2", "v2beta1"):
            return Form(kind, version)
        if kind in ("Table", "PartialObjectMetadata", "PartialObjectMetadataList") and version in META_VERSIONS:
            return Form(kind.removesuffix("List"), version)
    raise refused(406, "NotAcceptable", f"only {JSON} is served; the request accepts {accept}")


def read_body(raw: bytes, content_type: str, *, kind: str = "object") -> Json:
    """Read the object in a request's body, which must be of that kind. Raises RequestRefused."""
    value = read_any(raw, content_type, kind=kind)
    if not isinstance(value, dict):
        raise bad_request("the body of the request is not an object")
    return cast(Json, value)


def read_any(raw: bytes, content_type: str, *, kind: str = "object") -> Any:
    """Read any JSON or YAML value in a body. Raises RequestRefused."""
    media = content_type.partition(";")[0].strip().lower()
    if media == protobuf.MEDIA_TYPE:
        return protobuf.decode(raw)
    try:
        if media in ("application/yaml", "application/x-yaml"):
            return yaml.safe_load(raw)
        if media in ("", "*/*") or media.endswith("json") or media == "text/plain":
            return decode(raw) if raw else {}
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
            f"json parse error: {_go_words(error)} ({_summary(raw)})"
        ) from error
    raise unsupported_media_type(f"the body of the request was in an unknown format: {media}; this server reads {JSON}")


def _go_words(error: Exception) -> str:
    return "unexpected end of JSON input" if "truncated" in str(error) else str(error)


def _summary(raw: bytes) -> str:
    """Return the beginning of an unreadable body: as text where it looks like JSON, else in hexadecimal."""
    start = raw[:SUMMARY_BYTES]
    text = start.decode(errors="replace") if raw.startswith(b"{") else start.hex()
    return text + (" ..." if len(raw) > SUMMARY_BYTES else "")
