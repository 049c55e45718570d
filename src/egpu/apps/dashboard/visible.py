"""Of a view, what somebody sees who may list only some of what is in it. Pure: names that he may not list are not in
the answer, in no field; that a card is given out is the card's own to say, and stays."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from egpu.api.objects import ElasticGPUClaim
from egpu.apps.dashboard.sight import Sight
from egpu.core.placement.ledger import Holder
from egpu.core.view import CardView, ClusterView, NodeView, SliceView

SIGHTS: Final = 8
"""Of so many what they see is kept: of people who may list the same it is one. The one that was not asked for longest
goes first."""
OTHERS: Final = Holder("pod", "")
"""Of a slice that is somebody's whom one may not know."""


class Seen:
    """Views for those who may list only some of a cluster: of each sight, what did not change is not looked through
    again."""

    def __init__(self) -> None:
        self._known: OrderedDict[Sight, dict[str, tuple[NodeView, NodeView]]] = OrderedDict()
        """By node, as it is and as it is seen."""

    def of(self, view: ClusterView, claims: Iterable[ElasticGPUClaim], sight: Sight) -> ClusterView:
        """`claims` are those that `view` was made with."""
        if sight.everything:
            return view
        whose = replace(sight, user="")
        known = self._known.pop(whose, {})
        seen = {node.name: _seen(node, known.get(node.name), sight) for node in view.nodes}
        self._known[whose] = seen
        if len(self._known) > SIGHTS:
            self._known.popitem(last=False)
        return ClusterView(
            nodes=tuple(shown for node, shown in seen.values() if sight.nodes or (sight.cards and node.cards)),
            pending=tuple(pod for pod in view.pending if sight.pod(pod.namespace)),
            claims=Counter(claim.status.phase or "Pending" for claim in claims if sight.claim(claim.namespace)),
            now=view.now,
        )


def _seen(node: NodeView, known: tuple[NodeView, NodeView] | None, sight: Sight) -> tuple[NodeView, NodeView]:
    if known is not None and known[0] is node:
        return known
    cards = tuple(_card(card, sight) for card in node.cards) if sight.cards else ()
    return node, replace(node, cards=cards)


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
