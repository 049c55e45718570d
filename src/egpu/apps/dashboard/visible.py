"""The part of a view that a user with limited access sees. Pure: names that the user may not list appear in no field. A
card's own figures stay, including what is allocated.

Cards are filtered when they are requested: a page shows a few of ten thousands."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from egpu.api.objects import ElasticGPUClaim
from egpu.apps.dashboard.access import Access
from egpu.core.placement.ledger import Holder
from egpu.core.view import CardView, ClusterView, NodeView, PendingPod, SliceView
from egpu.core.view.records import Totals, searched

MAX_KEPT: Final = 8
"""Most filtered views that are kept, the last used ones; users with the same access share one."""
OTHERS: Final = Holder("pod", "")
"""The owner of a slice that the user may not know."""


@dataclass(frozen=True)
class SeenNode:
    """A `NodeView` of the part of `whole` that `access` allows."""

    whole: NodeView
    access: Access

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
        return self.whole.card_count if self.access.cards else 0

    @property
    def totals(self) -> Totals:
        """The totals of allocations; use is left out."""
        return _given(self.whole.totals) if self.access.cards else Totals()

    @cached_property
    def cards(self) -> tuple[CardView, ...]:
        return tuple(_card(card, self.access) for card in self.whole.cards) if self.access.cards else ()

    @cached_property
    def namespaces(self) -> frozenset[str]:
        return frozenset(one.namespace for card in self.cards for one in card.slices if one.namespace)

    @cached_property
    def text(self) -> str:
        return searched(self.name, self.cards)


@dataclass(frozen=True)
class SeenView:
    """A `ClusterView` of the part of `whole` that `access` allows; without `problems`, which name objects."""

    whole: ClusterView
    access: Access
    nodes: tuple[SeenNode, ...]
    pending: tuple[PendingPod, ...]
    claims: Mapping[str, int]
    problems: tuple[str, ...] = ()

    @property
    def now(self) -> datetime:
        return self.whole.now

    @cached_property
    def totals(self) -> Totals:
        """The totals of all allocations, and of the use of slices that the user sees."""
        if not self.access.cards:
            return Totals()
        of_all = self.whole.totals
        reported = [(one.used, one.wasted) for one in self.slices() if one.used is not None] if of_all.told else []
        return _given(of_all)._replace(
            told=len(reported),
            core_used_ratio=sum(used.core_ratio for used, _ in reported),
            memory_used_bytes=sum(used.memory_bytes for used, _ in reported),
            wasted=sum(wasted for _, wasted in reported),
        )

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """The namespaces whose pods or claims the user may list."""
        return frozenset(name for name in self.whole.namespaces if self.access.pod(name) or self.access.claim(name))

    def node(self, name: str) -> SeenNode | None:
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, SeenNode]:
        return {node.name: node for node in self.nodes}

    def slices(self) -> Iterator[SliceView]:
        """Return the slices whose names the user may know."""
        return (one for one in self.whole.slices() if _sees(one, self.access)) if self.access.cards else iter(())


class Seen:
    """Views for those who may list only some of a cluster: of each access, what did not change is not looked through
    again."""

    def __init__(self) -> None:
        self._known: OrderedDict[Access, dict[str, SeenNode]] = OrderedDict()
        """Filtered nodes, by name."""

    def of(self, view: ClusterView, claims: Iterable[ElasticGPUClaim], access: Access) -> ClusterView | SeenView:
        """Return the view that the user sees. `claims` are those that `view` was made with."""
        if access.everything:
            return view
        whose = replace(access, user="")
        known = self._known.pop(whose, {})
        shown = [node for node in view.nodes if access.nodes or (access.cards and node.cards)]
        seen = {node.name: _seen(node, known.get(node.name), whose) for node in shown}
        self._known[whose] = seen
        if len(self._known) > MAX_KEPT:
            self._known.popitem(last=False)
        phases = Counter(claim.status.phase or "Pending" for claim in claims if access.claim(claim.namespace))
        pending = tuple(pod for pod in view.pending if access.pod(pod.namespace))
        return SeenView(view, whose, tuple(seen.values()), pending, phases)


def _seen(node: NodeView, known: SeenNode | None, access: Access) -> SeenNode:
    return known if known is not None and known.whole is node else SeenNode(node, access)


def _given(totals: Totals) -> Totals:
    return totals._replace(told=0, core_used_ratio=0.0, memory_used_bytes=0, wasted=0)


def _card(card: CardView, access: Access) -> CardView:
    if not (card.reserved_for or card.overcommitted) and all(_sees(one, access) for one in card.slices):
        return card
    return replace(
        card,
        slices=tuple(one if _sees(one, access) else _anonymous(one) for one in card.slices),
        reserved_for=tuple(key for key in card.reserved_for if access.pod(key.partition("/")[0])),
        overcommitted="more is allocated than the card has" if card.overcommitted else "",
    )


def _sees(one: SliceView, access: Access) -> bool:
    match one.holder.kind:
        case "pod":
            own = access.pod(one.namespace)
        case "claim" | "slice":
            own = access.claim(one.namespace)
        case "resourceclaim":
            own = access.claim(one.namespace) and access.pod(one.namespace)
        case _:  # a lease of the pool is in no namespace
            own = access.pods is None
    return own and all(access.pod(user.namespace) for user in one.users)


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
