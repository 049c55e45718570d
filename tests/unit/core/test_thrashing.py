"""A card thrashes if its busy slices wait for each other most of the time. Its node and `egpu explain` say so."""

from egpu.adapters.slices.rooms import Totals
from egpu.api import names
from egpu.apps.agent.cards.inventory import Inventory
from egpu.apps.agent.cards.publisher import Publisher
from egpu.core.explain_node import explain_node
from egpu.core.thrashing import WINDOW_SECONDS, Contention, published, thrashing_cards
from egpu_base.api.kubernetes import Node
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes.events import EventRecorder
from support.fake_api import FakeAPI
from support.local_node import Cards
from support.objects import cluster


def after(known: Contention, seconds: int, *, busy_of_ten: int) -> Contention:
    """`busy_of_ten`: of ten seconds, the card is contended in so many."""
    for second in range(seconds):
        known = known.after(1.0, contended=second % 10 < busy_of_ten)
    return known


def test_it_takes_minutes_of_contention_and_of_calm() -> None:
    known = after(Contention(), 60, busy_of_ten=10)
    assert not known.thrashes
    known = after(known, 300, busy_of_ten=10)
    assert known.thrashes
    assert after(known, 60, busy_of_ten=0).thrashes
    assert not after(known, 600, busy_of_ten=0).thrashes
    assert not after(Contention(), 3600, busy_of_ten=4).thrashes
    assert after(known, 3600, busy_of_ten=4).thrashes, "it ends later than it begins"


def test_long_looks_count_as_many_short_ones() -> None:
    once = Contention().after(WINDOW_SECONDS, contended=True)
    often = after(Contention(), int(WINDOW_SECONDS), busy_of_ten=10)
    assert abs(once.ratio - often.ratio) < 1e-9


def test_the_totals_name_the_cards() -> None:
    totals = Totals(contention={"GPU-1": Contention(0.9, thrashes=True), "GPU-2": Contention(0.4)})
    assert totals.thrashing == {"GPU-1"}
    assert published(totals.thrashing) == "GPU-1"
    assert published(()) is None


def test_explain_names_the_card() -> None:
    cache = cluster(cards=2)
    node = Node(metadata=ObjectMeta(name="n0", annotations={names.THRASHING_CARDS: "GPU-n0-1,GPU-other"}))
    assert thrashing_cards(node) == {"GPU-n0-1", "GPU-other"}
    (line,) = (one for one in explain_node(node, cache, ()).details if "thrashes" in one)
    assert line.startswith("card 1 thrashes: slices that share its room wait for each other most of the time")
    assert thrashing_cards(Node(metadata=ObjectMeta(name="n0"))) == frozenset()


async def test_the_agent_publishes_cards_that_thrash() -> None:
    api, thrashing = FakeAPI(), {"GPU-gone"}
    api.put("nodes", {"kind": "Node", "metadata": {"name": "n0"}})
    cards = Cards(2).read()
    publisher = Publisher(
        api.client(),
        "n0",
        Inventory(Cards(2), interval_seconds=1),
        events=EventRecorder(api.client(), component="test"),
        interval_seconds=60,
        learn=lambda _: "",
        thrashing=lambda: thrashing,
    )

    async def told() -> frozenset[str]:
        await publisher.publish(cards)
        return thrashing_cards(await api.client().get(Node, "n0"))

    assert await told() == frozenset()
    thrashing.add(cards[1].uuid)
    assert await told() == {cards[1].uuid}
    thrashing.clear()
    assert await told() == frozenset()
