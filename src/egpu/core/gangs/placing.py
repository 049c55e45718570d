"""Places for several pods of a gang at once. Changes nothing.

Members are placed one after the other, hardest first, each at the policy's best place beside those before it. If one
finds no room, other places are tried for the ones before it, within a bound. For members with equal requests the first
attempt decides: any order places as many. A gang of unequal members may have to wait although places exist, never the
other way round.

CPU and memory of nodes are checked too, as far as objects show them: the scheduler checks each pod for itself, and only
this module checks several pods at once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu.api.allocation import PodAllocation
from egpu.core.gangs.alike import is_alike, is_placed_by_group
from egpu.core.gangs.membership import Gang
from egpu.core.placement.cache import SchedulerCache
from egpu.core.placement.hosts import Room
from egpu.core.placement.ledger import Holder
from egpu.core.placement.refusal import Refusal, refusal
from egpu.core.placement.requests import Request
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import CorruptData, InvalidInput, MissingExtra

SPARE_STEPS: Final = 64
"""Placements tried in addition to one per member."""
REASONS: Final = 8
"""Nodes with reasons in an answer by default; one sentence has no room for more."""


@dataclass(frozen=True)
class Member:
    """A pod of a gang, its request, and the nodes that it may use."""

    pod: Pod
    request: Request
    nodes: Sequence[str]


@dataclass(frozen=True)
class Stuck:
    """The pod without a place, the number of pods placed before it, and why it then fits nowhere."""

    pod: Pod
    placed: int
    refusals: tuple[Refusal, ...]


_NOTHING: Final = Room(0, 0)


class _Attempt:
    def __init__(self, cache: SchedulerCache, members: Sequence[Member], policies: Policies, *, reasons: int) -> None:
        self.cache = cache
        self.members = members
        self.policies = policies
        self.reasons = reasons
        self.steps = len(members) + SPARE_STEPS
        self.spent: dict[str, Room] = {}
        self.free: dict[str, Room] = {}
        """Of nodes, before this attempt."""
        self.chosen: dict[str, PodAllocation] = {}
        self.stuck: Stuck | None = None

    def run(self, position: int = 0) -> bool:
        if position == len(self.members):
            return True
        member = self.members[position]
        roomy = [node for node in member.nodes if self._has_room(member, node)]
        filtered = self.cache.filter(member.request, roomy)
        if not filtered.fits:
            if self.stuck is None or position > self.stuck.placed:
                self.stuck = Stuck(member.pod, position, self._refusals(member, roomy))
            return False
        scores = self.cache.ranking.scores(member.request, filtered.fits, self.policies, all_fit=True)
        for node in sorted(filtered.fits, key=lambda node: (-scores[node], node)):
            if self.steps <= 0:
                return False
            self.steps -= 1
            allocation = self.cache.ranking.choose(member.request, node, self.policies)
            self._put(member, allocation)
            if self.run(position + 1):
                return True
            self._take_back(member)
            if self._alike(position):
                return False
        return False

    def _alike(self, position: int) -> bool:
        """Return whether all remaining members have equal requests, so that another place changes nothing."""
        first = self.members[position]
        rest = self.members[position + 1 :]
        return all((one.request, one.nodes) == (first.request, first.nodes) for one in rest)

    def _put(self, member: Member, allocation: PodAllocation) -> None:
        own = self.cache.held_by_pod(member.pod.namespace, allocation)
        self.cache.ledger.hold(Holder("pod", member.pod.uid), own)
        self.chosen[member.pod.uid] = allocation
        self._spend(member, allocation.node, 1)

    def _take_back(self, member: Member) -> None:
        self.cache.ledger.release(Holder("pod", member.pod.uid))
        self._spend(member, self.chosen.pop(member.pod.uid).node, -1)

    def _spend(self, member: Member, node: str, sign: int) -> None:
        spent, asked = self.spent.get(node, _NOTHING), member.request
        self.spent[node] = Room(spent.cpu_milli + sign * asked.cpu_milli, spent.ram_mib + sign * asked.ram_mib)

    def _has_room(self, member: Member, node: str) -> bool:
        asked = member.request
        if not (asked.cpu_milli or asked.ram_mib):
            return True
        if (free := self.free.get(node)) is None:
            free = self.free[node] = self.cache.hosts.free(node)
        spent = self.spent.get(node, _NOTHING)
        return (not asked.cpu_milli or free.cpu_milli - spent.cpu_milli >= asked.cpu_milli) and (
            not asked.ram_mib or free.ram_mib - spent.ram_mib >= asked.ram_mib
        )

    def _refusals(self, member: Member, roomy: Sequence[str]) -> tuple[Refusal, ...]:
        known = set(roomy)
        return tuple(
            refusal(member.request, self.cache.ledger, node)
            if node in known
            else Refusal(node, "the node has too little CPU or memory left")
            for node in member.nodes[: self.reasons]
        )


def place_members(
    cache: SchedulerCache, members: Sequence[Member], policies: Policies, *, reasons: int = REASONS
) -> dict[str, PodAllocation] | Stuck:
    """Return a place for every member, by pod UID, or the member that is stuck. `reasons`: refusals to explain."""

    def difficulty(member: Member) -> tuple[bool, int, int, str]:
        demands = member.request.demand.containers.values()
        cards = sum(demand.cards for demand in demands)
        core = sum(demand.cards * (100 if demand.exclusive else demand.core) for demand in demands)
        return (len(member.nodes) > 1, -cards, -core, member.pod.name)

    attempt = _Attempt(cache, sorted(members, key=difficulty), policies, reasons=reasons)
    with cache.ranking.supposing():
        try:
            done = attempt.run()
        finally:
            for uid in attempt.chosen:
                cache.ledger.release(Holder("pod", uid))
    if done:
        return dict(attempt.chosen)
    assert attempt.stuck is not None, "a run ends with everybody placed or somebody stuck"
    return attempt.stuck


def _contended(members: Sequence[Member]) -> str:
    """Return why several members cannot use one claim; empty if they can."""
    users: dict[str, str] = {}
    for member in members:
        for container, demand in member.request.demand.containers.items():
            if not demand.claim:
                continue
            first = users.setdefault(demand.claim, member.pod.name)
            held = member.request.bound.get(container)
            if first == member.pod.name or (held is not None and held.container.shared_claim):
                continue
            unbound = "is not bound yet; use a class with binding mode Immediate"
            why = unbound if demand.shared_claim else "only one pod can use"
            return f"pods {first} and {member.pod.name} use the claim {demand.claim}, which {why}"
    return ""


@dataclass(frozen=True)
class GangVerdict:
    """The cards of every waiting member by UID, or none and why. `refusals` are those of the member `stuck`."""

    allocations: dict[str, PodAllocation]
    reason: str = ""
    stuck: Pod | None = None
    refusals: tuple[Refusal, ...] = ()

    def text(self) -> str:
        """Return one sentence for an event."""
        nodes = "; ".join(f"node {refusal.node}: {refusal.text()}" for refusal in self.refusals)
        return f"{self.reason}: {nodes}" if nodes else self.reason


def _offered_alike(cache: SchedulerCache, pod: Pod, gang: Gang) -> Sequence[str] | None:
    """Return the nodes that the scheduler offered to an equal member, if it places the group as a whole: it asks about
    all members before it binds one, so nothing is bound that it has not checked."""
    if not is_placed_by_group(pod):
        return None
    for other in (*gang.waiting, *gang.bound):
        if (offered := cache.gangs.offered(other.uid)) is not None and is_alike(pod, other):
            return offered
    return None


def place_gang(
    cache: SchedulerCache,
    gang: Gang,
    policies: Policies,
    *,
    pod: Pod,
    nodes: Sequence[str],
    default_nodes: Sequence[str] | None = None,
    reasons: int = REASONS,
) -> GangVerdict:
    """Place the waiting members of a gang, all or none: `pod` on one of `nodes`, the others on the nodes that the
    scheduler offered; `default_nodes`: nodes of members without an offer."""
    if problem := gang.problem():
        return GangVerdict({}, problem)
    name, members, asked = gang.terms.name, list[Member](), 0
    for waiting in gang.waiting:
        offered = nodes if waiting.uid == pod.uid else cache.gangs.offered(waiting.uid)
        if offered is None:
            offered = default_nodes if default_nodes is not None else _offered_alike(cache, waiting, gang)
        if offered is None:
            return GangVerdict({}, f"gang {name}: the scheduler has not asked about pod {waiting.name} yet")
        try:
            request = cache.request(waiting)
        except (InvalidInput, CorruptData) as error:
            return GangVerdict({}, f"gang {name}: pod {waiting.name}: {error}")
        if (asked := asked + len(request.demand.containers)) > names.MAX_GANG_REQUESTS:
            most = names.MAX_GANG_REQUESTS
            return GangVerdict({}, f"gang {name}: its pods have over {most} containers with cards; use smaller gangs")
        members.append(Member(waiting, request, offered))
    if contended := _contended(members):
        return GangVerdict({}, f"gang {name}: {contended}")
    asked_for = (policies, reasons, tuple(gang.bound), tuple(members))
    if (known := cache.gangs.in_vain.of(gang.key, (asked_for, _state(cache)))) is not None:
        return known
    try:
        found = place_members(cache, members, policies, reasons=reasons)
    except MissingExtra as error:
        return GangVerdict({}, f"gang {name}: {error}")
    if not isinstance(found, Stuck):
        return GangVerdict(found)
    verdict = _in_vain(gang, found)
    cache.gangs.in_vain.note(gang.key, (asked_for, _state(cache)), verdict)
    return verdict


def _state(cache: SchedulerCache) -> Hashable:
    """Return a value that changes when cards or nodes do."""
    ledger = cache.ledger
    return ledger.changes.version, ledger.cards_version, cache.hosts.version


def _in_vain(gang: Gang, found: Stuck) -> GangVerdict:
    name, size, fit = gang.terms.name, gang.terms.size, found.placed + len(gang.bound)
    head = f"gang {name}: all {size} members exist, {fit} fit at once"
    others = f"with {found.placed} of the others placed" if found.placed else "even alone"
    return GangVerdict({}, f"{head}; {found.pod.name} has no room {others}", found.pod, found.refusals)
