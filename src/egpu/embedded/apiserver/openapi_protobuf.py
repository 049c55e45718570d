"""The OpenAPI v2 document in protobuf, the only encoding that kubectl 1.20 reads.

Message and field numbers: gnostic's `openapiv2/OpenAPIv2.proto` (package openapi.v2). Only what our documents hold is
encoded. Written by hand because the messages are a dozen and the wire format is two rules: a varint, and a length
followed by bytes.
"""

import struct
from typing import Any

from egpu.embedded.apiserver.objects import Json, as_list, as_object, encode

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""As the real server answers it: the `@` that clients ask with is not allowed in a media type, and Go refuses it."""

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def _varint(value: int) -> bytes:
    parts = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _text(number: int, value: Any) -> bytes:
    return _bytes(number, str(value).encode()) if value else b""


def _integer(number: int, value: Any) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(int(value)) if value else b""


def _double(number: int, value: Any) -> bytes:
    return _varint(number << 3 | _FIXED64) + struct.pack("<d", float(value)) if value else b""


def _any(value: Any) -> bytes:
    """Any: the value as YAML, of which JSON is a part."""
    return _bytes(2, encode(value))


def _named(name: str, value: bytes) -> bytes:
    return _text(1, name) + _bytes(2, value)


def _extensions(number: int, source: Json) -> bytes:
    return b"".join(_bytes(number, _named(key, _any(value))) for key, value in source.items() if key.startswith("x-"))


def _properties(source: Json) -> bytes:
    """Definitions and Properties: a list of named schemas."""
    return b"".join(_bytes(1, _named(name, _schema(as_object(schema)))) for name, schema in source.items())


def _schema(source: Json) -> bytes:
    parts = [
        _text(1, source.get("$ref")),
        _text(2, source.get("format")),
        _text(4, source.get("description")),
        _double(7, source.get("maximum")),
        _double(9, source.get("minimum")),
        _integer(11, source.get("maxLength")),
        _integer(12, source.get("minLength")),
        _text(13, source.get("pattern")),
        _integer(14, source.get("maxItems")),
        _integer(15, source.get("minItems")),
        *(_text(19, name) for name in as_list(source.get("required"))),
        *(_bytes(20, _any(value)) for value in as_list(source.get("enum"))),
    ]
    if "default" in source:
        parts.append(_bytes(5, _any(source["default"])))
    additional = source.get("additionalProperties")
    if isinstance(additional, dict):
        parts.append(_bytes(21, _bytes(1, _schema(as_object(source["additionalProperties"])))))
    elif additional is True:
        parts.append(_bytes(21, _integer(2, 1)))
    if source.get("type"):
        parts.append(_bytes(22, _text(1, source["type"])))
    if isinstance(source.get("items"), dict):
        parts.append(_bytes(23, _bytes(1, _schema(as_object(source["items"])))))
    if source.get("properties"):
        parts.append(_bytes(25, _properties(as_object(source["properties"]))))
    parts.append(_extensions(31, source))
    return b"".join(parts)


def _query_parameter(source: Json) -> bytes:
    """ParametersItem → Parameter → NonBodyParameter → QueryParameterSubSchema."""
    query = _text(2, "query") + _text(4, source["name"]) + _text(6, "string") + _integer(20, 1)
    return _bytes(1, _bytes(2, _bytes(3, query)))


def _responses(source: Json) -> bytes:
    return b"".join(
        _bytes(1, _named(code, _bytes(1, _text(1, as_object(response)["description"]))))
        for code, response in source.items()
    )


def _operation(source: Json) -> bytes:
    return b"".join(
        [
            _text(5, source["operationId"]),
            *(_text(7, media) for media in as_list(source.get("consumes"))),
            *(_bytes(8, _query_parameter(as_object(parameter))) for parameter in as_list(source["parameters"])),
            _bytes(9, _responses(as_object(source["responses"]))),
            _extensions(13, source),
        ]
    )


_METHODS = {"put": 3, "post": 4, "delete": 5, "patch": 8}


def _path_item(source: Json) -> bytes:
    return b"".join(_bytes(_METHODS[method], _operation(as_object(found))) for method, found in source.items())


def encode_document(document: Json) -> bytes:
    """A whole v2 document (`swagger`, `info`, `paths`, `definitions`)."""
    info = as_object(document["info"])
    paths = as_object(document["paths"])
    return b"".join(
        [
            _text(1, document["swagger"]),
            _bytes(2, _text(1, info["title"]) + _text(2, info["version"])),
            _bytes(8, b"".join(_bytes(2, _named(path, _path_item(as_object(item)))) for path, item in paths.items())),
            _bytes(9, _properties(as_object(document["definitions"]))),
        ]
    )
