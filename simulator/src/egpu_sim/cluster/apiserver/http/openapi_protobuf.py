"""The OpenAPI v2 document in protobuf, the only encoding that kubectl 1.20 reads. The messages: `openapi.proto`."""

from typing import Any

from egpu_sim.cluster.apiserver.generated import openapi_pb2 as pb
from egpu_sim.cluster.trees import Json, as_list, as_object, encode

MEDIA_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""The real server's media type: the `@` in the clients' request is not allowed in a media type, and Go refuses it."""


def encode_document(document: Json) -> bytes:
    """Encode a whole v2 document (`swagger`, `info`, `paths`, `definitions`)."""
    paths = [
        pb.NamedPathItem(
            name=path, value=pb.PathItem(**{method: _operation(as_object(found)) for method, found in item.items()})
        )
        for path, item in as_object(document["paths"]).items()
    ]
    message = pb.Document(
        swagger=document["swagger"],
        info=pb.Info(**document["info"]),
        paths=pb.Paths(path=paths),
        definitions=_definitions(as_object(document["definitions"])),
    )
    return message.SerializeToString()


def _operation(source: Json) -> pb.Operation:
    responses = as_object(source["responses"]).items()
    return pb.Operation(
        operation_id=source["operationId"],
        consumes=as_list(source.get("consumes")),
        parameters=[_query_parameter(as_object(parameter)) for parameter in as_list(source["parameters"])],
        responses=pb.Responses(response_code=[_response(code, as_object(response)) for code, response in responses]),
        vendor_extension=_extensions(source),
    )


def _query_parameter(source: Json) -> pb.ParametersItem:
    query = pb.QueryParameter(location="query", name=source["name"], type="string", unique_items=True)
    return pb.ParametersItem(parameter=pb.Parameter(non_body_parameter=pb.NonBodyParameter(query_parameter=query)))


def _response(code: str, source: Json) -> pb.NamedResponseValue:
    return pb.NamedResponseValue(
        name=code, value=pb.ResponseValue(response=pb.Response(description=source["description"]))
    )


def _definitions(source: Json) -> pb.Definitions:
    return pb.Definitions(
        properties=[
            pb.NamedSchema(name=name, value=schema_message(as_object(schema))) for name, schema in source.items()
        ]
    )


def schema_message(source: Json) -> pb.Schema:
    """Encode one schema. Raises TypeError or ValueError for a value of the wrong type."""
    return pb.Schema(
        ref=source.get("$ref"),
        format=source.get("format"),
        description=source.get("description"),
        default=_any(source["default"]) if "default" in source else None,
        maximum=source.get("maximum"),
        minimum=source.get("minimum"),
        max_length=source.get("maxLength"),
        min_length=source.get("minLength"),
        pattern=source.get("pattern"),
        max_items=source.get("maxItems"),
        min_items=source.get("minItems"),
        required=as_list(source.get("required")),
        enum=[_any(value) for value in as_list(source.get("enum"))],
        additional_properties=_additional_properties(source.get("additionalProperties")),
        type=pb.Type(value=[source["type"]]) if source.get("type") else None,
        items=pb.Items(schema=[schema_message(as_object(source["items"]))]) if "items" in source else None,
        properties=_definitions(as_object(source["properties"])) if source.get("properties") else None,
        vendor_extension=_extensions(source),
    )


def _additional_properties(source: object) -> pb.AdditionalProperties | None:
    if source is True:
        return pb.AdditionalProperties(allowed=True)
    return pb.AdditionalProperties(schema=schema_message(as_object(source))) if source not in (None, False) else None


def _extensions(source: Json) -> list[pb.NamedAny]:
    return [pb.NamedAny(name=key, value=_any(value)) for key, value in source.items() if key.startswith("x-")]


def _any(value: Any) -> pb.Any:
    return pb.Any(yaml=encode(value).decode())
