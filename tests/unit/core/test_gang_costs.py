"""Gangs cost the extender a limited time: it serves all tenants, one question after the other."""

from unittest import mock

import pytest

from egpu.api import names
from egpu.core.gangs import placing
from egpu.core.gangs.placing import GangVerdict, place_gang
from egpu.core.placement.cache import SchedulerCache
from egpu_base.api.kubernetes import Pod
from support.objects import BINPACK, cluster, container, gang_pod, place, placed, pod, slice_pod

NODES = ("n0", "n1")


def asked(cache: SchedulerCache, member: Pod, nodes: tuple[str, ...] = NODES) -> GangVerdict:
    """kube-scheduler asks about the member."""
    cache.gangs.offer(member, nodes)
    gang = cache.gangs.of(member)
    assert gang is not None
    return place_gang(cache, gang, BINPACK, pod=member, nodes=nodes)


def test_a_gang_of_too_many_containers_is_not_placed() -> None:
    cache = cluster(2, 8)
    terms = {names.GANG: "g", names.GANG_SIZE: "9"}
    asks = [container(f"c{at}", {names.GPU_CORE: 1, names.GPU_MEMORY: 1 + at}) for at in range(128)]
    members = [pod(f"m{at}", *asks, annotations=terms) for at in range(9)]
    for member in members:
        cache.pod_changed(member)
        cache.gangs.offer(member, NODES)
    with mock.patch.object(placing, "place_members", side_effect=AssertionError("placed")):
        found = asked(cache, members[0])
    assert found.text() == "gang g: its pods have over 1024 containers with cards; use smaller gangs"


def test_a_gang_that_does_not_fit_is_placed_once_for_all_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, members = cluster(2, 1), [gang_pod(f"m{at}", size=3) for at in range(3)]
    other = slice_pod("other", core=50)
    for member in members:
        cache.pod_changed(member)
    tries = mock.Mock(side_effect=placing.place_members)
    monkeypatch.setattr(placing, "place_members", tries)
    for member in members:
        asked(cache, member)
    answers = {asked(cache, member).text() for member in (*members, *members)}
    assert len(answers) == 1
    assert "2 fit at once" in answers.pop()
    assert tries.call_count == 1
    cache.pod_changed(placed(other, place(cache, other)))
    assert "1 fit at once" in asked(cache, members[1]).text(), "cards have changed"
    assert "0 fit at once" in asked(cache, members[0], ("n0",)).text(), "so have the nodes that may take it"
    assert tries.call_count == 3
