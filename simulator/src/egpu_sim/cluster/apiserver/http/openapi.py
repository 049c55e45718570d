"""The OpenAPI documents, with which kubectl validates, patches lists by their keys, and explains.

There is one v2 document for the whole server, and one v3 document per group and version. Both describe every served
kind, and the operations and parameters of each path that kubectl looks for.
"""

import hashlib
from typing import Any, cast

from egpu_sim.cluster.apiserver.http.discovery import VERSION
from egpu_sim.cluster.apiserver.http.openapi_protobuf import encode_document
from egpu_sim.cluster.apiserver.kinds import models
from egpu_sim.cluster.apiserver.kinds.resources import Registry, Resource
from egpu_sim.cluster.trees import Json, as_object, copy, encode

_META = models.definition_name("meta_v1", "ObjectMeta")
_CUSTOM_PATCH_TYPES = ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"]
PATCH_TYPES = [*_CUSTOM_PATCH_TYPES, "application/strategic-merge-patch+json"]
_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")


def definition_name(resource: Resource) -> str:
    """Return the name of a kind's definition: its model's, or its reversed group, version and kind."""
    if resource.model is not None:
        return models.definition_name(*resource.model)
    return ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])


def definitions(resources: list[Resource]) -> dict[str, Json]:
    """Return definitions of kinds and of all that they mention, with `$ref`s of v2."""
    found = models.definitions_for([*[r.model for r in resources if r.model is not None], ("meta_v1", "ObjectMeta")])
    for resource in resources:
        name = definition_name(resource)
        if resource.source_schema is not None:
            found[name] = _custom_definition(resource.source_schema)
        entry = {"group": resource.group, "kind": resource.kind, "version": resource.version}
        found[name] = {**found[name], "x-kubernetes-group-version-kind": [entry]}
    return found


def _custom_definition(source: Json) -> Json:
    definition = copy(source)
    properties = as_object(definition.setdefault("properties", {}))
    for name in ("apiVersion", "kind"):
        properties.setdefault(name, {"type": "string"})
    properties["metadata"] = {"$ref": f"#/definitions/{_META}", "description": "Standard object's metadata."}
    return definition


def _path(resource: Resource, *, item: bool) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{root}{scope}/{resource.plural}{'/{name}' if item else ''}"


def _operation(resource: Resource, action: str, parameters: list[Json]) -> Json:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    return {
        "operationId": f"{action}{resource.group.title().replace('.', '')}{resource.version.title()}{resource.kind}",
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
    }


def _paths(resources: list[Resource], parameter_of: Any, body_of: Any) -> Json:
    paths: Json = {}
    written = [parameter_of(name) for name in _WRITE_PARAMETERS]
    for resource in resources:
        if "create" in resource.verbs:
            post = _operation(resource, "post", written)
            paths.setdefault(_path(resource, item=False), {})["post"] = body_of(post, ["application/json"])
        if "patch" in resource.verbs:
            item = as_object(paths.setdefault(_path(resource, item=True), {}))
            types = _CUSTOM_PATCH_TYPES if resource.custom else PATCH_TYPES
            item["put"] = body_of(_operation(resource, "put", written), ["application/json"])
            item["patch"] = body_of(_operation(resource, "patch", written), types)
            item["delete"] = _operation(resource, "delete", [parameter_of("dryRun")])
    return paths


def _v2_body(operation: Json, types: list[str]) -> Json:
    return {**operation, "consumes": types}


def _v2_parameter(name: str) -> Json:
    return {"name": name, "in": "query", "type": "string", "uniqueItems": True}


def _v3_body(operation: Json, types: list[str]) -> Json:
    return {**operation, "requestBody": {"content": {media: {"schema": {"type": "object"}} for media in types}}}


def _v3_parameter(name: str) -> Json:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}


class Documents:
    """Makes the documents on demand, and again when the registry has changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._made: dict[str, bytes] = {}

    def _cached(self, name: str, make: Any) -> bytes:
        if self._generation != self._registry.generation:
            self._generation, self._made = self._registry.generation, {}
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def v2_json(self) -> bytes:
        return self._cached("v2.json", lambda: encode(self._v2()))

    def v2_protobuf(self) -> bytes:
        return self._cached("v2.pb", lambda: encode_document(self._v2()))

    def _v2(self) -> Json:
        resources = list(self._registry)
        return {
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
            "paths": _paths(resources, _v2_parameter, _v2_body),
            "definitions": {name: _plain_v2(schema) for name, schema in definitions(resources).items()},
        }

    def v3_index(self) -> bytes:
        """Return /openapi/v3: the path of each group's and version's document."""
        names = [f"apis/{g}/{v}" if g else f"api/{v}" for g, vs in self._registry.groups().items() for v in vs]
        return encode({"paths": {name: {"serverRelativeURL": self._v3_url(name)} for name in names}})

    def _v3_url(self, name: str) -> str:
        document = self.v3(name) or b""
        return f"/openapi/v3/{name}?hash={hashlib.sha256(document).hexdigest()[:32].upper()}"

    def v3(self, name: str) -> bytes | None:
        """Return /openapi/v3/api/v1 or /openapi/v3/apis/GROUP/VERSION; None for an unknown version."""
        parts = name.split("/")
        group, version = ("", parts[1]) if len(parts) == 2 else (parts[1], parts[-1]) if len(parts) == 3 else ("", "")
        if not self._registry.has_version(group, version):
            return None
        return self._cached(f"v3/{name}", lambda: encode(self._v3(self._registry.of_version(group, version))))

    def _v3(self, resources: list[Resource]) -> Json:
        schemas = {name: _references_v3(schema) for name, schema in definitions(resources).items()}
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
            "paths": _paths(resources, _v3_parameter, _v3_body),
            "components": {"schemas": schemas},
        }


_V3_ONLY = ("anyOf", "oneOf", "not", "allOf", "nullable")


def _plain_v2(schema: Any) -> Any:
    """Return a schema without everything that OpenAPI v2 lacks."""
    if isinstance(schema, list):
        return [_plain_v2(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tree = cast(Json, schema)
    plain = {key: _plain_v2(value) for key, value in tree.items() if key not in _V3_ONLY}
    if tree.get("x-kubernetes-int-or-string") is True:
        plain.pop("type", None)
    elif tree.get("x-kubernetes-preserve-unknown-fields") is True and tree.get("type") == "object":
        # kubectl's own validation would call fields unknown that the server keeps
        plain.pop("properties", None)
        plain.pop("type", None)
    return plain


def _references_v3(schema: Any) -> Any:
    """Convert `$ref`s to v3. A `$ref` with siblings goes into `allOf`, so that the siblings count."""
    if isinstance(schema, list):
        return [_references_v3(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tree = cast(Json, schema)
    rest = {key: _references_v3(value) for key, value in tree.items() if key != "$ref"}
    if not isinstance(tree.get("$ref"), str):
        return rest
    reference = {"$ref": tree["$ref"].replace("#/definitions/", "#/components/schemas/")}
    return {**rest, "allOf": [reference]} if rest else reference
