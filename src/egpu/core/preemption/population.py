"""The pods that have a node, by node: what is asked of all of them at once is kept, so that few have to be read.

Pods are kept packed where there are many, and to read a hundred thousand of them takes half a second.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from egpu.api.kubernetes import Pod
from egpu.core.placement.reservations import priority
from egpu.core.preemption.neighbours import forbids
from egpu.core.preemption.victims import is_placed


class Placed(NamedTuple):
    """A pod that has cards. `leaving`: it is being deleted."""

    node: str
    priority: int
    leaving: bool


class Population:
    """Told of every pod. `read` has a pod by its UID, as it is now."""

    def __init__(self, read: Callable[[str], Pod | None]) -> None:
        self.get = read
        self._nodes: dict[str, str] = {}
        """By UID, the node of each pod that has one and has not ended."""
        self._on: dict[str, dict[str, None]] = {}
        self._placed: dict[str, Placed] = {}
        self._priorities: Counter[int] = Counter()
        self._forbidding: dict[str, None] = {}

    @classmethod
    def of(cls, pods: Iterable[Pod]) -> "Population":
        """These, which are at hand."""
        known = {pod.uid: pod for pod in pods}
        made = cls(known.get)
        for pod in known.values():
            made.changed(pod)
        return made

    @property
    def placed(self) -> Mapping[str, Placed]:
        """By UID, those that have cards."""
        return self._placed

    @property
    def lowest(self) -> int | None:
        """The least priority of those that have cards."""
        return min(self._priorities, default=None)

    def changed(self, pod: Pod) -> None:
        """A pod as it is now."""
        uid, node = pod.uid, "" if pod.finished else pod.spec.node_name or ""
        if self._nodes.get(uid, "") != node:
            self.gone(uid)
            if node:
                self._nodes[uid] = node
                self._on.setdefault(node, {})[uid] = None
        self._place(uid, Placed(node, priority(pod), _leaving(pod)) if is_placed(pod) else None)
        if node and forbids(pod):
            self._forbidding[uid] = None
        else:
            self._forbidding.pop(uid, None)

    def gone(self, uid: str) -> None:
        """The pod is deleted, or has no node."""
        node = self._nodes.pop(uid, None)
        if node is not None:
            del self._on[node][uid]
            if not self._on[node]:
                del self._on[node]
        self._place(uid, None)
        self._forbidding.pop(uid, None)

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
        """The pods of a node that have not ended."""
        return self.read(self._on.get(node, ()))

    def forbidding(self) -> list[Pod]:
        """Those that forbid others something: a port of their node, or to be near them."""
        return self.read(self._forbidding)

    def read(self, uids: Iterable[str]) -> list[Pod]:
        """Those of these that are there."""
        return [pod for pod in map(self.get, uids) if pod is not None]


def _leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
