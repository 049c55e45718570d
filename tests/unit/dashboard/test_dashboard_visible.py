"""Who may list only some of it sees that much of a cluster, and no name of the rest in any field."""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from egpu.api import names
from egpu.api.allocation import encode
from egpu.apps.dashboard import explaining, visible
from egpu.apps.dashboard.access import Access
from egpu.apps.dashboard.drawing import COLOURS, colours, core_bars, memory_bars
from egpu.apps.dashboard.explaining import MAX_KEPT, REST, Explanations
from egpu.apps.dashboard.history import SAMPLES, SERIES, History
from egpu.apps.dashboard.visible import Seen
from egpu.core.explain import Explanation
from egpu.core.placement.card_usage import CardKey
from egpu.core.policies.registry import Policies
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu.core.view import CardView, ClusterView, SliceKey, SliceUsage, cluster_view
from egpu.core.view.records import Totals
from egpu_base.api.kubernetes import Pod
from support.objects import CORE, MEMORY, cluster, container, place, placed, pod

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
EVERYTHING = Access("admin", nodes=True, cards=True, pods=None, claims=None)
GIB = 1 << 30


def asking(name: str, namespace: str, core: int = 30) -> Pod:
    return pod(name, container("app", {CORE: core, MEMORY: 10}), namespace=namespace)


@pytest.fixture
def view() -> ClusterView:
    """One node with one card: a pod of `open` and one of `secret` have some of it, and one of each waits."""
    cache = cluster(nodes=1, cards=1)
    pods = list[Pod]()
    for namespace in ("open", "secret"):
        one = asking(f"{namespace}-runs", namespace)
        pods.append(placed(one, place(cache, one, "n0")))
        two = asking(f"{namespace}-waits", namespace, core=90)
        demand = {names.DEMAND: encode(cache.request(two).demand)}
        pods.append(msgspec.structs.replace(two, metadata=msgspec.structs.replace(two.metadata, annotations=demand)))
    for one in pods:
        cache.pod_changed(one)
    usage = {
        SliceKey("open", "open-runs", "app", "GPU-n0-0"): SliceUsage(memory_bytes=GIB, core_ratio=0.25, age_seconds=90),
        SliceKey("secret", "secret-runs", "app", "GPU-n0-0"): SliceUsage(core_ratio=0.01, age_seconds=90),
    }
    return cluster_view(cache, nodes=[], pods=pods, claims=[], gpus=[], usage=usage, now=NOW)


def test_who_may_list_everything_sees_the_view_itself(view: ClusterView) -> None:
    assert Seen().of(view, [], EVERYTHING) is view


def test_names_of_namespaces_that_he_may_not_list_are_nowhere(view: ClusterView) -> None:
    access = replace(EVERYTHING, pods=frozenset({"open"}), claims=frozenset[str]())
    seen = Seen().of(view, [], access)
    (node,) = seen.nodes
    (card,) = node.cards
    shown = (card, seen.pending, seen.namespaces, seen.totals, node.namespaces, node.text, node.totals)
    assert "secret" in repr(view)
    assert "secret" not in repr(shown)
    assert [one.name for one in seen.pending] == ["open-waits"]
    assert [one.name for one in seen.slices()] == ["open-runs"]
    assert [(one.name, one.core_percent) for one in card.slices] == [("open-runs", 30), ("", 30)]
    assert [one.used is None for one in card.slices] == [False, True], "what others use is theirs"
    assert card.core_given == 60, "that a card is given out is the card's own to say"
    assert (seen.totals.core_given, seen.totals.told, seen.totals.core_used_ratio) == (60, 1, 0.25)
    assert (view.totals.wasted, seen.totals.wasted) == (1, 0)


def test_without_the_right_to_list_cards_there_are_none(view: ClusterView) -> None:
    seen = Seen().of(view, [], replace(EVERYTHING, cards=False))
    assert [(node.name, node.cards, node.card_count) for node in seen.nodes] == [("n0", (), 0)]
    assert (seen.totals, list(seen.slices())) == (Totals(), [])
    assert Seen().of(view, [], replace(EVERYTHING, cards=False, nodes=False)).nodes == ()
    assert [len(node.cards) for node in Seen().of(view, [], replace(EVERYTHING, nodes=False)).nodes] == [1]


