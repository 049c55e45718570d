"""The amounts that a node publishes for its cards, in every vocabulary."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from egpu.adapters.cards.nvml import CardReading
from egpu.core.provisioners import PROVISIONERS, NodeTotals
from egpu.core.provisioners.mps import READY


def node_capacity(
    cards: Sequence[CardReading],
    pool_slots: int,
    vocabularies: Collection[str] = (),
    beyond: Mapping[str, int] = MappingProxyType({}),
    mps: Callable[[CardReading], str] = lambda _: "",
) -> dict[str, str]:
    """Return the capacity that a node with these cards publishes, over all technologies; the larger value if two
    publish the same name. `pool_slots` and `vocabularies` as in NodeTotals. `beyond`: what its pods ask for and do not
    hold, by name, which is added. `mps` as in Publisher."""
    whole, cut = [card for card in cards if card.mig is None], [card for card in cards if card.mig is not None]
    memory_mib, tflops = sum(card.memory_mib for card in whole), sum(card.tflops or 0.0 for card in whole)
    instances = Counter[str]()
    for card in cut:
        instances.update({one.name: one.most for one in (card.mig.profiles if card.mig is not None else ())})
    node = NodeTotals(
        cards=len(whole),
        memory_mib=memory_mib,
        tflops=tflops,
        pool_slots=pool_slots,
        vocabularies=vocabularies,
        cut_cards=len(cut),
        cut_memory_mib=sum(card.memory_mib for card in cut),
        instances=instances,
        mps_cards=sum(mps(card) == READY for card in whole),
    )
    published: dict[str, int] = {}
    for technology in PROVISIONERS.values():
        for name, amount in technology.capacity(node).items():
            published[name] = max(amount, published.get(name, 0))
    return {name: str(amount + beyond.get(name, 0)) for name, amount in published.items()}
