"""What the pods of each node hold, or are promised, kept up to date by changes. Pure."""

from collections import defaultdict
from fractions import Fraction

from egpu.api.kubernetes import Pod
from egpu.api.resources import Amounts, effective_requests


class Usage:
    """Requests of the pods on each node. A pod counts from the moment that it is assumed or seen bound, once."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Amounts]] = {}
        self._by_node: defaultdict[str, Amounts] = defaultdict(dict)
        self._promised: dict[str, tuple[Pod, str]] = {}

    def on(self, node: str) -> Amounts:
        """What is held on the node, by resource name."""
        return self._by_node[node]

    def holds(self, uid: str) -> bool:
        """Whether the pod is bound, or assumed to be."""
        return uid in self._held

    def hold(self, pod: Pod, node: str) -> None:
        """The pod is bound to the node, or about to be. Repeating it changes nothing."""
        self._promised.pop(pod.uid, None)
        if self._held.get(pod.uid, ("", {}))[0] == node:
            return
        self._give_back(pod.uid)
        requests = effective_requests(pod)
        self._held[pod.uid] = (node, requests)
        _add(self._by_node[node], requests, 1)

    def release(self, uid: str) -> bool:
        """The pod is gone, has finished, or was not bound after all. Whether that makes room for others."""
        promised = self._promised.pop(uid, None) is not None
        return self._give_back(uid) or promised

    def _give_back(self, uid: str) -> bool:
        node, requests = self._held.pop(uid, ("", {}))
        if node:
            _add(self._by_node[node], requests, -1)
        return bool(node)

    # ------------------------------------------------------------------ promises

    def promise(self, pod: Pod, node: str) -> None:
        """Others are evicted from the node for this pod, which is not bound yet."""
        self._promised[pod.uid] = (pod, node)

    def promised(self, uid: str) -> str:
        """The node that the pod was promised; empty when there is none."""
        return self._promised[uid][1] if uid in self._promised else ""

    def seen_by(self, pod: Pod, node: str) -> Amounts:
        """What is not for this pod: what is held, and what others of no lower priority were promised."""
        if not self._promised:
            return self._by_node[node]
        total = dict(self._by_node[node])
        for other, there in self._promised.values():
            if there == node and other.uid != pod.uid and (other.spec.priority or 0) >= (pod.spec.priority or 0):
                _add(total, effective_requests(other), 1)
        return total


def _add(totals: Amounts, requests: Amounts, sign: int) -> None:
    for name, amount in requests.items():
        totals[name] = totals.get(name, Fraction(0)) + sign * amount
