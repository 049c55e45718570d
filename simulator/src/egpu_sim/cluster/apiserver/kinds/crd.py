"""CustomResourceDefinitions: their rules, and the resources that they add to the registry."""

from egpu_sim.cluster.apiserver.kinds import definitions
from egpu_sim.cluster.apiserver.kinds.resources import (
    METADATA_FIELDS,
    Convert,
    Registry,
    Resource,
    Rules,
    ScalePaths,
    Subresource,
)
from egpu_sim.cluster.apiserver.kinds.schema import Schema, compile_schema
from egpu_sim.cluster.apiserver.reading.table import declared_columns
from egpu_sim.cluster.apiserver.status import Cause
from egpu_sim.cluster.apiserver.storage.store import Change
from egpu_sim.cluster.trees import Json, as_list, as_object, at, copy, metadata, now, objects_at

SHELF = "customresourcedefinitions"
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class DefinitionRules(Rules):
    def defaults(self, obj: Json) -> None:
        spec = as_object(obj.get("spec"))
        names = as_object(spec.get("names"))
        kind = str(names.get("kind") or "")
        if kind:
            names.setdefault("singular", kind.lower())
            names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare_create(self, obj: Json) -> None:
        meta = metadata(obj)
        finalizers = as_list(meta.get("finalizers"))
        meta["finalizers"] = [*finalizers, *([] if CLEANUP_FINALIZER in finalizers else [CLEANUP_FINALIZER])]
        stored = [v.get("name") for v in objects_at(obj, "spec", "versions") if v.get("storage")][:1]
        obj["status"] = {
            "acceptedNames": copy(as_object(at(obj, "spec", "names"))),
            "storedVersions": stored,
            "conditions": [
                _condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                _condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
        }

    def prepare_update(self, old: Json, new: Json) -> None:
        status = as_object(new.setdefault("status", {}))
        stored = as_list(status.get("storedVersions"))
        now_stored = [v.get("name") for v in objects_at(new, "spec", "versions") if v.get("storage")]
        status["storedVersions"] = [*stored, *(name for name in now_stored if name not in stored)]

    def validate(self, obj: Json) -> list[Cause]:
        return definitions.validate(obj)

    def validate_update(self, old: Json, new: Json) -> list[Cause]:
        return definitions.validate_update(old, new)


def _condition(kind: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": "True", "lastTransitionTime": now(), "reason": reason, "message": message}


class CustomRules(Rules):
    """Rules of custom resources: schema and metadata."""


def resources_of(definition: Json, metadata_schema: Schema) -> list[Resource]:
    """Return the served versions of a CRD, the storage version first."""
    versions = [v for v in objects_at(definition, "spec", "versions") if v.get("served")]
    versions.sort(key=lambda v: (not v.get("storage"), str(v.get("name"))))
    return [_resource(definition, version, metadata_schema) for version in versions]


def _resource(definition: Json, version: Json, metadata_schema: Schema) -> Resource:
    spec = as_object(definition["spec"])
    names = as_object(spec["names"])
    group, kind, version_name = str(spec["group"]), str(names["kind"]), str(version["name"])
    storage = next(str(v["name"]) for v in objects_at(spec, "versions") if v.get("storage"))
    source = as_object(at(version, "schema", "openAPIV3Schema"))
    schema = compile_schema(source)
    schema.properties = {
        **(schema.properties or {}),
        "apiVersion": Schema(type="string"),
        "kind": Schema(type="string"),
        "metadata": metadata_schema,
    }
    fields = {
        path.removeprefix("."): tuple(path.removeprefix(".").split("."))
        for field in objects_at(version, "selectableFields")
        if (path := str(field.get("jsonPath") or ""))
    }
    is_storage = version_name == storage
    return Resource(
        group,
        version_name,
        str(names["plural"]),
        kind,
        spec["scope"] == "Namespaced",
        f"{names['plural']}.{group}",
        str(names.get("singular") or kind.lower()),
        tuple(map(str, as_list(names.get("shortNames")))),
        tuple(map(str, as_list(names.get("categories")))),
        subresources=_subresources(version, kind),
        fields={**METADATA_FIELDS, **fields},
        columns=declared_columns(objects_at(version, "additionalPrinterColumns")),
        rules=CustomRules(),
        schema=schema,
        source_schema=source,
        to_storage=None if is_storage else _relabel(f"{group}/{storage}"),
        from_storage=None if is_storage else _relabel(f"{group}/{version_name}"),
        custom=True,
        scale=_scale_paths(version),
        generations=True,
    )


_VERBS = ("get", "patch", "update")


def _subresources(version: Json, kind: str) -> tuple[Subresource, ...]:
    declared = as_object(version.get("subresources"))
    scale = (Subresource("scale", "Scale", _VERBS, "autoscaling", "v1"),) if "scale" in declared else ()
    return (*scale, Subresource("status", kind, _VERBS)) if "status" in declared else scale


def _scale_paths(version: Json) -> ScalePaths | None:
    scale = as_object(at(version, "subresources", "scale"))
    if not scale:
        return None
    spec, status, selector = (
        tuple(filter(None, str(scale.get(key) or "").split(".")))
        for key in ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
    )
    return ScalePaths(spec, status, selector)


def _relabel(api_version: str) -> Convert:
    """Convert with strategy None: versions differ only in their name."""

    def convert(obj: Json) -> Json:
        return {**obj, "apiVersion": api_version}

    return convert


class Definitions:
    """Keeps the registry in step with the CRDs in the store."""

    def __init__(self, registry: Registry, metadata_schema: Schema) -> None:
        self._registry = registry
        self._metadata_schema = metadata_schema

    def on_change(self, shelf: str, change: Change) -> None:
        if shelf != SHELF:
            return
        definition = change.item.obj
        group, plural = str(at(definition, "spec", "group")), str(at(definition, "spec", "names", "plural"))
        if change.kind == "DELETED":
            self._registry.remove(group, plural)
        elif change.previous is None or change.previous.obj.get("spec") != definition.get("spec"):
            if change.previous is not None:
                self._registry.remove(group, plural)
            for resource in resources_of(definition, self._metadata_schema):
                self._registry.add(resource)
