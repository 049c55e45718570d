"""The life of a claim, action by action."""

from collections.abc import Sequence

from msgspec.structs import replace

from egpu.api import names
from egpu.api.objects import (
    CARDS_PRESENT,
    ClaimAllocation,
    ElasticGPU,
    ElasticGPUClaim,
    ElasticGPUClaimStatus,
    ElasticGPUStatus,
)
from egpu.core.claims.absence import MISSING_SECONDS, Absence, Absences, missing_from
from egpu.core.claims.actions import (
    Action,
    CreateSlice,
    DeleteSlice,
    GiveUpShare,
    LookAgain,
    PatchClaimStatus,
    ResizeSlice,
    SetCondition,
    SetProtection,
    SetSlicePhase,
    Tell,
)
from egpu.core.claims.conditions import CARDS_AWAY, SLICE_DELETED, with_condition
from egpu.core.claims.lifecycle import check_class, claim_users, needs_binding, reconcile_claim, reconcile_gpu
from egpu.core.placement.requests import CLAIM_CONTAINER
from support.objects import BINPACK, card, claim, claim_pod, cluster, ended, gpu_class, place, placed


class Store:
    """What the API server would have after the actions: enough to run the state machine to its rest."""

    def __init__(self, what: ElasticGPUClaim, *, retain: bool = False) -> None:
        self.claim: ElasticGPUClaim | None = what
        self.klass = gpu_class(retain=retain)
        self.slices: dict[str, ElasticGPU] = {}
        self.users: list[str] = []
        self.told: list[str] = []

    def apply(self, action: Action) -> None:
        match action:
            case SetProtection(_, protected):
                if protected:
                    self.meta(finalizers=[names.CLAIM_FINALIZER])
                else:
                    self.claim = None
            case PatchClaimStatus():
                assert self.claim is not None
                status = replace(
                    self.claim.status,
                    phase=action.phase,
                    bound_gpus=list(action.bound_gpus),
                    used_by=list(action.used_by),
                    capacity=dict(action.merge_patch()["status"]["capacity"]),
                    qos=action.qos,
                )
                self.claim = replace(self.claim, status=status)
            case CreateSlice():
                self.slices[action.gpu.name] = action.gpu
            case DeleteSlice():
                self.slices.pop(action.gpu.name, None)
            case SetSlicePhase():
                known = self.slices[action.gpu.name]
                self.slices[known.name] = replace(known, status=ElasticGPUStatus(phase=action.phase))
            case Tell():
                self.told.append(action.reason)
            case SetCondition(_, condition):
                assert self.claim is not None
                conditions = with_condition(self.claim.status.conditions, condition, now="2030-01-01T00:00:00Z")
                assert conditions is not None
                self.claim = replace(self.claim, status=replace(self.claim.status, conditions=conditions))
            case GiveUpShare():
                assert self.claim is not None
                self.claim = replace(self.claim, status=replace(self.claim.status, allocation=None, bound_gpus=[]))
            case ResizeSlice():
                raise AssertionError("nobody asked for another size")
            case LookAgain():
                raise AssertionError("nothing is missing")

    def meta(self, **changes: object) -> None:
        assert self.claim is not None
        self.claim = replace(self.claim, metadata=replace(self.claim.metadata, **changes))

    def settle(self, *, stop_after: int | None = None, absence: Absence | None = None, idle: bool = False) -> int:
        """Run to rest; returns how many actions it took. `stop_after`: die after that many. `idle`: no pod uses it, for
        long enough."""
        unused = Absence("no pod uses it", 0.0) if idle else None
        done = 0
        for _ in range(20):
            actions: list[Action] = []
            if self.claim is not None:
                actions = reconcile_claim(
                    self.claim, self.klass, list(self.slices.values()), self.users, absence, idle=unused
                )
            else:
                actions = [a for gpu in self.slices.values() for a in reconcile_gpu(gpu, None)]
            if not actions:
                return done
            for action in actions:
                if stop_after is not None and done >= stop_after:
                    return done
                if self.claim is None and not isinstance(action, DeleteSlice | SetSlicePhase):
                    break
                self.apply(action)
                done += 1
        raise AssertionError("the claim does not come to rest")

    def bind(self) -> None:
        """What the extender does."""
        assert self.claim is not None
        cache = cluster(cards=2)
        cache.class_changed(self.klass)
        allocation = cache.ranking.choose(cache.claim_request(self.claim), "n0", BINPACK)
        held = ClaimAllocation(node="n0", container=allocation.containers[CLAIM_CONTAINER])
        self.claim = replace(self.claim, status=replace(self.claim.status, allocation=held))


