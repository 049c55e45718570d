"""Where several pods fit at once: what a gang is asked about. Changes nothing.

The members are placed one after the other, hardest first, each where the policy likes it best with those before it in
place; where one finds no room, the ones before it are tried elsewhere, within a bound. For members that ask alike the
first attempt decides: wherever they go, as many fit. Of unlike ones, a gang may be told to wait although a place
exists, never the other way round.

CPU and memory of nodes are looked at too, as far as objects tell: the scheduler checks each pod for itself, and several
pods at once only here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.api.allocation import PodAllocation
from egpu.api.kubernetes import Pod
from egpu.core.gangs.membership import Gang
from egpu.core.placement import fit as fitting
from egpu.core.placement.cache import Feed
from egpu.core.placement.fit import Request
from egpu.core.placement.hosts import Room
from egpu.core.placement.ledger import Holder
from egpu.core.placement.preference import Policies
from egpu.core.placement.refusal import Refusal
from egpu.errors import CorruptData, InvalidInput

SPARE_STEPS: Final = 64
"""Placements tried beyond one a member."""
REASONS: Final = 8
"""Nodes whose reasons are worked out where nobody asked for all; one sentence has no room for more."""

PoliciesOf = Callable[[Request], Policies]
"""The policies for a request; classes may ask for their own."""


@dataclass(frozen=True)
class Wish:
    """A pod, where it may go, and by which policies."""

    pod: Pod
    request: Request
    nodes: Sequence[str]
    policies: Policies


@dataclass(frozen=True)
class Stuck:
    """The pod for which no place was found, how many were placed before it, and why it fits nowhere then."""

    pod: Pod
    placed: int
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class Together:
    """Allocations by the pods' UIDs, of all or none; and, of none, who was stuck."""

    allocations: dict[str, PodAllocation]
    stuck: Stuck | None = None


class _Attempt:
    def __init__(self, feed: Feed, wishes: Sequence[Wish], reasons: int) -> None:
        self.feed = feed
        self.wishes = wishes
        self.reasons = reasons
        self.steps = len(wishes) + SPARE_STEPS
        self.spent: dict[str, Room] = {}
        self.chosen: dict[str, PodAllocation] = {}
        self.stuck: Stuck | None = None

    def run(self, position: int = 0) -> bool:
        if position == len(self.wishes):
            return True
        wish = self.wishes[position]
        roomy = [node for node in wish.nodes if self._has_room(wish, node)]
        filtered = self.feed.filter(wish.request, roomy)
        if not filtered.fits:
            if self.stuck is None or position > self.stuck.placed:
                self.stuck = Stuck(wish.pod, position, self._refusals(wish, roomy))
            return False
        scores = self.feed.scores(wish.request, filtered.fits, wish.policies)
        for node in sorted(filtered.fits, key=lambda node: (-scores[node], node)):
            if self.steps <= 0:
                return False
            self.steps -= 1
            allocation = self.feed.choose(wish.request, node, wish.policies)
            self._put(wish, allocation)
            if self.run(position + 1):
                return True
            self._take_back(wish)
            if self._alike(position):
                return False
        return False

    def _alike(self, position: int) -> bool:
        """Whether all from here on ask for the same: then another place for this one changes nothing."""
        first = self.wishes[position]
        rest = self.wishes[position + 1 :]
        return all((one.request, one.nodes) == (first.request, first.nodes) for one in rest)

    def _put(self, wish: Wish, allocation: PodAllocation) -> None:
        self.feed.ledger.hold(Holder("pod", wish.pod.uid), allocation)
        self.chosen[wish.pod.uid] = allocation
        self._spend(wish, allocation.node, 1)

    def _take_back(self, wish: Wish) -> None:
        self.feed.ledger.release(Holder("pod", wish.pod.uid))
        self._spend(wish, self.chosen.pop(wish.pod.uid).node, -1)

    def _spend(self, wish: Wish, node: str, sign: int) -> None:
        spent, asked = self.spent.get(node, Room(0, 0)), wish.request
        self.spent[node] = Room(spent.cpu_milli + sign * asked.cpu_milli, spent.ram_mib + sign * asked.ram_mib)

    def _has_room(self, wish: Wish, node: str) -> bool:
        free, spent = self.feed.hosts.free(node), self.spent.get(node, Room(0, 0))
        asked = wish.request
        return (not asked.cpu_milli or free.cpu_milli - spent.cpu_milli >= asked.cpu_milli) and (
            not asked.ram_mib or free.ram_mib - spent.ram_mib >= asked.ram_mib
        )

    def _refusals(self, wish: Wish, roomy: Sequence[str]) -> tuple[Refusal, ...]:
        known = set(roomy)
        return tuple(
            fitting.refusal(wish.request, self.feed.ledger, node)
            if node in known
            else Refusal(node, "the node has too little CPU or memory left")
            for node in wish.nodes[: self.reasons]
        )


