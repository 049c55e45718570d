"""What clients send in protobuf, and the OpenAPI document that old ones read in it. Bytes are put together by hand
here, from the field numbers that Kubernetes documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu_base.errors import RequestRefused
from egpu_sim.cluster.apiserver.generated.openapi_pb2 import Document
from egpu_sim.cluster.apiserver.http.openapi import Documents
from egpu_sim.cluster.apiserver.http.protobuf import decode
from egpu_sim.cluster.apiserver.kinds import builtin
from egpu_sim.cluster.apiserver.kinds.crd import DefinitionRules
from egpu_sim.cluster.apiserver.kinds.resources import Registry
from egpu_sim.cluster.trees import Json


def part(number: int, content: bytes) -> bytes:
    """A field of text, bytes or a message, of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def number(field: int, value: int) -> bytes:
    return bytes([field << 3, value])


def body(api_version: str, kind: str, *parts: bytes) -> bytes:
    type_meta = part(1, api_version.encode()) + part(2, kind.encode())
    return b"k8s\x00" + part(1, type_meta) + part(2, b"".join(parts)) + part(3, b"") + part(4, b"")


def test_a_secret() -> None:
    label = part(11, part(1, b"a") + part(2, b"b"))
    created_at = part(8, b"")  # of metadata; not one of the fields that the server knows
    raw = body(
        "v1",
        "Secret",
        part(1, part(1, b"s") + part(2, b"") + label + created_at),
        part(2, part(1, b"x") + part(2, b"\xff\x00")),
        part(3, b"Opaque"),
        number(5, 0),
    )
    assert decode(raw) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "labels": {"a": "b"}},
        "data": {"x": "/wA="},
        "type": "Opaque",
        "immutable": False,
    }


def test_delete_options_come_in_any_version() -> None:
    raw = body("apps/v1", "DeleteOptions", number(1, 0), part(2, part(1, b"u")), part(4, b"Orphan"))
    found = decode(raw)
    assert int(found.pop("gracePeriodSeconds")) == 0
    assert found == {
        "apiVersion": "apps/v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Orphan",
    }


def test_other_kinds_are_refused_by_name() -> None:
    with pytest.raises(RequestRefused, match="apps/v1 DaemonSet") as refused:
        decode(body("apps/v1", "DaemonSet"))
    assert refused.value.code == 415


@given(st.binary(max_size=40))
def test_nothing_but_refusals_comes_from_garbage(garbage: bytes) -> None:
    for raw in (garbage, b"k8s\x00" + garbage, body("v1", "ConfigMap", garbage)):
        try:
            found = decode(raw)
        except RequestRefused:
            continue
        assert found["kind"] == "ConfigMap"


def test_the_document_says_in_protobuf_what_it_says_in_json() -> None:
    registry = Registry()
    builtin.register(registry, DefinitionRules())
    document = Document.FromString(Documents(registry).v2_protobuf())
    definitions = {each.name: each.value for each in document.definitions.properties}
    pod = definitions["io.k8s.api.core.v1.Pod"]
    spec = {each.name: each.value for each in definitions["io.k8s.api.core.v1.PodSpec"].properties.properties}
    assert (document.swagger, document.info.title) == ("2.0", "Kubernetes")
    assert [each.name for each in pod.vendor_extension] == ["x-kubernetes-group-version-kind"]
    assert spec["containers"].type.value == ["array"]
    assert spec["containers"].items.schema[0].ref == "#/definitions/io.k8s.api.core.v1.Container"
    assert spec["nodeSelector"].additional_properties.schema.type.value == ["string"]
    paths = {each.name: each.value for each in document.paths.path}
    patch = paths["/api/v1/namespaces/{namespace}/pods/{name}"].patch
    names = [each.parameter.non_body_parameter.query_parameter.name for each in patch.parameters]
    assert names == ["dryRun", "fieldManager", "fieldValidation"]
    assert "application/strategic-merge-patch+json" in patch.consumes


@pytest.mark.parametrize("broken", [{"description": 5}, {"maxLength": "x"}, {"maxItems": 1 << 64}])
def test_a_schema_that_would_spoil_the_document_is_refused(broken: Json) -> None:
    def definition(property_schema: Json) -> Json:
        schema = {"type": "object", "properties": {"a": {"type": "string", **property_schema}}}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"}
        spec = {"group": "x.org", "scope": "Cluster", "names": names, "versions": [version]}
        whole = {**spec, "conversion": {"strategy": "None"}}
        return {"metadata": {"name": "as.x.org"}, "spec": whole, "status": {"storedVersions": ["v1"]}}

    assert DefinitionRules().validate(definition({"description": "five"})) == []
    (cause,) = DefinitionRules().validate(definition(broken))
    assert cause.field == "spec.validation.openAPIV3Schema"
