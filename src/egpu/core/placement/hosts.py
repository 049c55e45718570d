"""CPU and memory of nodes, as far as objects show them, for scoring.

This is no second scheduler: kube-scheduler decides whether CPU and memory suffice. An unknown node has plenty.
"""

import itertools
import sys
from collections import OrderedDict
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Final, NamedTuple

from egpu_base.api.kubernetes import Node, Pod
from egpu_base.api.quantities import quantity_or_zero
from egpu_base.api.resources import CPU, effective_requests

PLENTY: Final = 1 << 40
"""CPU thousandths or MiB of an unknown node."""
_NONE: Final = Fraction(0)
_MEMORY: Final = "memory"
_COUNTED: Final = (CPU, _MEMORY)


class Room(NamedTuple):
    """CPU in thousandths of a core, memory in MiB."""

    cpu_milli: int
    ram_mib: int


def pod_requests(pod: Pod) -> Room:
    """Return CPU and memory of the pod's effective request."""
    found = effective_requests(pod, _COUNTED)
    return _room(found.get(CPU, _NONE), found.get(_MEMORY, _NONE))


@lru_cache(maxsize=1024)
def _room(cpus: Fraction, memory_bytes: Fraction) -> Room:
    """Return one shared object for equal requests."""
    return Room(int(cpus * 1000), int(memory_bytes / 2**20))


class Hosts:
    """The capacity of nodes and the requests of their pods, with or without GPU. `version` grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._changed: OrderedDict[str, int] = OrderedDict()
        """Nodes by the version of their latest change, the latest last."""
        self._total: dict[str, Room] = {}
        self._used: dict[str, Room] = {}
        self._pods: dict[str, tuple[str, Room]] = {}

    def node_changed(self, node: Node) -> None:
        """Record the node's allocatable resources."""
        allocatable = node.status.allocatable or {}
        cpu, memory = allocatable.get("cpu"), allocatable.get("memory")
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
        """Record that the pod runs there, or is about to. Idempotent."""
        room = pod_requests(pod)
        if self._pods.get(pod.uid) != (node, room):
            self.pod_gone(pod.uid)
            self.put(pod.uid, sys.intern(node), room)

    def put(self, uid: str, node: str, room: Room) -> None:
        """Add a pod that had no node to the node, with this request."""
        self._pods[uid] = (node, room)
        self._add(node, room, 1)

    def placed(self, uid: str) -> tuple[str, Room] | None:
        """Return the pod's node and request; None if it has no node."""
        return self._pods.get(uid)

    def pod_gone(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        if known is not None:
            self._add(*known, -1)

    def total(self, node: str) -> Room:
        """Return the node's capacity."""
        return self._total.get(node, Room(PLENTY, PLENTY))

    def free(self, node: str) -> Room:
        """Return what is left of the capacity; below 0 if pods asked for more."""
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
        """Return the nodes that changed after `version`, the latest first."""
        return itertools.takewhile(lambda name: self._changed[name] > version, reversed(self._changed))

    def _note(self, node: str) -> None:
        self.version += 1
        self._changed[node] = self.version
        self._changed.move_to_end(node)
