"""CustomResourceDefinitions made from the msgspec types of `egpu.api.objects`, so the two cannot drift apart.

Structural schemas (apiextensions.k8s.io/v1): no references, int-or-string marked by extension, rules in CEL. Written to
deploy/crds by scripts/generate_crds.py, and served by the embedded API server.
"""

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass, Object

Schema = dict[str, Any]

_QUANTITY: Final[Schema] = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
_NOT_STRUCTURAL: Final = ("title", "$ref", "$defs", "anyOf", "default")


def definitions() -> list[Schema]:
    """The three definitions, as plain JSON."""
    return [_gpu(), _claim(), _class()]


def schema(kind: type[Object]) -> Schema:
    """The structural OpenAPI schema of one kind."""
    root = msgspec.json.schema(kind)
    components = cast(dict[str, Schema], root["$defs"])
    built = _structural(root, components)
    properties = cast(dict[str, Schema], built["properties"])
    properties["metadata"] = {"type": "object"}
    properties["kind"] = {"type": "string"}
    properties["apiVersion"] = {"type": "string"}
    built.pop("required", None)
    return built


def _structural(node: Schema, components: dict[str, Schema]) -> Schema:
    """JSON schema as msgspec writes it → structural schema: references replaced, unions reduced."""
    if reference := node.get("$ref"):
        return _structural(components[reference.rsplit("/", 1)[1]], components) | _description(node)
    if options := cast(list[Schema] | None, node.get("anyOf")):
        kinds = {option.get("type") for option in options}
        if kinds == {"integer", "number", "string"}:
            return dict(_QUANTITY)
        present = [option for option in options if option.get("type") != "null"]
        (only,) = present  # no other unions in our objects
        return _structural(only, components) | ({"nullable": True} if len(present) < len(options) else {})
    built = {key: value for key, value in node.items() if key not in _NOT_STRUCTURAL}
    if None in built.get("enum", ()):
        built["enum"] = [value for value in built["enum"] if value is not None]
    if "enum" in built:
        built["type"] = "string"
    if not built.get("required", True):
        del built["required"]
    if "properties" in built:
        properties = cast(dict[str, Schema], built["properties"])
        built["properties"] = {name: _structural(child, components) for name, child in properties.items()}
    if isinstance(built.get("additionalProperties"), dict):
        built["additionalProperties"] = _structural(cast(Schema, built["additionalProperties"]), components)
    if "items" in built:
        built["items"] = _structural(cast(Schema, built["items"]), components)
    if "description" in built:
        built["description"] = " ".join(str(built["description"]).split())
    return built


def _description(node: Schema) -> Schema:
    return {"description": node["description"]} if "description" in node else {}


def _definition(
    kind: type[Object],
    *,
    short_name: str,
    columns: list[tuple[str, str, str]],
    amend: Callable[[dict[str, Schema]], None],
    status: bool = True,
) -> Schema:
    built = schema(kind)
    amend(cast(dict[str, Schema], built["properties"]))
    printed = [{"name": name, "type": form, "jsonPath": path} for name, form, path in columns]
    printed.append({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
    resource = kind.resource
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": kind.__name__,
                "listKind": f"{kind.__name__}List",
                "plural": resource.plural,
                "singular": kind.__name__.lower(),
                "shortNames": [short_name],
                "categories": ["elasticgpu"],
            },
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == names.STORAGE_VERSION,
                    "schema": {"openAPIV3Schema": built},
                    "additionalPrinterColumns": printed,
                    **({"subresources": {"status": {}}} if status else {}),
                }
                for version in names.SERVED_VERSIONS
            ],
        },
    }


def _rule(rule: str, message: str) -> Schema:
    return {"rule": rule, "message": message}


def _gpu() -> Schema:
    def amend(properties: dict[str, Schema]) -> None:
        properties["spec"]["x-kubernetes-validations"] = [
            _rule("has(self.physicalGPU) != has(self.slice)", "exactly one of physicalGPU (a card) and slice is set"),
            _rule("!has(self.slice) || has(self.claimRef)", "a slice names the claim that it is for in claimRef"),
        ]

    return _definition(
        ElasticGPU,
        short_name="egpu",
        columns=[
            ("Node", "string", ".spec.nodeName"),
            ("Index", "integer", ".spec.physicalGPU.index"),
            ("Model", "string", ".spec.physicalGPU.model"),
            ("Memory-MiB", "integer", ".spec.physicalGPU.memoryMiB"),
            ("Claim", "string", ".spec.claimRef.name"),
            ("Phase", "string", ".status.phase"),
            ("Healthy", "boolean", ".status.healthy"),
        ],
        amend=amend,
    )


_CLASS_NAMES: Final = ("elasticGPUClassName", "egpuClassName", "storageClassName")


def _claim() -> Schema:
    def amend(properties: dict[str, Schema]) -> None:
        given = " + ".join(f"(has(self.{name}) && self.{name} != '' ? 1 : 0)" for name in _CLASS_NAMES)
        properties["spec"]["x-kubernetes-validations"] = [
            _rule(f"{given} == 1", f"name the class once, in one of {', '.join(_CLASS_NAMES)}"),
            *(
                _rule(f"has(self.{name}) == has(oldSelf.{name})", "a claim keeps its class; make another claim")
                for name in _CLASS_NAMES
            ),
        ]
        for name in _CLASS_NAMES:
            properties["spec"]["properties"][name] |= {
                "maxLength": 253,
                "x-kubernetes-validations": [_rule("self == oldSelf", "a claim keeps its class; make another claim")],
            }

    return _definition(
        ElasticGPUClaim,
        short_name="egpuc",
        columns=[
            ("Phase", "string", ".status.phase"),
            ("Node", "string", ".status.allocation.node"),
            ("GPUs", "string", ".status.boundGPUs"),
            ("Used-By", "string", ".status.usedBy"),
        ],
        amend=amend,
    )


def _class() -> Schema:
    def amend(properties: dict[str, Schema]) -> None:
        properties["provisioner"] |= {
            "minLength": 1,
            "maxLength": 253,
            "x-kubernetes-validations": [_rule("self == oldSelf", "a class keeps its provisioner; make another class")],
        }
        properties["parameters"]["x-kubernetes-validations"] = [
            _rule("self == oldSelf", "a class keeps its parameters; make another class")
        ]
        properties["parameters"]["maxProperties"] = 64
        properties["parameters"]["additionalProperties"]["maxLength"] = 1024

    built = _definition(
        ElasticGPUClass,
        short_name="egpuclass",
        columns=[
            ("Provisioner", "string", ".provisioner"),
            ("Reclaim-Policy", "string", ".reclaimPolicy"),
            ("Binding-Mode", "string", ".eGPUBindingMode"),
        ],
        amend=amend,
        status=False,
    )
    for version in built["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["required"] = ["provisioner"]
    return built
