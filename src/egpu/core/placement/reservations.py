"""What is kept for pods that wait while others go for them.

A pod for which others are evicted does not have their cards at once: they get their grace period, and the scheduler
has to ask again. Meanwhile its reservation holds the cards in the ledger, against everybody of its own priority and
below. Whoever is more important sees through it, as kube-scheduler sees through nominations. A reservation ends when
its pod holds cards itself, is gone, or when its time is over.

The reservation is written into the pod (`RESERVATION`), so that another process finds it.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import msgspec

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.api.kubernetes import Pod
from egpu.api.wire import Wire
from egpu.core.placement.ledger import Holder, Ledger


class Reserved(Wire, frozen=True, kw_only=True):
    """The annotation. `until`: seconds since the epoch; `victims`: UIDs of the pods that have to go."""

    allocation: PodAllocation
    until: int
    victims: tuple[str, ...] = ()


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept for a pod (`key` is `namespace/name`), and for which gang (its key, "" for none)."""

    uid: str
    key: str
    priority: int
    gang: str
    reserved: Reserved

    @classmethod
    def of(cls, pod: Pod, reserved: Reserved) -> "Reservation":
        return cls(uid=pod.uid, key=pod.key, priority=priority(pod), gang=_gang(pod), reserved=reserved)


class Reservations:
    """By the UIDs of their pods; those of pods that hold cards (`has_cards`) rest. Not thread-safe."""

    def __init__(self, ledger: Ledger, has_cards: Callable[[str], bool]) -> None:
        self._ledger = ledger
        self._has_cards = has_cards
        self._by_uid: dict[str, Reservation] = {}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._by_uid.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> Reservation:
        """Raises KeyError."""
        return self._by_uid[uid]

    def keep(self, reservation: Reservation) -> None:
        """From now on, in place of what was kept for the pod before."""
        self._by_uid[reservation.uid] = reservation
        self.recount(reservation.uid)

    def drop(self, uid: str) -> None:
        """Nothing is kept for the pod any more."""
        self._by_uid.pop(uid, None)
        self.recount(uid)

    def pod_changed(self, pod: Pod) -> None:
        """A pod as the watch shows it: what it carries counts, unless we know better or the pod needs it no more."""
        if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            self.drop(pod.uid)
        elif pod.uid not in self._by_uid and (text := pod.annotations.get(names.RESERVATION)):
            try:
                reserved = msgspec.json.decode(text, type=Reserved)
            except msgspec.MsgspecError:
                return  # nobody of ours wrote it
            self.keep(Reservation.of(pod, reserved))

    def over(self, now: float) -> list[Reservation]:
        """Those whose time is over at `now`, seconds since the epoch."""
        return [one for one in self if one.reserved.until <= now]

    @contextmanager
    def lifted(self, pod: Pod) -> Generator[None]:
        """As the pod may see the ledger: without what is kept for it, for its gang, and for less important pods. No
        await inside: nobody else sees it so."""
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
        """What is kept for the pod and for its gang."""
        gang = _gang(pod)
        return [one for one in self if one.uid == pod.uid or (gang and one.gang == gang)]

    def recount(self, uid: str) -> None:
        """Make the ledger hold what is kept for the pod, unless it has cards by now."""
        kept = self._by_uid.get(uid)
        if kept is None or self._has_cards(uid):
            self._ledger.release(Holder("reservation", uid))
        else:
            self._ledger.hold(Holder("reservation", uid), kept.reserved.allocation)


def priority(pod: Pod) -> int:
    """Admission makes a number of the pod's class; a pod without one is in the middle."""
    return pod.spec.priority or 0


def _gang(pod: Pod) -> str:
    name = pod.annotations.get(names.GANG)
    return f"{pod.namespace}/{name}" if name else ""
