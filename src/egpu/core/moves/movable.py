"""The pods of a live cluster that may move, checked against its ledger.

The search (`egpu.core.moves`) sees amounts only. The ledger knows the rest, such as which technology shares a card:
every proposal is tried on it, and taken back, before it is reported.
"""

from collections.abc import Iterable, Sequence

from egpu.api import names
from egpu.api.allocation import PodAllocation, decode_allocation
from egpu.core.moves.defrag import Move, Placed
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.fit import choose
from egpu.core.placement.ledger import Holder
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.shapes import Shape
from egpu.core.replay.export import shapes_of
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, DoesNotFit, ElasticGPUError


class Movers:
    """The pods of a cluster that may move: one GPU container with cards of its own node, no claim and no MIG instance,
    no node selection, no gang, and no DaemonSet."""

    def __init__(self, cache: SchedulerCache, pods: Iterable[Pod]) -> None:
        self.fleet = _copy(cache.ranking.fleet())
        self._cache = cache
        self._pods: dict[str, Pod] = {}
        self.placed: list[Placed] = []
        rows = {machine.name: row for row, machine in enumerate(self.fleet.machines)}
        for pod in pods:
            row = rows.get(pod.spec.node_name)
            if row is not None and _free_to_move(pod) and (one := self._placed(pod, row)) is not None:
                self._pods[pod.key] = pod
                self.placed.append(one)

    def _placed(self, pod: Pod, row: int) -> Placed | None:
        shapes = shapes_of(self._cache, [pod])
        try:
            containers = list(decode_allocation(pod.annotations[names.ALLOCATION]).containers.values())
        except CorruptData:
            return None
        if len(containers) != 1 or len(shapes) != 1 or containers[0].claim or containers[0].server:
            return None
        columns = {card.uuid: column for column, card in enumerate(self._cache.ledger.cards(pod.spec.node_name))}
        cards = tuple(
            columns[share.uuid]
            for share in containers[0].cards
            if share.uuid in columns and share.instance is None  # the fleet has no cards in MIG mode
        )
        # The allocated amounts, which may differ from the request (memory in proportion, TFLOPS of this card).
        first = containers[0].cards[0]
        shape = shapes[0]
        if not shape.whole:
            shape = Shape(shape.cpu_milli, shape.ram_mib, shape.cards, first.core * 10, first.memory_mib, shape.models)
        return Placed(pod.key, shape, Placement(row, cards)) if len(cards) == shape.cards else None

    def accepts(self, moves: Sequence[Move], pending: Pod | None = None, node: str = "") -> bool:
        """Return whether the ledger allows the moves, and then the `pending` pod on `node`. Changes nothing."""
        cache, held = self._cache, dict[Holder, PodAllocation]()
        tried: list[Holder] = []
        for move in moves:
            holder = Holder("pod", self._pods[move.name].uid)
            allocation = cache.ledger.holding(holder)
            if allocation is None:
                return False
            held[holder] = allocation
        with cache.ranking.supposing():
            try:
                return self._try(moves, pending, node, list(held), tried)
            finally:
                for holder in tried:
                    cache.ledger.release(holder)
                for holder, allocation in held.items():
                    cache.ledger.hold(holder, allocation)

    def _try(
        self, moves: Sequence[Move], pending: Pod | None, node: str, leaving: Sequence[Holder], tried: list[Holder]
    ) -> bool:
        cache = self._cache
        for holder in leaving:
            cache.ledger.release(holder)
        wanted = [(self._pods[move.name], self.fleet.machines[move.target.row].name) for move in moves]
        if pending is not None:
            wanted.insert(0, (pending, node))
        for pod, target in wanted:
            try:
                allocation = choose(cache.request(pod), cache.ledger, target)
            except (DoesNotFit, ElasticGPUError):
                return False
            holder = Holder("pod", pod.uid)
            cache.ledger.hold(holder, allocation)
            tried.append(holder)
        return True


def _copy(live: Fleet) -> Fleet:
    """Return a copy of the fleet: the ranking's own one follows the ledger."""
    own = Fleet(live.machines)
    for row in range(len(live)):
        own.set_row(row, live.core[row], live.card_memory[row], int(live.cpu[row]), int(live.ram[row]))
    return own


def _free_to_move(pod: Pod) -> bool:
    return (
        names.ALLOCATION in pod.annotations
        and not pod.finished
        and pod.metadata.deletion_timestamp is None
        and names.GANG not in pod.annotations
        and not pod.spec.node_selector
        and not pod.spec.affinity
        and not any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or [])
    )
