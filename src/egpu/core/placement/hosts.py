"""CPU and memory of nodes, as far as objects tell: what scoring wants to know beside the cards.

Not a second scheduler: kube-scheduler decides whether CPU and memory suffice. An unknown node has plenty.
"""

import itertools
import sys
from collections import OrderedDict
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from egpu.api.kubernetes import Node, Pod
from egpu.api.quantities import quantity_or_zero
from egpu.api.resources import CPU, effective_requests

PLENTY: Final = 1 << 40
"""CPU thousandths or MiB of a node of which nothing is known."""
_NONE: Final = Fraction(0)
_MEMORY: Final = "memory"
_COUNTED: Final = (CPU, _MEMORY)


class Room(NamedTuple):
    """CPU in thousandths of a core, memory in MiB."""

    cpu_milli: int
    ram_mib: int


def pod_requests(pod: Pod) -> Room:
    """CPU and memory of the pod's effective request."""
    found = effective_requests(pod, _COUNTED)
    return _room(found.get(CPU, _NONE), found.get(_MEMORY, _NONE))


@lru_cache(maxsize=1024)
def _room(cpus: Fraction, memory_bytes: Fraction) -> Room:
    """One object for the many pods that ask for the same."""
    return Room(int(cpus * 1000), int(memory_bytes / 2**20))


class Hosts:
    """What nodes have and what their pods asked for, GPU or not. `version` grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._changed: OrderedDict[str, int] = OrderedDict()
        """Nodes by the version of their latest change, the latest last."""
        self._total: dict[str, Room] = {}
        self._used: dict[str, Room] = {}
        self._pods: dict[str, tuple[str, Room]] = {}

    def node_changed(self, node: Node) -> None:
        """What the node has for pods."""
        given = node.status.allocatable or {}
        cpu, memory = given.get("cpu"), given.get("memory")
        room = Room(
            PLENTY if cpu is None else int(quantity_or_zero(cpu) * 1000),
            PLENTY if memory is None else int(quantity_or_zero(memory) / 2**20),
        )
        if self._total.get(node.name) != room:
            self._total[node.name] = room
            self._note(node.name)

    def node_deleted(self, name: str) -> None:
        if self._total.pop(name, None) is not None:
            self._note(name)

    def pod_placed(self, pod: Pod, node: str) -> None:
        """The pod runs there, or is about to. Saying it again is harmless."""
        room = pod_requests(pod)
        if self._pods.get(pod.uid) != (node, room):
            self.pod_gone(pod.uid)
            self.put(pod.uid, sys.intern(node), room)

    def put(self, uid: str, node: str, room: Room) -> None:
        """The pod of this UID, which was nowhere, takes so much of the node."""
        self._pods[uid] = (node, room)
        self._add(node, room, 1)

    def placed(self, uid: str) -> tuple[str, Room] | None:
        """Where the pod is, and what it asked for; None when it is nowhere."""
        return self._pods.get(uid)

    def pod_gone(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        if known is not None:
            self._add(*known, -1)

    def total(self, node: str) -> Room:
        """What the node has."""
        return self._total.get(node, Room(PLENTY, PLENTY))

    def free(self, node: str) -> Room:
        """What is left of it; below 0 where pods asked for more than there is."""
        total, used = self.total(node), self._used.get(node, Room(0, 0))
        return Room(total.cpu_milli - used.cpu_milli, total.ram_mib - used.ram_mib)

    def _add(self, node: str, room: Room, sign: int) -> None:
        used = self._used.get(node, Room(0, 0))
        now = Room(used.cpu_milli + sign * room.cpu_milli, used.ram_mib + sign * room.ram_mib)
        if any(now):
            self._used[node] = now
        else:
            self._used.pop(node, None)
        self._note(node)

    def changed_since(self, version: int) -> Iterable[str]:
        """Nodes that changed after `version`, the latest first."""
        return itertools.takewhile(lambda name: self._changed[name] > version, reversed(self._changed))

    def _note(self, node: str) -> None:
        self.version += 1
        self._changed[node] = self.version
        self._changed.move_to_end(node)
