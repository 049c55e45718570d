"""Of a view, what somebody sees who may list only some of what is in it. Pure: names that he may not list are not in
the answer, in no field; that a card is given out is the card's own to say, and stays.

Cards are looked through when somebody asks for them: a page shows a few of ten thousands.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from egpu.api.objects import ElasticGPUClaim
from egpu.apps.dashboard.sight import Sight
from egpu.core.placement.ledger import Holder
from egpu.core.view import CardView, ClusterView, NodeView, PendingPod, SliceView
from egpu.core.view.records import Totals, searched

SIGHTS: Final = 8
"""Of so many what they see is kept: of people who may list the same it is one. The one that was not asked for longest
goes first."""
OTHERS: Final = Holder("pod", "")
"""Of a slice that is somebody's whom one may not know."""


@dataclass(frozen=True)
class SeenNode:
    """As a `NodeView`, of what `sight` may see of `whole`."""

    whole: NodeView
    sight: Sight

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def ready(self) -> bool:
        return self.whole.ready

    @property
    def unschedulable(self) -> bool:
        return self.whole.unschedulable

    @property
    def card_count(self) -> int:
        return self.whole.card_count if self.sight.cards else 0

    @property
    def totals(self) -> Totals:
        """What is given, that is; of use nothing."""
        return _given(self.whole.totals) if self.sight.cards else Totals()

    @cached_property
    def cards(self) -> tuple[CardView, ...]:
        return tuple(_card(card, self.sight) for card in self.whole.cards) if self.sight.cards else ()

    @cached_property
    def namespaces(self) -> frozenset[str]:
        return frozenset(one.namespace for card in self.cards for one in card.slices if one.namespace)

    @cached_property
    def text(self) -> str:
        return searched(self.name, self.cards)


@dataclass(frozen=True)
class SeenView:
    """As a `ClusterView`, of what `sight` may see of `whole`; `problems`, which name objects, are not said."""

    whole: ClusterView
    sight: Sight
    nodes: tuple[SeenNode, ...]
    pending: tuple[PendingPod, ...]
    claims: Mapping[str, int]
    problems: tuple[str, ...] = ()

    @property
    def now(self) -> datetime:
        return self.whole.now

    @cached_property
    def totals(self) -> Totals:
        """What is given, of whomever; of use, that of the slices that he sees."""
        if not self.sight.cards:
            return Totals()
        of_all = self.whole.totals
        told = [(one.used, one.wasted) for one in self.slices() if one.used is not None] if of_all.told else []
        return _given(of_all)._replace(
            told=len(told),
            core_used_ratio=sum(used.core_ratio for used, _ in told),
            memory_used_bytes=sum(used.memory_bytes for used, _ in told),
            wasted=sum(wasted for _, wasted in told),
        )

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """Those of which he may list pods or claims."""
        return frozenset(name for name in self.whole.namespaces if self.sight.pod(name) or self.sight.claim(name))

    def node(self, name: str) -> SeenNode | None:
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, SeenNode]:
        return {node.name: node for node in self.nodes}

    def slices(self) -> Iterator[SliceView]:
        """Those whose names he may know."""
        return (one for one in self.whole.slices() if _sees(one, self.sight)) if self.sight.cards else iter(())


class Seen:
    """Views for those who may list only some of a cluster: of each sight, what did not change is not looked through
    again."""

    def __init__(self) -> None:
        self._known: OrderedDict[Sight, dict[str, SeenNode]] = OrderedDict()
        """By node, as it is seen."""

    def of(self, view: ClusterView, claims: Iterable[ElasticGPUClaim], sight: Sight) -> ClusterView | SeenView:
        """`claims` are those that `view` was made with."""
        if sight.everything:
            return view
        whose = replace(sight, user="")
        known = self._known.pop(whose, {})
        shown = [node for node in view.nodes if sight.nodes or (sight.cards and node.cards)]
        seen = {node.name: _seen(node, known.get(node.name), whose) for node in shown}
        self._known[whose] = seen
        if len(self._known) > SIGHTS:
            self._known.popitem(last=False)
        phases = Counter(claim.status.phase or "Pending" for claim in claims if sight.claim(claim.namespace))
        pending = tuple(pod for pod in view.pending if sight.pod(pod.namespace))
        return SeenView(view, whose, tuple(seen.values()), pending, phases)


def _seen(node: NodeView, known: SeenNode | None, sight: Sight) -> SeenNode:
    return known if known is not None and known.whole is node else SeenNode(node, sight)


def _given(totals: Totals) -> Totals:
    return totals._replace(told=0, core_used_ratio=0.0, memory_used_bytes=0, wasted=0)


def _card(card: CardView, sight: Sight) -> CardView:
    if not (card.reserved_for or card.overcommitted) and all(_sees(one, sight) for one in card.slices):
        return card
    return replace(
        card,
        slices=tuple(one if _sees(one, sight) else _anonymous(one) for one in card.slices),
        reserved_for=tuple(key for key in card.reserved_for if sight.pod(key.partition("/")[0])),
        overcommitted="more is given out than there is" if card.overcommitted else "",
    )


def _sees(one: SliceView, sight: Sight) -> bool:
    match one.holder.kind:
        case "pod":
            own = sight.pod(one.namespace)
        case "claim" | "slice":
            own = sight.claim(one.namespace)
        case _:  # a lease of the pool is in no namespace
            own = sight.pods is None
    return own and all(sight.pod(user.namespace) for user in one.users)


def _anonymous(one: SliceView) -> SliceView:
    return replace(
        one,
        holder=OTHERS,
        namespace="",
        name="",
        container="",
        claim="",
        users=(),
        pod_node=one.node,
        labels={},
        used=None,
    )
