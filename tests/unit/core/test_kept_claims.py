"""What our components keep of ElasticGPUClaims is limited, whatever a tenant writes into them."""

import gc
import tracemalloc
from typing import Any

import msgspec
import pytest

from egpu.api import names
from egpu.api.objects import ElasticGPUClaim
from egpu.core.kept_claims import CUT, MOST_BYTES, kept_gpu_claim
from egpu.core.resizing import asked_within
from egpu_base.errors import InvalidDemand

MANY = 5_000


def read(**changed: Any) -> ElasticGPUClaim:
    body = {
        "kind": "ElasticGPUClaim",
        "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7", **changed.get("metadata", {})},
        "spec": {"elasticGPUClassName": "k", "resources": {"requests": {names.GPU_CORE: "50"}}},
        "status": changed.get("status", {}),
    }
    return kept_gpu_claim(msgspec.json.decode(msgspec.json.encode(body), type=ElasticGPUClaim))


def test_labels_are_kept_for_bills_of_teams() -> None:
    assert read(metadata={"labels": {"team": "a"}}).metadata.labels == {"team": "a"}


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata": {"labels": {f"a{number}": "b" for number in range(MANY)}}},
        {"metadata": {"finalizers": [f"a.example/{number}" for number in range(MANY)]}},
        {"metadata": {"annotations": {"a": "x" * 200_000, "elasticgpu.io/fence": "x" * 50_000}}},
        {"metadata": {"annotations": {f"elasticgpu.io/{number}": "x" for number in range(5_000)}}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": f"{number}"}
                                          for number in range(MANY)]}},
        {"status": {"usedBy": [f"p{number}/c" for number in range(MANY)]}},
        {"status": {"conditions": [{"type": f"t{number}", "status": "True"} for number in range(MANY)]}},
        {"status": {"capacity": {f"a.example/{number}": "1" for number in range(MANY)}}},
    ],
)  # fmt: skip
def test_a_stuffed_claim_takes_little_memory(changed: dict[str, Any]) -> None:
    """A hundred of them ended webhook, extender, controller and dashboard, which all keep claims."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = [read(**changed) for _ in range(5)]
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(kept) < 2 * MOST_BYTES
    assert {one.spec.class_name for one in kept} == {"k"}
    assert (kept[0].uid, kept[0].metadata.resource_version) == ("u", "7")


def test_finalizers_of_others_are_kept_or_the_claim_says_that_they_are_not() -> None:
    few = read(metadata={"finalizers": ["a.example/b", names.CLAIM_FINALIZER]})
    assert few.metadata.finalizers == ["a.example/b", names.CLAIM_FINALIZER]
    assert CUT not in few.annotations
    many = read(metadata={"finalizers": [*(f"a.example/{number}" for number in range(MANY)), names.CLAIM_FINALIZER]})
    assert many.metadata.finalizers == [names.CLAIM_FINALIZER]
    assert CUT in many.annotations


def test_a_long_annotation_of_ours_stays_invalid() -> None:
    kept = read(metadata={"annotations": {names.SHRINK_WITHIN: "1" * 5000}})
    with pytest.raises(InvalidDemand):
        asked_within(kept.annotations)
