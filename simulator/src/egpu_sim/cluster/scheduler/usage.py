"""The pods of each node, bound or promised, and the sum of their requests, kept up to date by changes. Pure."""

from collections import defaultdict
from fractions import Fraction

from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.resources import Amounts
from egpu_sim.cluster.scheduler.filters import NodeState
from egpu_sim.cluster.scheduler.neighbours import repels
from egpu_sim.cluster.scheduler.requests import requests_of


class Usage:
    """A pod counts from the moment that it is assumed or seen bound, once."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Pod, Amounts]] = {}
        self._amounts: defaultdict[str, Amounts] = defaultdict(dict)
        self._pods: defaultdict[str, dict[str, Pod]] = defaultdict(dict)
        self._promised: dict[str, tuple[Pod, str]] = {}
        self._repelling: set[str] = set()

    def on(self, node: Node) -> NodeState:
        return NodeState(node, self._amounts[node.name], self._pods[node.name].values())

    def holds(self, uid: str) -> bool:
        return uid in self._held

    @property
    def repels(self) -> bool:
        """True if any pod has a required anti-affinity."""
        return bool(self._repelling)

    def hold(self, pod: Pod, node: str) -> None:
        """Count a pod that is bound to the node or about to be, as it is now."""
        self._promised.pop(pod.uid, None)
        known = self._held.get(pod.uid)
        if known is None or known[0] != node or known[1].spec != pod.spec:
            self._give_back(pod.uid)
            requests = requests_of(pod)
            _add(self._amounts[node], requests, 1)
        else:
            requests = known[2]
        self._held[pod.uid] = node, pod, requests
        self._pods[node][pod.uid] = pod
        if repels(pod):
            self._repelling.add(pod.uid)

    def release(self, uid: str) -> bool:
        """Forget a pod that is gone, has finished, or was not bound after all. Return whether this makes room."""
        promised = self._promised.pop(uid, None) is not None
        return self._give_back(uid) or promised

    def _give_back(self, uid: str) -> bool:
        held = self._held.pop(uid, None)
        if held is not None:
            node, _, requests = held
            _add(self._amounts[node], requests, -1)
            del self._pods[node][uid]
            self._repelling.discard(uid)
        return held is not None

    # ------------------------------------------------------------------ promises

    def promise(self, pod: Pod, node: str) -> None:
        """Count a pod for which others are evicted from the node, and which is not bound yet."""
        self._promised[pod.uid] = (pod, node)

    def promised(self, uid: str) -> str:
        """Return the node that the pod was promised; empty when there is none."""
        return self._promised[uid][1] if uid in self._promised else ""

    def seen_by(self, pod: Pod, node: Node) -> NodeState:
        """Return the node with its own and promised pods, without promises to pods of lower priority."""
        state = self.on(node)
        promised = [
            other
            for other, there in self._promised.values()
            if there == node.name and other.uid != pod.uid and (other.spec.priority or 0) >= (pod.spec.priority or 0)
        ]
        for other in promised:
            state = state.plus(other)
        return state


def _add(totals: Amounts, requests: Amounts, sign: int) -> None:
    for name, amount in requests.items():
        totals[name] = totals.get(name, Fraction(0)) + sign * amount
