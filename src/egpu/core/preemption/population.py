"""The pods that have a node, by node. Data about all of them is kept, so that few pods have to be read.

Pods are stored packed where there are many; reading a hundred thousand takes half a second.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from egpu.core.placement.reservations import priority
from egpu.core.preemption.neighbours import forbids, has_anti_affinity
from egpu.core.preemption.victims import may_have_cards
from egpu_base.api.kubernetes import Pod


class Placed(NamedTuple):
    """A pod that has cards, or ResourceClaims which may have some. `leaving`: it is being deleted."""

    node: str
    priority: int
    leaving: bool


class Population:
    """Records every pod. `get` reads a pod by its UID, as it is now."""

    def __init__(self, read: Callable[[str], Pod | None]) -> None:
        self.get = read
        self._nodes: dict[str, str] = {}
        """The node of each unfinished pod that has one, by UID."""
        self._on: dict[str, dict[str, None]] = {}
        self._placed: dict[str, Placed] = {}
        self._priorities: Counter[int] = Counter()
        self._forbidding: dict[str, bool] = {}
        """Pods that can conflict with others, by UID, and whether they do by anti-affinity."""
        self._apart = 0
        """How many do by anti-affinity."""

    @classmethod
    def of(cls, pods: Iterable[Pod]) -> "Population":
        """Return the population of these pods."""
        known = {pod.uid: pod for pod in pods}
        made = cls(known.get)
        for pod in known.values():
            made.changed(pod)
        return made

    @property
    def placed(self) -> Mapping[str, Placed]:
        """The pods that have cards or ResourceClaims, by UID."""
        return self._placed

    @property
    def lowest(self) -> int | None:
        """The least priority of the pods that have cards or ResourceClaims."""
        return min(self._priorities, default=None)

    def changed(self, pod: Pod) -> None:
        """Record a pod as it is now."""
        uid, node = pod.uid, "" if pod.finished else pod.spec.node_name or ""
        if self._nodes.get(uid, "") != node:
            self.gone(uid)
            if node:
                self._nodes[uid] = node
                self._on.setdefault(node, {})[uid] = None
        self._place(uid, Placed(node, priority(pod), _leaving(pod)) if may_have_cards(pod) else None)
        self._forbid(uid, has_anti_affinity(pod) if node and forbids(pod) else None)

    def gone(self, uid: str) -> None:
        """Record that the pod is deleted, or has no node."""
        node = self._nodes.pop(uid, None)
        if node is not None:
            del self._on[node][uid]
            if not self._on[node]:
                del self._on[node]
        self._place(uid, None)
        self._forbid(uid, None)

    def _forbid(self, uid: str, apart: bool | None) -> None:
        self._apart -= self._forbidding.pop(uid, False)
        if apart is not None:
            self._forbidding[uid] = apart
            self._apart += apart

    @property
    def any_anti_affinity(self) -> bool:
        """Return whether some placed pod has required anti-affinity."""
        return self._apart > 0

    def count(self, node: str) -> int:
        """Return the number of unfinished pods of a node."""
        return len(self._on.get(node, ()))

    def _place(self, uid: str, now: Placed | None) -> None:
        before = self._placed.pop(uid, None) if now is None else self._placed.get(uid)
        if now is not None:
            self._placed[uid] = now
            self._priorities[now.priority] += 1
        if before is not None:
            self._priorities[before.priority] -= 1
            if not self._priorities[before.priority]:
                del self._priorities[before.priority]

    def on(self, node: str) -> list[Pod]:
        """Return the unfinished pods of a node."""
        return self.read(self._on.get(node, ()))

    def forbidding(self) -> list[Pod]:
        """Return the pods that can conflict with others: by a port of their node, or by anti-affinity."""
        return self.read(self._forbidding)

    def read(self, uids: Iterable[str]) -> list[Pod]:
        """Return the existing pods of these UIDs."""
        return [pod for pod in map(self.get, uids) if pod is not None]


def _leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
