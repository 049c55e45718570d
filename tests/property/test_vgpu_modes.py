"""Cards in equal-size mode: one size each, as many as are one card, and nothing of any other kind beside them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from egpu.api import names
from egpu.api.vocabularies import VGPUS
from egpu.core.placement.cache import SchedulerCache
from egpu_base.api.kubernetes import Pod
from support.long import or_long
from support.objects import claim, claim_pod, cluster, container, fits, gpu_class, place, pod, slice_pod

PARTS = [one.parts for one in VGPUS if one.parts > 1]
KINDS = st.sampled_from(["equal-size", "mixed-size", "plain", "vcuda"])
STEPS = st.lists(st.tuples(KINDS, st.sampled_from(PARTS), st.booleans()), min_size=1, max_size=30)


def _asking(cache: SchedulerCache, name: str, kind: str, parts: int) -> Pod:
    profile = {f"{names.VGPU}-{parts}": 1}
    if kind == "vcuda":
        return slice_pod(name)
    if kind == "plain":
        return pod(name, container("app", profile))
    cache.claim_changed(claim(name, profile, kind))
    return claim_pod(name, name)


@settings(max_examples=or_long(40, 100), deadline=None)
@given(steps=STEPS)
def test_a_card_never_holds_two_technologies_nor_two_sizes_where_one_was_wanted(
    steps: list[tuple[str, int, bool]],
) -> None:
    cache = cluster(cards=2)
    for mode in ("equal-size", "mixed-size"):
        cache.class_changed(gpu_class(mode, names.VGPU, wait=True, parameters={"vgpuMode": mode}))
    held: dict[str, tuple[str, int, str]] = {}
    for number, (kind, parts, goes) in enumerate(steps):
        if goes and held:
            gone = sorted(held)[number % len(held)]
            del held[gone]
            cache.pod_deleted(f"uid-{gone}")
            cache.claim_deleted(f"uid-{gone}")
        name = f"p{number}"
        asking = _asking(cache, name, kind, parts)
        found = bool(fits(cache, asking))
        beside = [[one for one in held.values() if one[2] == uuid] for uuid in ("GPU-n0-0", "GPU-n0-1")]
        if kind == "equal-size":
            room = any(
                all((other, size) == (kind, parts) for other, size, _ in card) and len(card) < parts for card in beside
            )
            assert found == room
        if found:
            given_card = place(cache, asking).containers["app"].cards[0].uuid
            held[name] = (kind, parts, given_card)
        for uuid in ("GPU-n0-0", "GPU-n0-1"):
            here = [one for one in held.values() if one[2] == uuid]
            technologies = {"vcuda" if one[0] == "vcuda" else "vgpu" for one in here}
            assert len(technologies) <= 1
            if any(one[0] == "equal-size" for one in here):
                assert len({one[:2] for one in here}) == 1
        assert cache.ledger.overcommits() == []