def two_cards() -> ElasticGPUClaim:
    return claim("c", {names.GPU: 2, names.GPU_CORE: 30, names.GPU_MEMORY: 4096})


def bound_store(*, retain: bool = False) -> Store:
    store = Store(two_cards(), retain=retain)
    store.bind()
    store.settle()
    return store


def test_a_new_claim_is_protected_first_and_then_pending() -> None:
    bare = replace(claim("c"), metadata=replace(claim("c").metadata, finalizers=None))
    assert reconcile_claim(bare, gpu_class(), [], []) == [SetProtection(bare, protected=True)]
    store = Store(bare)
    store.settle()
    assert store.claim is not None
    assert store.claim.status.phase == "Pending"
    assert store.claim.metadata.finalizers == [names.CLAIM_FINALIZER]


def test_immediate_claims_are_bound_without_a_pod_and_others_are_not() -> None:
    assert needs_binding(claim("c"), gpu_class())
    assert not needs_binding(claim("c"), gpu_class(wait=True))
    store = bound_store()
    assert store.claim is not None
    assert not needs_binding(store.claim, gpu_class())


def test_a_claim_that_waits_for_its_first_pod_says_so() -> None:
    def told(one: ElasticGPUClaim, *, wait: bool, users: Sequence[str] = ()) -> list[str]:
        todo = reconcile_claim(one, gpu_class(wait=wait), [], users)
        return [action.reason for action in todo if isinstance(action, Tell)]

    assert told(claim("c"), wait=True) == ["WaitForFirstConsumer"]
    assert told(claim("c"), wait=False) == []
    assert told(claim("c"), wait=True, users=["p/app"]) == [], "its pod is there"
    bound = bound_store().claim
    assert bound is not None
    assert told(bound, wait=True) == ["Lost"], "of a claim that had cards nobody says that it waits"


def test_an_allocation_becomes_slices_and_then_bound() -> None:
    store = bound_store()
    assert store.claim is not None
    assert store.claim.status.phase == "Bound"
    assert store.told == ["Bound"]
    assert store.claim.status.bound_gpus == ["egpuc-uid-claim-c-0", "egpuc-uid-claim-c-1"]
    assert store.claim.status.capacity == {names.GPU_CORE: "60", names.GPU_MEMORY: "8192"}
    pieces = list(store.slices.values())
    assert [piece.status.phase for piece in pieces] == ["Bound", "Bound"]
    assert [(p.spec.slice.uuid, p.spec.slice.core) for p in pieces if p.spec.slice] == [
        ("GPU-n0-0", 30),
        ("GPU-n0-1", 30),
    ]
    assert store.settle() == 0


def test_dying_between_any_two_actions_ends_the_same() -> None:
    whole = Store(two_cards())
    whole.bind()
    steps = whole.settle()
    for died_after in range(steps):
        store = Store(two_cards())
        store.bind()
        store.settle(stop_after=died_after)
        store.settle()
        assert (store.claim, store.slices) == (whole.claim, whole.slices)


def present(store: Store) -> tuple[str, str]:
    """The status and reason of the condition CardsPresent."""
    assert store.claim is not None
    (found,) = (one for one in store.claim.status.conditions if one.type == CARDS_PRESENT)
    return found.status, found.reason or ""