def place_together(feed: Feed, wishes: Sequence[Wish], *, reasons: int = REASONS) -> Together:
    """A place for every wish, or for none. `reasons`: of how many nodes it is said why they refuse."""

    def difficulty(wish: Wish) -> tuple[bool, int, int, str]:
        demands = wish.request.demand.containers.values()
        cards = sum(demand.cards for demand in demands)
        core = sum(demand.cards * (100 if demand.exclusive else demand.core) for demand in demands)
        return (len(wish.nodes) > 1, -cards, -core, wish.pod.name)

    attempt = _Attempt(feed, sorted(wishes, key=difficulty), reasons)
    with feed.packer.supposing():
        try:
            done = attempt.run()
        finally:
            for uid in attempt.chosen:
                feed.ledger.release(Holder("pod", uid))
    if done:
        return Together(dict(attempt.chosen))
    assert attempt.stuck is not None, "a run ends with everybody placed or somebody stuck"
    return Together({}, attempt.stuck)


@dataclass(frozen=True)
class GangVerdict:
    """The cards of every waiting member by its UID, or none and why. `refusals` are those of the member `stuck`."""

    allocations: dict[str, PodAllocation]
    reason: str = ""
    stuck: Pod | None = None
    refusals: tuple[Refusal, ...] = ()

    def text(self) -> str:
        """In one sentence, for an event."""
        nodes = "; ".join(f"node {refusal.node}: {refusal.text()}" for refusal in self.refusals)
        return f"{self.reason}: {nodes}" if nodes else self.reason


def place_gang(
    feed: Feed,
    gang: Gang,
    policies_of: PoliciesOf,
    *,
    pod: Pod,
    nodes: Sequence[str],
    elsewhere: Sequence[str] | None = None,
    reasons: int = REASONS,
) -> GangVerdict:
    """Where the waiting members of a gang go, all of them or none: `pod` on one of `nodes`, the others where the
    scheduler would have them; `elsewhere`: where it has not said."""
    if problem := gang.problem():
        return GangVerdict({}, problem)
    name, wishes = gang.terms.name, list[Wish]()
    for member in gang.waiting:
        offered = nodes if member.uid == pod.uid else feed.gangs.offered(member.uid)
        if offered is None:
            offered = elsewhere
        if offered is None:
            return GangVerdict({}, f"gang {name}: the scheduler has not asked about pod {member.name} yet")
        try:
            request = feed.request(member)
        except (InvalidInput, CorruptData) as error:
            return GangVerdict({}, f"gang {name}: pod {member.name}: {error}")
        wishes.append(Wish(member, request, offered, policies_of(request)))
    together = place_together(feed, wishes, reasons=reasons)
    if (stuck := together.stuck) is None:
        return GangVerdict(together.allocations)
    size, fit = gang.terms.size, stuck.placed + len(gang.bound)
    head = f"gang {name}: all {size} members exist, {fit} fit at once"
    others = f"with {stuck.placed} of the others in place" if stuck.placed else "by itself"
    return GangVerdict({}, f"{head}; {stuck.pod.name} {others} has no room", stuck.pod, stuck.refusals)
