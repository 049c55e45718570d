"""The view from the scheduler cache, the objects that it was shown, and what agents publish of use."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.api.kubernetes import Node, Pod
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, Object
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.cards import Card
from egpu.core.placement.ledger import Holder
from egpu.core.placement.usage import CardKey, mode_name
from egpu.core.view.pending import pending_pods, seconds_since
from egpu.core.view.records import WHOLE, CardView, ClusterView, NodeView, SliceView, User
from egpu.core.view.usage import SliceKey, SliceUsage


def cluster_view(
    cache: SchedulerCache,
    *,
    nodes: Iterable[Node],
    pods: Sequence[Pod],
    claims: Sequence[ElasticGPUClaim],
    gpus: Iterable[ElasticGPU],
    usage: Mapping[SliceKey, SliceUsage],
    now: datetime,
) -> ClusterView:
    """What there is now, by a cache that was shown these objects. Nodes of which only the cards are known are there too
    (an agent may be quicker than a list); slices of cards that are gone are not. Changes nothing."""
    known = {node.name: node for node in nodes}
    everywhere = sorted({*known, *cache.ledger.nodes()})
    cards = _Cards(cache, _Slices(cache, pods, claims, gpus, usage, now=now).by_card())
    return ClusterView(
        nodes=tuple(_node(cards, name, known.get(name)) for name in everywhere),
        pending=pending_pods(cache, pods, everywhere, now=now),
        claims=Counter(claim.status.phase or "Pending" for claim in claims),
        problems=tuple(cache.problems()),
    )


def _node(cards: "_Cards", name: str, node: Node | None) -> NodeView:
    ledger = cards.cache.ledger
    conditions = (node.status.conditions or []) if node is not None else []
    pool = ledger.pool.get(name)
    return NodeView(
        name=name,
        ready=any(one.type == "Ready" and one.status == "True" for one in conditions),
        unschedulable=node is not None and bool(node.spec.unschedulable),
        cards=tuple(cards.card(name, card, column) for column, card in enumerate(ledger.cards(name))),
        serving=None if pool is None else pool.serving,
    )


class _Cards:
    """Cards as the ledger counts them, with the slices that were found of them."""

    def __init__(self, cache: SchedulerCache, slices: Mapping[CardKey, Sequence[SliceView]]) -> None:
        self.cache = cache
        self._slices = slices
        self._overcommits = {CardKey(one.node, one.uuid): one.reason for one in cache.ledger.overcommits()}

    def card(self, node: str, card: Card, column: int) -> CardView:
        ledger, key = self.cache.ledger, CardKey(node, card.uuid)
        cell = ledger.row(node), column
        holders = ledger.card_holders(node, card.uuid)
        given = [usage for holder, usage in holders.items() if holder.kind != "reservation"]
        # What is left is never below 0, and what is given out may be more than there is.
        taken_core, taken_memory = WHOLE - int(ledger.core_free[cell]), card.memory_mib - int(ledger.memory_free[cell])
        reserved = [holder for holder in holders if holder.kind == "reservation"]
        return CardView(
            node=node,
            card=card,
            mode=mode_name(int(ledger.mode[cell])),
            core_given=max(taken_core, sum(usage.core for usage in given)),
            memory_given_mib=max(taken_memory, sum(usage.memory_mib for usage in given)),
            slices=tuple(self._slices.get(key, ())),
            reserved_for=tuple(self.cache.reservations.get(holder.id).key for holder in reserved),
            overcommitted=self._overcommits.get(key, ""),
        )


@dataclass(frozen=True)
class _Owner:
    """Whose the slices of a holder are."""

    holder: Holder
    namespace: str
    name: str
    labels: Mapping[str, str]
    made: str | None


class _Slices:
    """The slices that the ledger's holders have, each of one card."""

    def __init__(
        self,
        cache: SchedulerCache,
        pods: Sequence[Pod],
        claims: Iterable[ElasticGPUClaim],
        gpus: Iterable[ElasticGPU],
        usage: Mapping[SliceKey, SliceUsage],
        *,
        now: datetime,
    ) -> None:
        self._cache = cache
        self._now = now
        self._usage = usage
        self._pods: dict[str, Object] = {pod.uid: pod for pod in pods}
        self._claims: dict[str, Object] = {claim.uid: claim for claim in claims}
        self._gpus = {gpu.name: gpu for gpu in gpus}
        self._node_of = {pod.key: pod.spec.node_name for pod in pods}
        ledger = cache.ledger
        self._cards = {CardKey(node, card.uuid): card for node in ledger.nodes() for card in ledger.cards(node)}

    def by_card(self) -> dict[CardKey, list[SliceView]]:
        """In the order of their owners' names."""
        found: dict[CardKey, list[SliceView]] = {}
        for holder, allocation in self._cache.ledger.holders().items():
            owner = self._owner(holder)
            if owner is None:
                continue
            for name, container in allocation.containers.items():
                for share in container.counted:
                    key = CardKey(container.cards_node(allocation.node), share.uuid)
                    if key in self._cards:
                        one = self._slice(owner, name, container, init=name in allocation.init, card=key, share=share)
                        found.setdefault(key, []).append(one)
        for slices in found.values():
            slices.sort(key=lambda one: (one.namespace, one.name, one.container))
        return found

    def _owner(self, holder: Holder) -> _Owner | None:
        """None: what is reserved is no slice, and of others nothing is known any more."""
        known = {"pod": self._pods, "claim": self._claims}.get(holder.kind, {}).get(holder.id)
        if known is not None:
            made = known.metadata.creation_timestamp
            return _Owner(holder, known.namespace, known.name, known.metadata.labels or {}, made)
        if holder.kind == "slice" and (gpu := self._gpus.get(holder.id)) is not None:
            return _Owner(holder, gpu.spec.claim_ref.namespace if gpu.spec.claim_ref else "", gpu.name, {}, None)
        return None

    def _slice(
        self, owner: _Owner, name: str, container: ContainerAllocation, *, init: bool, card: CardKey, share: CardShare
    ) -> SliceView:
        published = self._cards[card]
        users = self._users(owner, name)
        return SliceView(
            holder=owner.holder,
            namespace=owner.namespace,
            name=owner.name,
            container=name if owner.holder.kind == "pod" else "",
            claim=owner.name if owner.holder.kind == "claim" else container.claim,
            users=users,
            node=card.node,
            pod_node=next((self._node_of[f"{user.namespace}/{user.pod}"] for user in users), card.node),
            uuid=card.uuid,
            index=published.index,
            card_memory_mib=published.memory_mib,
            provisioner=container.provisioner,
            exclusive=container.exclusive,
            core_percent=share.core,
            memory_mib=share.memory_mib,
            init=init,
            labels=owner.labels,
            made_seconds=seconds_since(owner.made, self._now),
            # Several users of one slice have one account of it, and each shows that.
            used=next((used for user in users if (used := self._usage.get(SliceKey(*user, card.uuid)))), None),
        )

    def _users(self, owner: _Owner, name: str) -> tuple[User, ...]:
        match owner.holder.kind:
            case "pod":
                return (User(owner.namespace, owner.name, name),)
            case "claim":
                using = self._cache.claim_users(f"{owner.namespace}/{owner.name}")
                pods = [(self._pods[uid], container) for uid, container in using if uid in self._pods]
                return tuple(sorted(User(pod.namespace, pod.name, container) for pod, container in pods))
            case _:
                return ()
