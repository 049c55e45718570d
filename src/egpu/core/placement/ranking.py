"""The policies of `egpu.core.policies` on the cards of a ledger: the same code as in the simulator.

The ledger is mirrored into a `Fleet`, row by row as rows change; where nodes or cards come and go, the fleet is built
anew. What fits is the ledger's decision (`egpu.core.placement.fit`): here is only which of the fitting places is liked
best.
"""

from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from egpu.core.arrays import BoolArray, FloatArray, IntArray
from egpu.core.placement.fit import Request
from egpu.core.placement.hosts import Hosts, Room
from egpu.core.placement.ledger import CONFLICT, EXCLUSIVE, Ledger
from egpu.core.policies.fleet import Fleet
from egpu.core.policies.learner import Compute
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.placer import Placer
from egpu.core.policies.price import Price, Prices, compute_prices
from egpu.core.policies.registry import Setting, scorer
from egpu.core.policies.shapes import WHOLE_CARD, Machine, Mix, Shape
from egpu.core.provisioners import CardTotals, provisioner

SEEN_LIMIT: Final = 16_384
"""Pods remembered as counted in the mix: kube-scheduler asks about a waiting pod again and again."""
_MILLI_PER_PERCENT: Final = WHOLE_CARD // 100
_SECOND_BEST: Final = 0.9
"""Score of the place next to the best: whole steps of 0.1 reach kube-scheduler, and only the best may have the last."""