def test_a_deleted_slice_makes_its_claim_lost_for_good() -> None:
    store = bound_store()
    del store.slices["egpuc-uid-claim-c-1"]
    store.settle()
    assert store.claim is not None
    assert store.claim.status.phase == "Lost"
    assert store.told == ["Bound", "Lost"]
    assert set(store.slices) == {"egpuc-uid-claim-c-0"}
    assert present(store) == ("False", SLICE_DELETED)


def test_a_claim_that_lost_a_slice_gives_up_its_share_when_no_pod_uses_it() -> None:
    store = bound_store()
    del store.slices["egpuc-uid-claim-c-1"]
    store.settle()
    assert store.claim is not None
    early = reconcile_claim(store.claim, store.klass, [], [], idle=Absence("no pod uses it", 7.0))
    assert early == [LookAgain(7.0)], "a pod that was just placed may not be known yet"
    assert store.claim.status.allocation is not None
    store.settle(idle=True)
    assert (store.claim.status.phase, store.claim.status.allocation, store.slices) == ("Lost", None, {})
    assert store.settle(idle=True) == 0


def lost_store() -> Store:
    """A claim whose node is away."""
    store = bound_store()
    assert store.claim is not None
    away = Absence("node n0 is gone", 0.0)
    for action in reconcile_claim(store.claim, store.klass, list(store.slices.values()), [], away):
        store.apply(action)
    (patch,) = reconcile_claim(store.claim, store.klass, [], [], away)[:1]
    store.apply(patch)
    assert (store.claim.status.phase, present(store)) == ("Lost", ("False", CARDS_AWAY))
    return store


def test_a_claim_comes_back_with_its_cards() -> None:
    store = lost_store()
    assert store.claim is not None
    held = store.claim.status.allocation
    assert store.settle(absence=Absence("node n0 is gone", 0.0), idle=True) == 0, "its share is not given to others"
    steps = lost_store().settle()
    for died_after in range(steps + 1):
        store = lost_store()
        store.settle(stop_after=died_after)
        store.settle()
        assert store.claim is not None
        assert (store.claim.status.phase, store.claim.status.allocation) == ("Bound", held)
        assert present(store) == ("True", "CardsBack")
        assert len(store.slices) == 2
    assert store.told[:3] == ["Bound", "Lost", "Bound"]


def test_a_claim_in_use_waits_for_its_pod() -> None:
    store = bound_store()
    store.meta(deletion_timestamp="2030-01-01T00:00:00Z")
    store.users = ["p/app"]
    store.settle()
    assert store.claim is not None
    assert store.claim.status.used_by == ["p/app"]
    store.users = []
    store.settle()
    assert store.claim is None


def test_delete_reclaims_and_retain_keeps() -> None:
    for retain, phases in ((False, []), (True, ["Released", "Released"])):
        store = bound_store(retain=retain)
        store.meta(deletion_timestamp="2030-01-01T00:00:00Z")
        store.settle()
        assert store.claim is None
        assert [piece.status.phase for piece in store.slices.values()] == phases


def test_what_was_written_on_the_slice_outlives_the_class() -> None:
    store = bound_store(retain=True)
    store.klass = gpu_class(retain=False)
    store.meta(deletion_timestamp="2030-01-01T00:00:00Z")
    store.settle()
    assert len(store.slices) == 2


def test_slices_without_a_claim_are_swept() -> None:
    for retain, left in ((False, 0), (True, 2)):
        store = bound_store(retain=retain)
        store.claim = None
        store.settle()
        assert len(store.slices) == left


def test_slices_of_an_allocation_that_was_taken_back_go() -> None:
    store = bound_store()
    assert store.claim is not None
    store.claim = replace(store.claim, status=ElasticGPUClaimStatus(phase="Pending"))
    store.settle()
    assert store.slices == {}


