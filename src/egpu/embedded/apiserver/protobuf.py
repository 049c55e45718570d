"""Requests in Kubernetes' protobuf, for the few kinds that newer kubectls write with typed clients.

`kubectl create configmap|secret|namespace|serviceaccount`, `kubectl auth can-i` and `kubectl drain` of 1.32 send
protobuf and do not fall back. Answers are always JSON, which those clients accept. Envelope: `k8s\\0` and a
`runtime.Unknown`. Field numbers: the `generated.proto` files of k8s.io/api and k8s.io/apimachinery.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from egpu.embedded.apiserver.objects import Json
from egpu.embedded.apiserver.status import bad_request, unsupported_media_type

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Value: TypeAlias = int | bytes
Read: TypeAlias = Callable[[Value], Any]
Message: TypeAlias = Mapping[int, tuple[str, str, Read]]
"""Field number → (JSON name, "one" | "many" | "map", how to read a value)."""


class _Malformed(ValueError):
    """The bytes are not what their envelope says."""


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(raw) or shift > 63:
            raise _Malformed("a number is cut off")
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(raw: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(raw, at)
            yield tag >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(raw, at)
        if size is None or at + size > len(raw):
            raise _Malformed("a field is cut off")
        yield tag >> 3, raw[at : at + size]
        at += size


def _text(value: Value) -> str:
    return _raw(value).decode()


def _raw(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise _Malformed("a number stands where bytes belong")
    return value


def _base64(value: Value) -> str:
    return base64.b64encode(_raw(value)).decode()


def _integer(value: Value) -> int:
    if not isinstance(value, int):
        raise _Malformed("bytes stand where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value


def _boolean(value: Value) -> bool:
    return bool(_integer(value))


def _message(fields: Message) -> Read:
    def read(value: Value) -> Json:
        result: Json = {}
        for number, found in _fields(_raw(value)):
            if number not in fields:
                continue
            name, count, read_one = fields[number]
            if count == "map":
                entry = dict(_fields(_raw(found)))
                result.setdefault(name, {})[_text(entry.get(1, b""))] = read_one(entry.get(2, b""))
            elif count == "many":
                result.setdefault(name, []).append(read_one(found))
            elif found != b"":  # the zero value of a text is an absent one
                result[name] = read_one(found)
        return result

    return read


_OWNER = _message(
    {
        1: ("kind", "one", _text),
        3: ("name", "one", _text),
        4: ("uid", "one", _text),
        5: ("apiVersion", "one", _text),
        6: ("controller", "one", _boolean),
        7: ("blockOwnerDeletion", "one", _boolean),
    }
)
_METADATA = _message(
    {
        1: ("name", "one", _text),
        2: ("generateName", "one", _text),
        3: ("namespace", "one", _text),
        5: ("uid", "one", _text),
        6: ("resourceVersion", "one", _text),
        11: ("labels", "map", _text),
        12: ("annotations", "map", _text),
        13: ("ownerReferences", "many", _OWNER),
        14: ("finalizers", "many", _text),
    }
)
_META = ("metadata", "one", _METADATA)
_PRECONDITIONS = _message({1: ("uid", "one", _text), 2: ("resourceVersion", "one", _text)})
_DELETE_OPTIONS = _message(
    {
        1: ("gracePeriodSeconds", "one", _integer),
        2: ("preconditions", "one", _PRECONDITIONS),
        4: ("propagationPolicy", "one", _text),
        5: ("dryRun", "many", _text),
    }
)
_RESOURCE_ATTRIBUTES = _message(
    {
        number: (name, "one", _text)
        for number, name in enumerate(
            ("namespace", "verb", "group", "version", "resource", "subresource", "name"), start=1
        )
    }
)
_PATH_ATTRIBUTES = _message({1: ("path", "one", _text), 2: ("verb", "one", _text)})
_ACCESS_SPEC = _message(
    {1: ("resourceAttributes", "one", _RESOURCE_ATTRIBUTES), 2: ("nonResourceAttributes", "one", _PATH_ATTRIBUTES)}
)
_NAMED = _message({1: ("name", "one", _text)})
_REFERENCE = _message({1: ("kind", "one", _text), 2: ("namespace", "one", _text), 3: ("name", "one", _text)})

_KINDS: Mapping[tuple[str, str], Read] = {
    ("v1", "ConfigMap"): _message(
        {
            1: _META,
            2: ("data", "map", _text),
            3: ("binaryData", "map", _base64),
            4: ("immutable", "one", _boolean),
        }
    ),
    ("v1", "Secret"): _message(
        {
            1: _META,
            2: ("data", "map", _base64),
            3: ("type", "one", _text),
            4: ("stringData", "map", _text),
            5: ("immutable", "one", _boolean),
        }
    ),
    ("v1", "Namespace"): _message({1: _META, 2: ("spec", "one", _message({1: ("finalizers", "many", _text)}))}),
    ("v1", "ServiceAccount"): _message(
        {
            1: _META,
            2: ("secrets", "many", _REFERENCE),
            3: ("imagePullSecrets", "many", _NAMED),
            4: ("automountServiceAccountToken", "one", _boolean),
        }
    ),
    ("policy/v1", "Eviction"): _message({1: _META, 2: ("deleteOptions", "one", _DELETE_OPTIONS)}),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): _message({1: _META, 2: ("spec", "one", _ACCESS_SPEC)}),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): _message(
        {1: _META, 2: ("spec", "one", _message({1: ("namespace", "one", _text)}))}
    ),
    ("authentication.k8s.io/v1", "SelfSubjectReview"): _message({1: _META}),
}
_TYPE_META = _message({1: ("apiVersion", "one", _text), 2: ("kind", "one", _text)})
_ENVELOPE = _message({1: ("type", "one", _TYPE_META), 2: ("raw", "one", _raw)})


def decode(raw: bytes) -> Json:
    """The object in a protobuf request, as JSON. Raises RequestRefused."""
    if not raw.startswith(_MAGIC):
        raise bad_request("the body of the request is not Kubernetes protobuf: it lacks the k8s prefix")
    try:
        envelope = _ENVELOPE(raw[len(_MAGIC) :])
        api_version = str(envelope.get("type", {}).get("apiVersion") or "")
        kind = str(envelope.get("type", {}).get("kind") or "")
        read = _DELETE_OPTIONS if kind == "DeleteOptions" else _KINDS.get((api_version, kind))
        if read is None:
            raise unsupported_media_type(
                f"this server reads {api_version} {kind} in application/json, not in {MEDIA_TYPE}"
            )
        return {"apiVersion": api_version, "kind": kind, **read(envelope.get("raw", b""))}
    except (_Malformed, UnicodeDecodeError) as error:
        raise bad_request(f"the body of the request is not Kubernetes protobuf: {error}") from error
