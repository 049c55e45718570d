"""Of a view, what somebody sees who may list only some of what is in it. Pure: names that he may not list are not in
the answer, in no field; that a card is given out is the card's own to say, and stays."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from egpu.api.objects import ElasticGPUClaim
from egpu.apps.dashboard.sight import Sight
from egpu.core.placement.ledger import Holder
from egpu.core.view import CardView, ClusterView, SliceView

OTHERS = Holder("pod", "")
"""Of a slice that is somebody's whom one may not know."""


def visible(view: ClusterView, claims: Iterable[ElasticGPUClaim], sight: Sight) -> ClusterView:
    """`claims` are those that `view` was made with."""
    if sight.everything:
        return view
    nodes = tuple(
        replace(node, cards=tuple(_card(card, sight) for card in node.cards))
        if sight.cards
        else replace(node, cards=())
        for node in view.nodes
        if sight.nodes or (sight.cards and node.cards)
    )
    return ClusterView(
        nodes=nodes,
        pending=tuple(pod for pod in view.pending if sight.pod(pod.namespace)),
        claims=Counter(claim.status.phase or "Pending" for claim in claims if sight.claim(claim.namespace)),
    )


def _card(card: CardView, sight: Sight) -> CardView:
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
