"""CustomResourceDefinitions, generated from the msgspec types of `egpu.api.objects`.

Structural schemas (apiextensions.k8s.io/v1): no references, int-or-string marked by extension, rules in CEL. The
docstrings of fields are the descriptions. scripts/generate_crds.py writes them to deploy/crds; the simulated API server
serves them.
"""

import ast
import functools
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import msgspec

from egpu.api import allocation, mig, names, objects
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu_base.api.objects import Object

Schema = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column of `kubectl get`: the first value at `path`. `wide`: only with `-o wide`."""

    name: str
    path: str
    form: Literal["string", "integer", "boolean", "date"] = "string"
    description: str = ""
    wide: bool = False

    def printed(self) -> Schema:
        return {
            "name": self.name,
            "type": self.form,
            "jsonPath": self.path,
            **({"description": self.description} if self.description else {}),
            **({"priority": 1} if self.wide else {}),
        }


def _amount(resource: str, *, under: str) -> str:
    """Return the JSONPath of an amount in a map of resources, whose names have dots."""
    return f"{under}." + resource.replace(".", r"\.")


_AGE: Final = _Column(name="Age", path=".metadata.creationTimestamp", form="date")

_QUANTITY: Final[Schema] = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
_NOT_STRUCTURAL: Final = ("title", "$ref", "$defs", "anyOf", "default")


def definitions() -> list[Schema]:
    """Return the three definitions, as plain JSON."""
    return [_gpu(), _claim(), _class()]


def schema(kind: type[Object]) -> Schema:
    """Return the structural OpenAPI schema of one kind."""
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
    """Convert a JSON schema of msgspec to a structural schema: references replaced, unions reduced.

    Source: "Specifying a structural schema" in Kubernetes' documentation of custom resources.
    """
    if reference := node.get("$ref"):
        return _structural(components[reference.rsplit("/", 1)[1]], components) | _description(node)
    if options := cast(list[Schema] | None, node.get("anyOf")):
        kinds = {option.get("type") for option in options}
        if kinds == {"integer", "number", "string"}:
            return dict(_QUANTITY)
        present = [option for option in options if option.get("type") != "null"]
        (only,) = present  # our objects have no other unions
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
        texts = _field_texts(str(node.get("title")))
        built["properties"] = {
            # The description of a field comes before that of its type.
            name: _structural(child, components) | ({"description": texts[name]} if name in texts else {})
            for name, child in properties.items()
        }
        # Structural objects are open: the API server prunes fields that `properties` does not name.
        built.pop("additionalProperties", None)
    elif isinstance(built.get("additionalProperties"), dict):
        built["additionalProperties"] = _structural(cast(Schema, built["additionalProperties"]), components)
    if "items" in built:
        built["items"] = _structural(cast(Schema, built["items"]), components)
    if "description" in built:
        built["description"] = " ".join(str(built["description"]).split())
    return built


@functools.cache
def _field_texts(kind: str) -> dict[str, str]:
    """Return the docstrings of a class's fields, by the fields' names on the wire, for `kubectl explain`. Empty for a
    class of another module."""
    found = next((vars(module)[kind] for module in (objects, allocation, mig) if kind in vars(module)), None)
    if found is None:
        return {}
    names_on_wire = {each.name: each.encode_name for each in msgspec.structs.fields(found)}
    (declared,) = ast.parse(inspect.getsource(found)).body
    assert isinstance(declared, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, text in itertools.pairwise(declared.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(written))):
                texts[names_on_wire[name]] = " ".join(written.split())
            case _:
                pass
    return texts


def _description(node: Schema) -> Schema:
    return {"description": node["description"]} if "description" in node else {}


def _definition(
    kind: type[Object],
    *,
    short_name: str,
    columns: list[_Column],
    amend: Callable[[dict[str, Schema]], None],
    status: bool = True,
) -> Schema:
    built = schema(kind)
    amend(cast(dict[str, Schema], built["properties"]))
    printed = [column.printed() for column in (*columns, _AGE)]
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
            _rule("!has(self.slice) || has(self.claimRef)", "a slice must name its claim in claimRef"),
        ]

    return _definition(
        ElasticGPU,
        short_name="egpu",
        columns=[
            _Column(name="Node", path=".spec.nodeName"),
            _Column(name="Card", path=".spec.physicalGPU.index", form="integer", description="index of this card"),
            _Column(
                name="Slice-Of", path=".spec.slice.index", form="integer", description="index of the card of this slice"
            ),
            _Column(name="Model", path=".spec.physicalGPU.model"),
            _Column(name="Core", path=_amount(names.GPU_CORE, under=".spec.capacity"), description="percent of a card"),
            _Column(
                name="Allocated", path=_amount(names.GPU_CORE, under=".status.given"), description="percent, of Core"
            ),
            _Column(name="Memory-MiB", path=_amount(names.GPU_MEMORY, under=".spec.capacity")),
            _Column(
                name="Allocated-MiB", path=_amount(names.GPU_MEMORY, under=".status.given"), description="of Memory-MiB"
            ),
            _Column(name="Held-By", path=".status.heldBy", description="pods and claims that hold a part of this card"),
            _Column(name="Claim", path=".spec.claimRef.name", description="claim of this slice"),
            _Column(name="Phase", path=".status.phase"),
            _Column(name="Mode", path=".spec.slice.mode", wide=True),
            _Column(name="Healthy", path=".status.healthy", form="boolean", wide=True),
            _Column(name="Claim-Namespace", path=".spec.claimRef.namespace", wide=True),
            _Column(name="Provisioner", path=".spec.slice.provisioner", wide=True),
        ],
        amend=amend,
    )


_CONTAINER: Final = ".status.allocation.container"
_CLASS_NAMES: Final = ("elasticGPUClassName", "egpuClassName", "storageClassName")


def _claim() -> Schema:
    def amend(properties: dict[str, Schema]) -> None:
        count = " + ".join(f"(has(self.{name}) && self.{name} != '' ? 1 : 0)" for name in _CLASS_NAMES)
        properties["spec"]["x-kubernetes-validations"] = [
            _rule(f"{count} == 1", f"name the class once, in one of {', '.join(_CLASS_NAMES)}"),
            *(
                _rule(f"has(self.{name}) == has(oldSelf.{name})", "the class cannot change; create another claim")
                for name in _CLASS_NAMES
            ),
        ]
        for name in _CLASS_NAMES:
            properties["spec"]["properties"][name] |= {
                "maxLength": 253,
                "x-kubernetes-validations": [_rule("self == oldSelf", "the class cannot change; create another claim")],
            }

    return _definition(
        ElasticGPUClaim,
        short_name="egpuc",
        columns=[
            _Column(name="Phase", path=".status.phase"),
            # Any of three fields: kubectl prints the first value of a union.
            _Column(name="Class", path=f".spec[{','.join(repr(name) for name in _CLASS_NAMES)}]"),
            _Column(name="Node", path=".status.allocation.node"),
            _Column(
                name="Card", path=f"{_CONTAINER}.cards[0].index", form="integer", description="index of its first card"
            ),
            _Column(name="Model", path=f"{_CONTAINER}.cards[0].model", description="of its first card"),
            _Column(
                name="Core",
                path=_amount(names.GPU_CORE, under=".status.capacity"),
                description="percent of a card, in all",
            ),
            _Column(name="Memory-MiB", path=_amount(names.GPU_MEMORY, under=".status.capacity"), description="in all"),
            _Column(name="QoS", path=".status.qos", description="of its compute"),
            _Column(name="Used-By", path=".status.usedBy[0]", description="pod/container"),
            _Column(name="All-Users", path=".status.usedBy", description="where several pods may use it", wide=True),
            _Column(
                name="Cards-On",
                path=f"{_CONTAINER}.server",
                description="the node of its cards, if not Node",
                wide=True,
            ),
            _Column(name="Slices", path=".status.boundGPUs", wide=True),
        ],
        amend=amend,
    )


def _class() -> Schema:
    def amend(properties: dict[str, Schema]) -> None:
        properties["provisioner"] |= {
            "minLength": 1,
            "maxLength": 253,
            "x-kubernetes-validations": [
                _rule("self == oldSelf", "the provisioner cannot change; create another class")
            ],
        }
        properties["parameters"]["x-kubernetes-validations"] = [
            _rule("self == oldSelf", "the parameters cannot change; create another class")
        ]
        properties["parameters"]["maxProperties"] = 64
        properties["parameters"]["additionalProperties"]["maxLength"] = 1024

    built = _definition(
        ElasticGPUClass,
        short_name="egpuclass",
        columns=[
            _Column(name="Provisioner", path=".provisioner"),
            _Column(name="Reclaim-Policy", path=".reclaimPolicy"),
            _Column(name="Binding-Mode", path=".eGPUBindingMode"),
            _Column(name="Shareable", path=".parameters.shareable", description="by several pods", wide=True),
        ],
        amend=amend,
        status=False,
    )
    for version in built["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["required"] = ["provisioner"]
    return built