def test_a_missing_card_is_waited_for_and_then_its_claim_is_lost() -> None:
    store = bound_store()
    assert store.claim is not None
    pieces = list(store.slices.values())
    assert missing_from(store.claim, node_known=True, published=["GPU-n0-0", "GPU-n0-1"]) is None
    assert missing_from(store.claim, node_known=False, published=[]) == "node n0 is gone"
    missing = missing_from(store.claim, node_known=True, published=["GPU-n0-0"])
    assert missing == "card GPU-n0-1 of node n0 is gone"
    absences = Absences()
    for now, left in ((100.0, MISSING_SECONDS), (110.0, MISSING_SECONDS - 10)):
        absence = absences.look("uid", missing, now=now)
        assert reconcile_claim(store.claim, store.klass, pieces, [], absence) == [LookAgain(left)]
    absence = absences.look("uid", missing, now=100 + MISSING_SECONDS)
    actions = reconcile_claim(store.claim, store.klass, pieces, [], absence)
    assert actions[2:] == [DeleteSlice(piece) for piece in pieces]


def test_what_comes_back_or_was_given_up_is_waited_for_anew() -> None:
    absences = Absences()
    assert absences.look("uid", None, now=0) is None
    absences.look("uid", "gone", now=0)
    assert absences.look("uid", None, now=MISSING_SECONDS - 1) is None
    assert absences.look("uid", "gone", now=MISSING_SECONDS) == Absence("gone", MISSING_SECONDS)
    assert absences.look("uid", "gone", now=2 * MISSING_SECONDS) == Absence("gone", 0)
    assert absences.look("uid", "gone", now=2 * MISSING_SECONDS + 1) == Absence("gone", MISSING_SECONDS)


def test_a_card_and_a_retained_slice_go_when_their_node_stays_away() -> None:
    store = bound_store(retain=True)
    kept = [replace(piece, status=ElasticGPUStatus(phase="Released")) for piece in store.slices.values()]
    for gpu in (card("n0", 0), *kept):
        assert reconcile_gpu(gpu, None) == []
        assert reconcile_gpu(gpu, None, Absence("node n0 is gone", 5.0)) == [LookAgain(5.0)]
        assert reconcile_gpu(gpu, None, Absence("node n0 is gone", 0.0)) == [DeleteSlice(gpu)]
        assert reconcile_gpu(gpu, store.claim, Absence("node n0 is gone", 0.0)) == []


def test_what_is_wrong_with_a_class_is_told() -> None:
    assert check_class(gpu_class()) == []
    (told,) = check_class(gpu_class("x", "no.such"))
    assert isinstance(told, Tell)
    assert told.reason == "Invalid"


def test_a_claim_whose_class_is_not_there_says_so() -> None:
    (told, *_) = reconcile_claim(claim("c"), None, [], [])
    assert told == Tell(claim("c"), "ClassNotFound", "class 'shared' does not exist")


def test_a_claim_deleted_before_it_was_bound_just_goes() -> None:
    store = Store(claim("c"))
    store.meta(deletion_timestamp="2030-01-01T00:00:00Z")
    store.settle()
    assert store.claim is None


def test_users_are_placed_pods_that_have_not_ended() -> None:
    cache = cluster()
    cache.class_changed(gpu_class(wait=True))
    what = claim("c")
    cache.claim_changed(what)
    waiting = claim_pod("p", "c")
    done = placed(waiting, place(cache, waiting))
    assert claim_users(what, [waiting]) == []
    assert claim_users(what, [done]) == ["p/app"]
    assert claim_users(what, [ended(done)]) == []
    assert claim_users(what, [ended(done, still_running=True)]) == ["p/app"]
    elsewhere = replace(done, metadata=replace(done.metadata, namespace="other"))
    assert claim_users(what, [elsewhere]) == []


def test_the_extenders_part_of_the_status_is_never_written() -> None:
    assert "allocation" not in PatchClaimStatus(claim("c"), "Bound", (), (), {}, "").merge_patch()["status"]
    assert ElasticGPUClaimStatus().allocation is None
