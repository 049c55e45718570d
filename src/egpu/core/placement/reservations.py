"""Cards reserved for pods that wait while their victims end.

Victims get their grace period, so the cards are not free at once, and the scheduler has to ask again. Meanwhile the
reservation holds the cards in the ledger, against all pods of its own priority and below. More important pods ignore
it, as kube-scheduler does with nominations. A reservation ends when its pod holds cards itself, is gone, or at its time
limit.

The pod carries the reservation (`RESERVATION`), so that another process finds it.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import msgspec

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.core.placement.ledger import Holder, Ledger
from egpu_base.api.kubernetes import Pod
from egpu_base.api.wire import Wire


class Reserved(Wire, frozen=True, kw_only=True):
    """The annotation. `until`: seconds since the epoch; `victims`: UIDs of the pods that are evicted."""

    allocation: PodAllocation
    until: int
    victims: tuple[str, ...] = ()


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of a pod (`key` is `namespace/name`) and its gang (its key, "" for none)."""

    uid: str
    key: str
    priority: int
    gang: str
    reserved: Reserved

    @classmethod
    def of(cls, pod: Pod, reserved: Reserved) -> "Reservation":
        return cls(uid=pod.uid, key=pod.key, priority=priority(pod), gang=_gang(pod), reserved=reserved)


class Reservations:
    """Reservations by the UIDs of their pods; inactive if the pod holds cards (`has_cards`). Not thread-safe."""

    def __init__(self, ledger: Ledger, has_cards: Callable[[str], bool]) -> None:
        self._ledger = ledger
        self._has_cards = has_cards
        self._by_uid: dict[str, Reservation] = {}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_uid.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> Reservation:
        """Return a pod's reservation. Raises KeyError."""
        return self._by_uid[uid]

    def keep(self, reservation: Reservation) -> None:
        """Add a reservation, in place of the pod's previous one."""
        self._by_uid[reservation.uid] = reservation
        self.recount(reservation.uid)

    def drop(self, uid: str) -> None:
        """Remove the pod's reservation."""
        self._by_uid.pop(uid, None)
        self.recount(uid)

    def pod_changed(self, pod: Pod) -> None:
        """Record a pod of the watch: its annotation counts, unless it is known or not needed any more."""
        if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            self.drop(pod.uid)
        elif pod.uid not in self._by_uid and (text := pod.annotations.get(names.RESERVATION)):
            try:
                reserved = msgspec.json.decode(text, type=Reserved)
            except msgspec.MsgspecError:
                return  # not written by us
            self.keep(Reservation.of(pod, reserved))

    def over(self, now: float) -> list[Reservation]:
        """Return the reservations that have expired at `now`, seconds since the epoch."""
        return [one for one in self if one.reserved.until <= now]

    @contextmanager
    def lifted(self, pod: Pod) -> Generator[None]:
        """Lift the reservations that the pod may ignore: its own, its gang's, and those of less important pods. No
        await inside, so no other reader sees it."""
        limit, own = priority(pod), self.own(pod)
        seen_through = [one for one in self if one.priority < limit or one in own]
        for one in seen_through:
            self._ledger.release(Holder("reservation", one.uid))
        try:
            yield
        finally:
            for one in seen_through:
                self.recount(one.uid)

    def own(self, pod: Pod) -> list[Reservation]:
        """Return the reservations of the pod and of its gang."""
        gang = _gang(pod)
        return [one for one in self if one.uid == pod.uid or (gang and one.gang == gang)]

    def recount(self, uid: str) -> None:
        """Make the ledger hold the pod's reservation, unless the pod has cards."""
        kept = self._by_uid.get(uid)
        if kept is None or self._has_cards(uid):
            self._ledger.release(Holder("reservation", uid))
        else:
            self._ledger.hold(Holder("reservation", uid), kept.reserved.allocation)


def priority(pod: Pod) -> int:
    """Return the pod's priority. Admission converts a pod's class to a number; the default is 0."""
    return pod.spec.priority or 0


def _gang(pod: Pod) -> str:
    name = pod.annotations.get(names.GANG)
    return f"{pod.namespace}/{name}" if name else ""