def test_cards_are_looked_through_only_where_they_are_shown(view: ClusterView, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[str]()

    def card(one: CardView, access: Access) -> CardView:
        looked.append(one.card.uuid)
        return one

    monkeypatch.setattr(visible, "_card", card)
    seen, access = Seen(), replace(EVERYTHING, pods=frozenset({"open"}))
    one = seen.of(view, [], access)
    assert (one.totals.cards, len(one.pending), one.nodes[0].card_count) == (1, 1, 1)
    assert one.namespaces == {"open", "secret"}, "he may list the claims of all"
    assert looked == []
    assert len(one.nodes[0].cards) == 1
    assert len(seen.of(view, [], replace(access, user="another")).nodes[0].cards) == 1
    assert looked == ["GPU-n0-0"], "and of all who may list the same only once"


def test_an_explanation_is_good_for_a_multiple_of_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    made, now = list[str](), 0.0

    def explain(one: Pod, scene: Scene) -> Explanation:
        nonlocal now
        made.append(one.uid)
        now += 2.0
        return Explanation(name=one.key, summary="waits", state="waiting")

    monkeypatch.setattr(explaining, "explain_with_preemption", explain)
    scene = Scene(cluster(), {}, Population.of(()), (), Policies.named("binpack", "binpack"))
    kept, one = Explanations(lambda: scene, lambda: now), asking("p", "open")
    for later in (0.0, REST, REST + 1):
        now += later
        kept.of(one)
    assert len(made) == 2
    kept.of(msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, resource_version="another")))
    assert len(made) == 3, "it has changed"
    for number in range(MAX_KEPT):
        kept.of(asking(f"p{number}", "open"))
    kept.of(one)
    assert len(made) == 4 + MAX_KEPT, "and is forgotten when many others were asked about"


def test_bars_are_cut_into_slices_and_say_what_is_wasted(view: ClusterView) -> None:
    (card,) = view.cards()
    hues = colours(["open", "secret"])
    core, memory = core_bars(card, hues), memory_bars(card, hues)
    assert [(bar.start, bar.given, bar.used, bar.wasted) for bar in core] == [
        (0.0, 30.0, 25.0, False),
        (30.0, 30.0, 1.0, True),
    ]
    assert [bar.given for bar in memory] == pytest.approx([15.625, 15.625])
    assert memory[0].used == pytest.approx(6.25)
    assert [bar.colour for bar in core] == [hues["open"], hues["secret"]]
    one = card.slices[1]
    assert one.used is not None
    young = replace(one, used=replace(one.used, age_seconds=5.0))
    assert one.wasted
    assert not young.wasted, "it may still be loading"


def test_namespaces_have_colours_of_their_own_as_long_as_there_are_enough() -> None:
    many = [f"team-{number}" for number in range(COLOURS)]
    assert len(set(colours(many).values())) == COLOURS + 1, "one more is of those that one may not know"
    assert set(colours([*many, "one-more"]).values()) == set(colours(many).values())


def test_history_is_bounded_and_begins_when_the_card_does(view: ClusterView) -> None:
    history, key = History(), CardKey("n0", "GPU-n0-0")

    def sample(view: ClusterView, seconds: float) -> None:
        for _ in history.sample(view, seconds):
            pass

    sample(ClusterView(), 0.0)
    assert history.of(key) == ([], [[]] * len(SERIES))
    for second in range(1, 3):
        sample(view, float(second))
    times, series = history.of(key)
    assert times == [1.0, 2.0]
    assert series == [[60.0, 60.0], [26.0, 26.0], [31.0, 31.0], [6.0, 6.0]]
    for second in range(3, SAMPLES + 10):
        sample(view, float(second))
    times, series = history.of(key)
    assert (times[0], times[-1], len(series[0])) == (10.0, float(SAMPLES + 9), SAMPLES)
    sample(ClusterView(), 0.0)
    assert history.of(key)[0] == [], "a card that is gone is forgotten"
