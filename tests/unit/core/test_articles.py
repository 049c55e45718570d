"""The design articles' own manifests, from file to cards."""

from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClaimStatus, ElasticGPUClass
from egpu.core.admission import mutate_pod, validate_claim, validate_class, validate_pod_create
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.requests import CLAIM_CONTAINER
from egpu_base.api.kubernetes import Pod
from egpu_base.api.objects import Object
from support.objects import BINPACK, cluster

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def read(name: str, kind: type[Object]) -> Object | None:
    for document in yaml.safe_load_all((EXAMPLES / name).read_text()):
        if document["kind"] == kind.__name__:
            found = msgspec.convert(document, kind)
            return replace(found, metadata=replace(found.metadata, namespace="default", uid=f"uid-{found.name}"))
    return None


def apply(name: str) -> tuple[SchedulerCache, Pod]:
    """Admit everything in the file, and bind its claim if it can be."""
    cache = cluster(cards=2)
    klass, claim, pod = (read(name, kind) for kind in (ElasticGPUClass, ElasticGPUClaim, Pod))
    classes: dict[str, ElasticGPUClass] = {}
    claims: dict[str, ElasticGPUClaim] = {}
    if isinstance(klass, ElasticGPUClass) and isinstance(claim, ElasticGPUClaim):
        classes, claims = {klass.name: klass}, {claim.name: claim}
        assert validate_class(klass, None) == []
        assert validate_claim(claim, None, classes, largest_mib=16384) == []
        cache.class_changed(klass)
        cache.claim_changed(claim)
        request = cache.claim_request(claim)
        if cache.filter(request, ["n0"]).fits:
            given = cache.ranking.choose(request, "n0", BINPACK).containers[CLAIM_CONTAINER]
            status = ElasticGPUClaimStatus(allocation=ClaimAllocation(node="n0", container=given))
            cache.claim_changed(replace(claim, status=status))
    assert isinstance(pod, Pod)
    assert validate_pod_create(pod, claims, classes, largest_mib=16384) == []
    assert mutate_pod(pod, claims, classes, largest_mib=16384)
    return cache, pod


@pytest.mark.parametrize(
    ("name", "provisioner", "mode", "core", "memory_mib"),
    [
        ("seed-whole-card.yaml", names.PHYSICAL, "exclusive", 100, 16384),
        ("seed-vcuda.yaml", names.VCUDA, "shared", 20, 2560),
        ("seed-gpushare.yaml", names.GPUSHARE, "shared", 10, 4096),
        ("seed-qgpu.yaml", names.QGPU, "shared", 10, 3815),
    ],
)
def test_what_is_built_gets_cards(name: str, provisioner: str, mode: str, core: int, memory_mib: int) -> None:
    cache, pod = apply(name)
    request = cache.request(pod)
    assert cache.filter(request, ["n0"]).fits == ("n0",)
    (given,) = cache.ranking.choose(request, "n0", BINPACK).containers.values()
    share: CardShare = given.cards[0]
    assert (given.provisioner, given.mode, share.core, share.memory_mib) == (provisioner, mode, core, memory_mib)
