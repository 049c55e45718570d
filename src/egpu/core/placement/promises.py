"""Cards promised to the members of a group that kube-scheduler places as a whole, before it binds the first one.

Kubernetes' PodGroups are placed so: kube-scheduler asks about one member after the other, and binds them only when
enough have a node. The answer about one member must count for the next, so the ledger holds its cards from the answer
to the binding.

kube-scheduler does not say when it gives a group up. So promises end with time, counted from its last question or
binding of the group. A second question about a member with a promise means that it starts over: then all promises of
the group end. A second question about a refused member means nothing: the bindings of the others may be on their way
meanwhile. So their promises stay."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from egpu.api.allocation import PodAllocation
from egpu.core.placement.ledger import Holder, Ledger

PROMISE_SECONDS: Final = 10.0
"""Longer than kube-scheduler takes from one question to the next, to the first binding, and from one binding to the
next; on a busy machine this was more than three. Few promises end by time: a group that does not fit gets none, and
those of a deleted pod end with it."""


@dataclass(frozen=True)
class _Promise:
    group: str
    allocation: PodAllocation
    asked: bool


class Promises:
    """Promises by the UIDs of pods. `now` counts seconds. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_uid: dict[str, _Promise] = {}
        self._until: dict[str, float] = {}
        """By group."""

    def __len__(self) -> int:
        return len(self._by_uid)

    def of(self, uid: str) -> PodAllocation | None:
        """Return the allocation promised to a pod about which kube-scheduler has asked."""
        found = self._by_uid.get(uid)
        return found.allocation if found is not None and found.asked else None

    def ask(self, group: str, uid: str, now: float) -> None:
        """Prepare a question about a member: promises to members with earlier questions stay, all others end."""
        self.expire(now)
        again = self.of(uid) is not None
        for other, promise in list(self._by_uid.items()):
            if promise.group == group and (again or not promise.asked):
                self.release(other)
        self._until[group] = now + PROMISE_SECONDS

    def binds(self, group: str, now: float) -> None:
        """Record that kube-scheduler binds a member now, so that others follow: their promises get more time."""
        if group in self._until:
            self._until[group] = max(self._until[group], now + PROMISE_SECONDS)

    def give(self, group: str, uid: str, allocation: PodAllocation, held: PodAllocation, *, asked: bool) -> None:
        """Promise an allocation; `held` is the part that the pod holds itself. `asked`: kube-scheduler has asked about
        this pod; others are kept for the rest of the group."""
        self._by_uid[uid] = _Promise(group, allocation, asked)
        self._ledger.hold(Holder("promise", uid), held)

    @contextmanager
    def lifted(self, uid: str, group: str = "") -> Generator[None]:
        """Lift the promise to a pod, and those that are kept for the rest of `group`. No await inside, so no other
        reader sees it."""
        aside = {
            other: (promise, self._ledger.holding(Holder("promise", other)))
            for other, promise in self._by_uid.items()
            if other == uid or (promise.group == group and not promise.asked)
        }
        for other in aside:
            self.release(other)
        try:
            yield
        finally:
            for other, (promise, held) in aside.items():
                self._by_uid[other] = promise
                if held is not None:
                    self._ledger.hold(Holder("promise", other), held)

    def release(self, uid: str) -> None:
        """End the promise to a pod, if there is one."""
        if self._by_uid.pop(uid, None) is not None:
            self._ledger.release(Holder("promise", uid))

    def expire(self, now: float) -> bool:
        """End the promises of groups about which nobody asked lately. Return whether cards became free."""
        over = {group for group, until in self._until.items() if until <= now}
        for group in over:
            del self._until[group]
        ended = [uid for uid, promise in self._by_uid.items() if promise.group in over]
        for uid in ended:
            self.release(uid)
        return bool(ended)
