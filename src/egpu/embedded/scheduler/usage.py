"""What the pods of each node hold, kept up to date by changes. Pure."""

from collections import defaultdict
from fractions import Fraction

from egpu.api.kubernetes import Pod
from egpu.api.resources import Amounts, effective_requests


class Usage:
    """Requests of the pods on each node. A pod counts from the moment that it is assumed or seen bound, once."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Amounts]] = {}
        self._by_node: defaultdict[str, Amounts] = defaultdict(dict)

    def on(self, node: str) -> Amounts:
        """What is held on the node, by resource name."""
        return self._by_node[node]

    def hold(self, pod: Pod, node: str) -> None:
        """The pod is bound to the node, or about to be. Repeating it changes nothing."""
        if self._held.get(pod.uid, ("", {}))[0] == node:
            return
        self.release(pod.uid)
        requests = effective_requests(pod)
        self._held[pod.uid] = (node, requests)
        self._add(node, requests, 1)

    def release(self, uid: str) -> None:
        """The pod is gone, has finished, or was not bound after all."""
        node, requests = self._held.pop(uid, ("", {}))
        if node:
            self._add(node, requests, -1)

    def _add(self, node: str, requests: Amounts, sign: int) -> None:
        totals = self._by_node[node]
        for name, amount in requests.items():
            totals[name] = totals.get(name, Fraction(0)) + sign * amount
