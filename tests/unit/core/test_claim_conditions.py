"""What a claim says of its cards and its size: once something was wrong, and since when."""

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.objects import ClaimAllocation, ElasticGPUClaim, ElasticGPUClaimStatus
from egpu.core.claims.absence import sick_cards
from egpu.core.claims.actions import Action, ResizeSlice, SetCondition, Tell
from egpu.core.claims.conditions import CARDS_HEALTHY, with_condition
from egpu.core.claims.lifecycle import claim_slices, reconcile_claim
from egpu_base.api.objects import Condition
from support.objects import card, claim, gpu_class

SHARE = CardShare(uuid="GPU-n0-0", index=0, minor=0, core=30, memory_mib=4096)


def bound(*, core: int = 30, conditions: list[Condition] | None = None) -> ElasticGPUClaim:
    share = replace(SHARE, core=core, uuid=_uuid())
    given = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,))
    status = ElasticGPUClaimStatus(
        phase="Bound", allocation=ClaimAllocation(node="n0", container=given), conditions=conditions or []
    )
    return replace(claim("c"), status=status)


def _uuid() -> str:
    physical = card("n0", 0).spec.physical_gpu
    assert physical is not None
    return physical.uuid


def said(one: ElasticGPUClaim, sick: str) -> list[Action]:
    todo = reconcile_claim(one, gpu_class(), claim_slices(one, "Delete"), (), sick=sick)
    return [action for action in todo if isinstance(action, SetCondition | Tell)]


def test_a_sick_card_is_told_once_and_its_recovery_too() -> None:
    one = bound()
    assert [action for action in said(one, "") if isinstance(action, SetCondition)] == []
    condition, event = said(one, "card 0 of node n0 is unhealthy: XID 79")
    assert isinstance(condition, SetCondition)
    assert (condition.condition.status, condition.condition.reason) == ("False", "CardUnhealthy")
    assert event == Tell(one, "CardUnhealthy", "card 0 of node n0 is unhealthy: XID 79")
    sick = bound(conditions=[condition.condition])
    assert said(sick, condition.condition.message) == []
    well, event = said(sick, "")
    assert isinstance(well, SetCondition)
    assert (well.condition.status, isinstance(event, Tell) and event.warning) == ("True", False)
    assert said(bound(conditions=[well.condition]), "") == []


def test_which_cards_of_a_claim_are_sick() -> None:
    cards = [card("n0", 0), card("n0", 1, healthy=False)]
    assert sick_cards(bound(), cards) == ""
    assert sick_cards(bound(), [card("n0", 0, healthy=False)]).startswith("card 0 of node n0 is unhealthy")
    assert sick_cards(claim("unbound"), [card("n0", 0, healthy=False)]) == ""


def test_a_condition_keeps_its_time_while_it_stays_as_it_is() -> None:
    first = Condition(type=CARDS_HEALTHY, status="False", reason="r", message="m")
    (made,) = with_condition([], first, now="1") or []
    assert made.last_transition_time == "1"
    assert with_condition([made], first, now="2") is None
    (told,) = with_condition([made], replace(first, message="other"), now="2") or []
    assert (told.message, told.last_transition_time) == ("other", "1")
    other = Condition(type="Resized", status="True")
    kept, changed = with_condition([made, other], replace(first, status="True"), now="3") or []
    assert (kept, changed.last_transition_time) == (other, "3")


def test_slices_follow_the_size_of_their_claim() -> None:
    before = claim_slices(bound(core=30), "Retain")
    grown = bound(core=50)
    todo = reconcile_claim(grown, gpu_class(), before, ())
    (resize,) = [action for action in todo if isinstance(action, ResizeSlice)]
    assert resize.merge_patch()["spec"] == {
        "capacity": {names.GPU_CORE: "50", names.GPU_MEMORY: "4096"},
        "slice": {"core": 50, "memoryMiB": 4096},
    }
    gone = replace(grown, metadata=replace(grown.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    assert any(isinstance(action, ResizeSlice) for action in reconcile_claim(gone, gpu_class(), before, ()))