class Packer:
    """Scores and columns for requests. `learned` is the job mix; `background` computes prices elsewhere."""

    def __init__(self, ledger: Ledger, hosts: Hosts) -> None:
        self.learned = LearnedMix()
        self.background: Compute | None = None
        self._ledger = ledger
        self._hosts = hosts
        self._fleet: Fleet | None = None
        self._nodes: list[str] = []
        self._changes: IntArray = np.zeros(0, dtype=np.int64)
        self._rooms: list[Room] = []
        self._hosts_version = -1
        self._placers: dict[str, Placer] = {}
        self._prices: Prices | None = None
        self._seen: OrderedDict[str, None] = OrderedDict()

    # --- the mix ----------------------------------------------------------------------------------------------------

    def see(self, pod_uid: str, request: Request) -> None:
        """Count a pod in the job mix, once."""
        if not request.local() or pod_uid in self._seen:
            return
        self._seen[pod_uid] = None
        if len(self._seen) > SEEN_LIMIT:
            self._seen.popitem(last=False)
        fleet = self.fleet()
        shapes, _ = self._shapes(request, np.arange(len(fleet)))
        if not shapes:
            return
        if self.learned.see(shapes[0]):
            self._placers.pop("fgd", None)  # its typical mix is taken when it is made
            self._renew(fleet)

    def use_mix(self, learned: LearnedMix) -> None:
        """Go on with a mix that was kept."""
        self.learned = learned
        self._placers.clear()
        self._renew(self.fleet())

    @contextmanager
    def supposing(self) -> Generator[None]:
        """What is held and given back inside was only a thought: it does not count as turnover."""
        before = self.fleet().departures
        try:
            yield
        finally:
            self.fleet().departures = before

    def swap(self, prices: Prices) -> None:
        """Use prices that were computed elsewhere. Those for other cards than there are now are computed again."""
        fleet = self.fleet()
        if not prices.fits_fleet(fleet):
            self._renew(fleet)
            return
        self._prices = prices
        placer = self._placers.get("price")
        if placer is not None and isinstance(placer.scorer, Price):
            placer.scorer.swap(fleet, prices)

    def _renew(self, fleet: Fleet) -> None:
        """Compute prices from the mix as it is: elsewhere, or here and now."""
        if self.background is not None:
            self.background(self.learned.mix())
        else:
            self.swap(compute_prices(self.learned.mix(), fleet))

    def _known_prices(self, fleet: Fleet) -> Prices:
        """Those at hand; after cards of another kind came, none, until they are computed."""
        if self._prices is not None and not self._prices.fits_fleet(fleet):
            self._prices = None
            self._renew(fleet)
        return self._prices or compute_prices(Mix(), fleet)  # of no pods: nothing to solve

    # --- questions --------------------------------------------------------------------------------------------------

    def scores(self, policy: str, request: Request, nodes: Sequence[str], fits: BoolArray) -> FloatArray | None:
        """0..1 for each of `nodes`: 1 for one best place, at most 0.9 for the others, 0 where `fits` is False.

        None when the policy sees no place, as where CPU is short by what we know.
        """
        rows, places = self._rows(nodes, fits)
        answer = np.zeros(len(nodes))
        if not len(rows):
            return answer
        found = self._raw(policy, request, rows)
        finite = np.isfinite(found)
        if not finite.any():
            return None
        low, high = found[finite].min(), found[finite].max()
        scaled = (found - low) / (high - low) if high > low else np.ones(len(found))
        answer[places] = np.where(finite, _SECOND_BEST * np.clip(scaled, 0, 1), 0)
        ties = np.flatnonzero(found == high)
        answer[places[ties[rows[ties].argmin()]]] = 1.0
        return answer

    def columns(self, policy: str, request: Request, node: str) -> tuple[int, ...]:
        """The columns that the policy likes for the first GPU container on a node that fits; () when it has no view."""
        row = self._ledger.row(node)
        fleet = self.fleet()
        if row is None:
            return ()
        shapes, group = self._shapes(request, np.array([row]))
        if not shapes or group[0] < 0:
            return ()
        shape = shapes[int(group[0])]
        possible = fleet.lanes[:, row] >= shape.core_milli
        possible &= fleet.memory_lanes[:, row] >= shape.card_memory_mib
        if possible[: int(fleet.count[row])].sum() < shape.cards:
            return ()
        return self._placer(policy).scorer.cards(fleet, shape, row)

    def _raw(self, policy: str, request: Request, rows: IntArray) -> FloatArray:
        placer = self._placer(policy)
        shapes, group = self._shapes(request, rows)
        found = np.full(len(rows), -np.inf)
        for code, shape in enumerate(shapes):
            own = group == code
            found[own] = placer.scores(shape)[rows[own]]
        return found

    def _placer(self, policy: str) -> Placer:
        fleet = self.fleet()
        placer = self._placers.get(policy)
        if placer is None:
            made = (
                Price(fleet, self._known_prices(fleet))
                if policy == "price"
                else scorer(policy, Setting(fleet, self.learned.mix()))
            )
            placer = self._placers[policy] = Placer(fleet, made)
        return placer

    def _rows(self, nodes: Sequence[str], fits: BoolArray) -> tuple[IntArray, IntArray]:
        """Rows of the nodes that fit, and their places in `nodes`."""
        pairs = [(row, at) for at, node in enumerate(nodes) if fits[at] and (row := self._ledger.row(node)) is not None]
        both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _shapes(self, request: Request, rows: IntArray) -> tuple[list[Shape], IntArray]:
        """The pod as shapes, for what a container asks of a card may differ by model (TFLOPS), the most common first;
        and per row which of them, -1 where no card can ever serve. Of several GPU containers the hardest counts.
        """
        demand = next(iter(request.local().values()), None)
        group: IntArray = np.full(len(rows), -1, dtype=np.int64)
        if demand is None:
            return [], group
        ledger = self._ledger
        totals = CardTotals(ledger.memory_mib[rows], {key: figures[rows] for key, figures in ledger.tflops.items()})
        needs = provisioner(demand.provisioner).needs(demand, totals)
        usable = needs.possible & ledger.present[rows]
        first = usable.argmax(axis=1)
        at = (np.arange(len(rows)), first)
        asked = np.stack([needs.core[at], needs.memory_mib[at]], axis=1)
        able = usable.any(axis=1)
        if not able.any():
            return [], group
        kinds, which, counts = np.unique(asked[able], axis=0, return_inverse=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        group[able] = rank[which.reshape(-1)]
        shapes: list[Shape] = []
        asked_kinds: list[list[int]] = kinds[order].tolist()
        for core, memory in asked_kinds:
            whole = demand.exclusive
            core_milli = WHOLE_CARD if whole else min(int(core) * _MILLI_PER_PERCENT, WHOLE_CARD)
            shapes.append(
                Shape(
                    request.cpu_milli,
                    request.ram_mib,
                    demand.cards,
                    core_milli,
                    0 if whole else int(memory),
                    request.models,
                )
            )
        return shapes, group

    # --- the mirror -------------------------------------------------------------------------------------------------

    def fleet(self) -> Fleet:
        """The ledger as a fleet, as of now."""
        ledger = self._ledger
        fleet = self._fleet
        if fleet is None or len(ledger.changes) != len(self._changes):
            return self._build()
        changed = set(np.flatnonzero(ledger.changes != self._changes).tolist())
        if self._hosts_version != self._hosts.version:
            rooms = [self._room(row) for row in range(len(fleet))]
            changed |= {row for row, room in enumerate(rooms) if room != self._rooms[row]}
            self._hosts_version = self._hosts.version
        if not changed:
            return fleet
        if changed and self._names(changed) is None:
            return self._build()
        for row in changed:
            self._copy(fleet, row)
        self._changes = ledger.changes.copy()
        return fleet

    def _names(self, rows: set[int]) -> bool | None:
        """True when each of the rows still is the machine that the fleet knows, None otherwise."""
        assert self._fleet is not None
        by_row = {self._ledger.row(node): node for node in self._ledger.nodes()}
        same = all(self._machine(row, by_row.get(row, "")) == self._fleet.machines[row] for row in rows)
        return True if same else None

    def _build(self) -> Fleet:
        ledger = self._ledger
        self._nodes = [""] * len(ledger.changes)
        for node in ledger.nodes():
            row = ledger.row(node)
            assert row is not None
            self._nodes[row] = node
        fleet = Fleet([self._machine(row, node) for row, node in enumerate(self._nodes)])
        old = self._fleet
        self._fleet = fleet
        self._rooms = [Room(0, 0)] * len(fleet)
        for row in range(len(fleet)):
            self._copy(fleet, row)
        fleet.departures = old.departures if old is not None else 0.0
        self._changes = ledger.changes.copy()
        self._hosts_version = self._hosts.version
        self._placers.clear()
        return fleet

    def _machine(self, row: int, node: str) -> Machine:
        cards = self._ledger.cards(node) if node else ()
        total = self._hosts.total(node)
        memory = max((card.memory_mib for card in cards), default=0)
        return Machine(node, total.cpu_milli, total.ram_mib, len(cards), cards[0].model if cards else "", memory)

    def _room(self, row: int) -> Room:
        return self._hosts.free(self._nodes[row]) if self._nodes[row] else Room(0, 0)

    def _copy(self, fleet: Fleet, row: int) -> None:
        ledger = self._ledger
        usable = ledger.healthy[row] & (ledger.mode[row] != EXCLUSIVE) & (ledger.mode[row] != CONFLICT)
        core = np.where(usable, ledger.core_free[row] * _MILLI_PER_PERCENT, 0)
        memory = np.where(usable, ledger.memory_free[row], 0)
        room = self._rooms[row] = self._room(row)
        fleet.set_row(row, core[: fleet.width], memory[: fleet.width], room.cpu_milli, room.ram_mib)
