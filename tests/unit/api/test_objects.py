"""Objects and annotations on the wire."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml

from egpu.api.allocation import (
    CardShare,
    ContainerAllocation,
    ContainerDemand,
    PodAllocation,
    PodDemand,
    decode_allocation,
    encode,
)
from egpu.api.crds import definitions
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu_base.api.extender import ExtenderArgs, ExtenderBindingArgs
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import Object, ObjectMeta
from egpu_base.errors import CorruptData

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KINDS = {"ElasticGPUClass": ElasticGPUClass, "ElasticGPUClaim": ElasticGPUClaim, "Pod": Pod}
OTHERS = {"Namespace": Object, "Deployment": Object, "ResourceQuota": Object}


def test_kind_and_version_are_always_written_and_defaults_never() -> None:
    written = msgspec.to_builtins(ElasticGPU(metadata=ObjectMeta(name="a")))
    assert written == {
        "kind": "ElasticGPU",
        "apiVersion": "elasticgpu.io/v1alpha1",
        "metadata": {"name": "a"},
        "spec": {},
        "status": {},
    }


@pytest.mark.parametrize("spelling", ["elasticGPUClassName", "egpuClassName", "storageClassName"])
def test_every_spelling_of_the_class_is_read(spelling: str) -> None:
    claim = msgspec.convert({"spec": {spelling: "fast"}}, ElasticGPUClaim)
    assert claim.spec.class_name == "fast"


@pytest.mark.parametrize("spelling", ["eGPUBindingMode", "egpuBindingMode"])
def test_every_spelling_of_the_binding_mode_is_read(spelling: str) -> None:
    klass = msgspec.convert({"provisioner": "p", spelling: "WaitForFirstConsumer"}, ElasticGPUClass)
    assert klass.binding_mode == "WaitForFirstConsumer"


def test_binding_is_immediate_unless_said_otherwise() -> None:
    assert ElasticGPUClass(provisioner="p").binding_mode == "Immediate"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_articles_manifests_are_read(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        msgspec.convert(document, (KINDS | OTHERS)[document["kind"]])


def test_what_go_writes_as_null_is_read() -> None:
    pod = b'{"metadata":{"name":"p","creationTimestamp":null},"spec":{"containers":null},"status":{}}'
    text = b'{"Pod":' + pod + b',"Nodes":null,"NodeNames":["a"]}'
    arguments = msgspec.json.decode(text, type=ExtenderArgs)
    assert arguments.node_names == ["a"]
    assert arguments.pod.containers == []


def test_go_keys_of_the_extender() -> None:
    written = msgspec.to_builtins(ExtenderBindingArgs(pod_name="p", pod_namespace="n", pod_uid="u", node="x"))
    assert written == {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "x"}


def allocation() -> PodAllocation:
    share = CardShare(uuid="GPU-1", index=0, minor=3, core=20, memory_mib=2560)
    return PodAllocation(
        node="n", containers={"app": ContainerAllocation(provisioner="p", mode="shared", cards=(share,))}, init=("app",)
    )


def test_annotations_round_trip_and_do_not_depend_on_order() -> None:
    assert decode_allocation(encode(allocation())) == allocation()
    one, two = ContainerDemand(provisioner="p", core=1), ContainerDemand(provisioner="q", core=2)
    text = encode(PodDemand(containers={"a": one, "b": two}))
    assert text == encode(PodDemand(containers={"b": two, "a": one}))
    assert msgspec.json.decode(text, type=PodDemand) == PodDemand(containers={"a": one, "b": two})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1],
        lambda text: text.replace('"version":1', '"version":2'),
        lambda text: text.replace('"node"', '"knot"'),
        lambda text: text.replace('"core":20', '"core":120'),
        lambda text: text.replace('"memoryMiB":2560', '"memoryMiB":-1'),
        lambda text: text.replace('"shared"', '"borrowed"'),
        lambda text: "null",
    ],
)
def test_a_spoiled_allocation_is_corrupt_data(spoil: Callable[[str], str]) -> None:
    with pytest.raises(CorruptData):
        decode_allocation(spoil(encode(allocation())))


def test_definitions_serve_two_versions_of_one_structural_schema() -> None:
    found = {definition["spec"]["names"]["shortNames"][0]: definition for definition in definitions()}
    assert set(found) == {"egpu", "egpuc", "egpuclass"}
    for definition in found.values():
        versions = definition["spec"]["versions"]
        assert [(v["name"], v["served"], v["storage"]) for v in versions] == [
            ("v1alpha1", True, True),
            ("v1alpha", True, False),
        ]
        assert versions[0]["schema"] == versions[1]["schema"]
        assert "$ref" not in str(definition)
    claim = found["egpuc"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert {"storageClassName", "egpuClassName", "elasticGPUClassName"} <= claim["spec"]["properties"].keys()
    requests = claim["spec"]["properties"]["resources"]["properties"]["requests"]["additionalProperties"]
    assert requests["x-kubernetes-int-or-string"] is True
    klass = found["egpuclass"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert {"provisioner", "parameters", "reclaimPolicy", "eGPUBindingMode", "egpuBindingMode"} <= klass[
        "properties"
    ].keys()
    assert klass["required"] == ["provisioner"]


def test_checked_in_definitions_are_what_the_types_say() -> None:
    folder = EXAMPLES.parent / "deploy" / "crds"
    on_disk = {path.name: yaml.safe_load(path.read_text()) for path in folder.glob("elasticgpu*.yaml")}
    assert on_disk == {d["metadata"]["name"].partition(".")[0] + ".yaml": d for d in definitions()}
