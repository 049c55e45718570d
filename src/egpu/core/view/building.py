"""The view of one node, from the ledger, from the owners of slices, and from the usage that agents publish."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import is_

from egpu.api.allocation import CardShare, ContainerAllocation
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.card_usage import CardKey, mode_name
from egpu.core.placement.cards import Card
from egpu.core.placement.ledger import Holder
from egpu.core.view.owners import Owner, Owners
from egpu.core.view.records import WHOLE, CardView, NodeView, SliceView, User
from egpu.core.view.slice_usage import SliceKey, SliceUsage


class NodeViews:
    """Makes views of nodes. `usage` may be replaced at any time."""

    def __init__(self, cache: SchedulerCache, owners: Owners) -> None:
        self._cache = cache
        self._owners = owners
        self.usage: Mapping[SliceKey, SliceUsage] = {}

    def node(self, name: str, *, ready: bool, unschedulable: bool) -> NodeView:
        """Return the view of a node as it is now. Changes nothing."""
        ledger = self._cache.ledger
        pool = ledger.pool.get(name)
        return NodeView(
            name=name,
            ready=ready,
            unschedulable=unschedulable,
            cards=tuple(self._card(name, card, column) for column, card in enumerate(ledger.cards(name))),
            serving=None if pool is None else pool.serving,
        )

    def used(self, node: NodeView) -> NodeView:
        """Return the view of an otherwise unchanged node with new usage, cheaper than a new view."""
        cards = tuple(map(self._card_used, node.cards))
        return node if all(map(is_, cards, node.cards)) else replace(node, cards=cards)

    def _card_used(self, card: CardView) -> CardView:
        slices = tuple(map(self._slice_used, card.slices))
        return card if all(map(is_, slices, card.slices)) else replace(card, slices=slices)

    def _slice_used(self, one: SliceView) -> SliceView:
        used = self._use(one.users, one.uuid)
        return one if used == one.used else replace(one, used=used)

    def _use(self, users: Iterable[User], uuid: str) -> SliceUsage | None:
        """Return the usage of a slice. Several users of one slice have one account of it, and each shows that."""
        return next((used for user in users if (used := self.usage.get(SliceKey(*user, uuid)))), None)

    def _card(self, node: str, card: Card, column: int) -> CardView:
        ledger, key = self._cache.ledger, CardKey(node, card.uuid)
        cell = ledger.row(node), column
        holders = ledger.card_holders(node, card.uuid)
        held = [usage for holder, usage in holders.items() if holder.kind != "reservation"]
        # The free amount is never below 0, but more may be allocated than the card has.
        taken_core, taken_memory = WHOLE - int(ledger.core_free[cell]), card.memory_mib - int(ledger.memory_free[cell])
        reserved = [holder for holder in holders if holder.kind == "reservation"]
        slices = [one for holder in holders for one in self._slices(holder, key, card)]
        return CardView(
            node=node,
            card=card,
            mode=mode_name(int(ledger.mode[cell])),
            core_given=max(taken_core, sum(usage.core for usage in held)),
            memory_given_mib=max(taken_memory, sum(usage.memory_mib for usage in held)),
            slices=tuple(sorted(slices, key=lambda one: (one.namespace, one.name, one.container, one.holder))),
            reserved_for=tuple(sorted(self._cache.reservations.get(holder.id).key for holder in reserved)),
            overcommitted=ledger.overcommit(key),
        )

    def _slices(self, holder: Holder, key: CardKey, card: Card) -> Iterator[SliceView]:
        """Yield what a holder has of a card, container by container."""
        owner, allocation = self._owners.get(holder), self._cache.ledger.holding(holder)
        if owner is None or allocation is None:
            return
        for name, container in allocation.containers.items():
            if container.cards_node(allocation.node) != key.node:
                continue
            for share in container.counted:
                if share.uuid == key.uuid:
                    init = name in allocation.init
                    yield self._slice(holder, owner, name, container, init=init, key=key, card=card, share=share)

    def _slice(
        self, holder: Holder, owner: Owner, name: str, container: ContainerAllocation, *,
        init: bool, key: CardKey, card: Card, share: CardShare,
    ) -> SliceView:  # fmt: skip
        running = self._users(holder, owner, name)
        users = tuple(user for user, _ in running)
        return SliceView(
            holder=holder,
            namespace=owner.namespace,
            name=owner.name,
            container=name if holder.kind == "pod" else "",
            claim=owner.name if holder.kind in ("claim", "resourceclaim") else container.claim,
            users=users,
            node=key.node,
            pod_node=next((node for _, node in running), key.node),
            uuid=card.uuid,
            index=card.index,
            card_memory_mib=card.memory_mib,
            provisioner=container.provisioner,
            exclusive=container.exclusive,
            core_percent=share.core,
            core_limit_percent=container.core_limit_of(share),
            qos=container.qos,
            work=container.work,
            memory_mib=share.memory_mib,
            init=init,
            labels=owner.labels,
            made=owner.made,
            used=self._use(users, card.uuid),
        )

    def _users(self, holder: Holder, owner: Owner, name: str) -> list[tuple[User, str]]:
        """Return the users of a slice, and the node of each."""
        match holder.kind:
            case "pod":
                return [(User(owner.namespace, owner.name, name), owner.node)]
            case "claim":
                using = self._cache.claim_users(f"{owner.namespace}/{owner.name}")
                pods = [(self._owners.get(Holder("pod", uid)), container) for uid, container in using]
                return sorted(
                    (User(pod.namespace, pod.name, container), pod.node) for pod, container in pods if pod is not None
                )
            case "resourceclaim":
                users = self._cache.device_claims.users(holder.id, name)
                return [(User(*user), node) for user, node in users]
            case _:
                return []
