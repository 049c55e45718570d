"""Three words for the quality of service of a slice's compute: the same ones in status and in every view."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, PodAllocation
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.apps.dashboard import drawing
from egpu.apps.dashboard.rendering import render
from egpu.cli import views
from egpu.cli.snapshot import snapshot_of
from egpu.cli.top_rows import rows
from egpu.core.claims.actions import PatchClaimStatus
from egpu.core.claims.lifecycle import reconcile_claim
from egpu.core.explain import explain_pod
from egpu.core.explain_claim import explain_claim
from egpu.core.placement.cache import SchedulerCache
from egpu.core.view import ClusterView, cluster_view
from egpu_base.api.kubernetes import Pod
from support.objects import BINPACK, card, claim, cluster, container, gpu_class, placed, pod

KINDS = [(30, 0, "Guaranteed"), (30, 30, "Guaranteed"), (30, 100, "Burstable"), (0, 0, "BestEffort")]
each_kind = pytest.mark.parametrize(("core", "limit", "word"), KINDS)


def given(core: int, limit: int) -> ContainerAllocation:
    share = CardShare(uuid="GPU-n0-0", index=0, minor=0, core=core, memory_mib=1024)
    return ContainerAllocation(provisioner=names.VCUDA, mode="shared", core_limit=limit, cards=(share,), latency=True)


def bound(core: int, limit: int) -> tuple[SchedulerCache, Pod, ElasticGPUClaim]:
    """A pod with a slice of its own, and a claim with one like it."""
    cache, container_of = cluster(), given(core, limit)
    one = placed(pod("p", container("app")), PodAllocation(node="n0", containers={"app": container_of}))
    held = ClaimAllocation(node="n0", container=replace(container_of, claim=""))
    other = replace(claim("c"), status=ElasticGPUClaimStatus(phase="Bound", allocation=held))
    cache.pod_changed(one)
    cache.claim_changed(other)
    return cache, one, other


def view(core: int, limit: int) -> ClusterView:
    cache, one, other = bound(core, limit)
    now = datetime(2026, 11, 28, tzinfo=UTC)
    return cluster_view(cache, nodes=[], pods=[one], claims=[other], gpus=[], usage={}, now=now)


@each_kind
def test_the_status_of_a_claim_has_the_word(core: int, limit: int, word: str) -> None:
    _, _, other = bound(core, limit)
    (patch,) = (one for one in reconcile_claim(other, gpu_class(), [], []) if isinstance(one, PatchClaimStatus))
    assert patch.merge_patch()["status"]["qos"] == word


@each_kind
def test_tables_and_json_of_pods_and_claims_have_the_word(core: int, limit: int, word: str) -> None:
    _, one, other = bound(core, limit)
    snapshot = snapshot_of([], [card("n0", 0)], (), [other], [one])
    for table in (views.pods(snapshot, None), views.claims(snapshot, None)):
        assert table.columns.index("qos")
        (row,), (record,) = table.rows, table.records
        assert str(row[table.columns.index("qos")]) == word
        assert (record["qos"], record["work"]) == (word, "latency")


@each_kind
def test_explanations_have_the_word(core: int, limit: int, word: str) -> None:
    cache, one, other = bound(core, limit)
    for found in (explain_pod(one, cache, ["n0"], BINPACK), explain_claim(other, cache, ["n0"], BINPACK)):
        assert any(f"by elasticgpu.io/vcuda ({word})" in line for line in found.details)


@each_kind
def test_top_has_the_word(core: int, limit: int, word: str) -> None:
    notes = [row.note for row in rows(view(core, limit)) if row.depth == 2]
    assert sorted(notes) == sorted([f"{word}, latency", f"{word}, latency, claim"])


@each_kind
def test_every_page_of_the_dashboard_with_slices_has_the_word(core: int, limit: int, word: str) -> None:
    (found,) = view(core, limit).cards()
    one = found.slices[0]
    drawn = {"card": found, "core": drawing.core_bars(found, {"default": "ns-1"}), "memory": [], "label": ""}
    nothing = {"pending": [], "more_pending": 0, "more_slices": 0, "claims": [], "more_claims": 0, "q": ""}
    pages = {
        "card": {"card": found, "drawn": drawn, "slices": [(one, "ns-1", False, "p")]},
        "pod": {"pod": one, "slices": [(one, False)], "explanation": None, "waits": None},
        "workloads": {**nothing, "slices": [(one, "ns-1", False)]},
    }
    amount = "30 to 100 %" if word == "Burstable" else "30 %" if core else "1024 MiB"
    for page, values in pages.items():
        text = render(f"parts/{page}.html", values)
        assert f'<td>{word} <span class="tag">latency</span></td>' in text
        assert amount in text
