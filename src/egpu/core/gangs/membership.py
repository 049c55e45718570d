"""Gangs: groups of pods that run all together or not at all, named by annotations of their pods.

A gang is its living members: the pods of one namespace that name it and are neither finished nor being deleted. It is
*whole* when as many are bound as its size says. Members that succeeded count as bound while others of the gang still
are: a worker that finished early, and is not created again, must not keep a lost one from coming back.

An *open* gang may have more members than its size. The members beyond it are placed one by one. Gangs that were read
from a neighbour's group are open (`egpu.core.neighbours`), and pods of that group without a GPU count as members that
are placed: another scheduler places them.

`egpu.core.gangs.placing` decides where the members fit together.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from egpu.api import names
from egpu.core.neighbours.table import group_of
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand

V = TypeVar("V")

DEFAULT_TIMEOUT_SECONDS: Final = 60
MAX_OFFERS: Final = 16_384
"""Waiting members whose nodes are remembered. The scheduler may ask about a pod before the watch shows it, or after its
end, so the number of known pods is no bound."""
MAX_IN_VAIN: Final = 64
"""Gangs whose last answer is remembered."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""The name is a label's value too."""
_DURATION: Final = re.compile(r"([0-9]{1,9})([smh]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class GangTerms:
    """The name, size and timeout of a gang, by the annotations of one pod."""

    name: str
    size: int
    timeout_seconds: int | None = DEFAULT_TIMEOUT_SECONDS
    """None: never."""
    open: bool = False


def gang_terms(pod: Pod) -> GangTerms | None:
    """Read the annotations of a pod; None for a pod of no gang. Raises InvalidDemand naming the annotation."""
    name = pod.annotations.get(names.GANG)
    if name is None:
        for key in (names.GANG_SIZE, names.GANG_TIMEOUT):
            if key in pod.annotations:
                raise InvalidDemand(_field(key), f"has no effect without {names.GANG}; add that, or remove this")
        return None
    if not _NAME.fullmatch(name):
        rule = "up to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
        raise InvalidDemand(_field(names.GANG), f"{name!r} is not a valid name; use {rule}")
    text = pod.annotations.get(names.GANG_SIZE)
    if text is None:
        raise InvalidDemand(_field(names.GANG_SIZE), f"is missing; set it to the number of pods of the gang {name}")
    digits = text.removesuffix(names.GANG_OR_MORE)
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9 or not 1 <= int(digits) <= names.MAX_GANG_SIZE:
        reason = f"{text!r} is not a number of pods from 1 to {names.MAX_GANG_SIZE}, with or without `+`"
        raise InvalidDemand(_field(names.GANG_SIZE), reason)
    timeout = _timeout(pod.annotations.get(names.GANG_TIMEOUT))
    return GangTerms(name, int(digits), timeout, open=digits != text)


def _timeout(text: str | None) -> int | None:
    if text is None:
        return DEFAULT_TIMEOUT_SECONDS
    if text == names.GANG_NEVER:
        return None
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 1 <= seconds <= names.MAX_GANG_TIMEOUT_SECONDS:
        most = names.MAX_GANG_TIMEOUT_SECONDS
        reason = f"{text!r} is not a time from 1 s to {most} s; write seconds, a number with s, m or h, or never"
        raise InvalidDemand(_field(names.GANG_TIMEOUT), reason)
    return seconds


def _field(key: str) -> str:
    return f"metadata.annotations[{key}]"


def disagreement(pod: Pod, others: Iterable[Pod]) -> InvalidDemand | None:
    """Return why `pod` cannot be created beside its gang's pods `others` (of its namespace); None if it can.

    Raises InvalidDemand for terms that are not valid.
    """
    terms = gang_terms(pod)
    if terms is None:
        return None
    living = [one for one in others if one.annotations.get(names.GANG) == terms.name and _living(one)]
    for other in sorted(living, key=lambda one: one.name):
        try:
            said = gang_terms(other)
        except InvalidDemand:
            continue  # older than the check; it waits, and explains why
        assert said is not None
        if terms.open and said.open:
            continue  # the youngest member's size counts
        for key, ours, theirs in (
            (names.GANG_SIZE, _size_text(terms), _size_text(said)),
            (names.GANG_TIMEOUT, _timeout_text(terms), _timeout_text(said)),
        ):
            if ours != theirs:
                reason = f"is {ours}, and {theirs} in pod {other.name} of the gang {terms.name}; write the same"
                return InvalidDemand(_field(key), reason)
    if len(living) >= terms.size and not terms.open:
        members = ", ".join(sorted(one.name for one in living))
        return InvalidDemand(_field(names.GANG), f"the gang {terms.name} already has {terms.size} members ({members})")
    return None


def _gated(pod: Pod) -> bool:
    return bool(pod.spec.scheduling_gates)


def _size_text(terms: GangTerms) -> str:
    return f"{terms.size}{names.GANG_OR_MORE if terms.open else ''}"


def _timeout_text(terms: GangTerms) -> str:
    return names.GANG_NEVER if terms.timeout_seconds is None else str(terms.timeout_seconds)


def _living(pod: Pod) -> bool:
    return not pod.finished and pod.metadata.deletion_timestamp is None


@dataclass(frozen=True)
class Gang:
    """A gang as its pods show it, by the terms of one of them. `waiting` are sorted by age and name; those of an open
    gang are the ones to place at once, and the other `later` ones follow one by one. `cardless`: pods without cards."""

    namespace: str
    terms: GangTerms
    bound: tuple[Pod, ...]
    waiting: tuple[Pod, ...]
    succeeded: int
    cardless: int = 0
    later: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.terms.name}"

    @property
    def settled(self) -> int:
        """The number of members for which no cards have to be found."""
        return len(self.bound) + (self.succeeded if self.bound else 0) + self.cardless

    @property
    def existing(self) -> int:
        """The number of members, as this module defines them."""
        return self.settled + len(self.waiting) + self.later

    @property
    def partial(self) -> bool:
        """True if some members run while others wait, which must not last."""
        placed = self.settled if self.terms.open else len(self.bound)
        return bool(self.waiting and self.bound) and placed < self.terms.size

    def for_pod(self, pod: Pod) -> "Gang":
        """Return the gang with the members that are placed together with the waiting `pod`."""
        if not self.terms.open or all(one.uid != pod.uid for one in self.waiting):
            return self
        needed = max(1, self.terms.size - self.settled)
        others = sorted((one for one in self.waiting if one.uid != pod.uid), key=_gated)
        chosen = {one.uid for one in [pod, *others][:needed]}
        waiting = tuple(one for one in self.waiting if one.uid in chosen)
        return replace(self, waiting=waiting, later=len(self.waiting) - len(waiting))

    def problem(self) -> str:
        """Return why no member can be placed, whatever room there is; "" if all exist and agree."""
        size, name = self.terms.size, self.terms.name
        for other in (*self.bound, *self.waiting):
            try:
                terms = gang_terms(other)
            except InvalidDemand as error:
                return f"gang {name}: pod {other.name}: {error}"
            if terms != self.terms and not (self.terms.open and terms is not None and terms.open):
                return f"gang {name}: its pods disagree on size or time limit; create them again"
        if self.existing < size:
            return f"gang {name}: {self.existing} of {size} members exist"
        if self.terms.open:
            return ""
        if len(self.bound) + len(self.waiting) > size:
            return f"gang {name}: {len(self.bound) + len(self.waiting)} members exist, its size is {size}"
        return ""


class InVain(Generic[V]):
    """Gangs that do not fit, each with its answer and the question: kube-scheduler asks about all members, one after
    the other, and to place them all takes up to seconds."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[object, V]] = OrderedDict()

    def of(self, gang: str, question: object) -> V | None:
        """Return the answer to the same question; None if it was another, or none."""
        known = self._known.get(gang)
        return known[1] if known is not None and known[0] == question else None

    def note(self, gang: str, question: object, answer: V) -> None:
        self._known[gang] = question, answer
        self._known.move_to_end(gang)
        if len(self._known) > MAX_IN_VAIN:
            self._known.popitem(last=False)


class Gangs:
    """Pods by gang, as the watch shows them, and the nodes that the scheduler offers to each waiting member.

    An offer is the list of nodes in kube-scheduler's latest question: nodes that pass its own checks (selectors,
    taints, other resources), which are not repeated here. Offers are not stored: after a restart the scheduler asks
    about every waiting pod again.
    """

    def __init__(self, is_held: Callable[[str], bool] = lambda _: False) -> None:
        self._is_held = is_held
        """True if the pod of this UID has its cards, though the watch may not show it yet."""
        self._members: dict[str, dict[str, Pod]] = {}
        self._cardless: dict[str, set[str]] = {}
        """UIDs of pods of neighbours' groups that are no members themselves, by the gang's key."""
        self._keys: dict[str, str] = {}
        self._offers: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self.in_vain: InVain[Any] = InVain()
        """Answers of `egpu.core.gangs.placing`."""

    def pod_changed(self, pod: Pod) -> None:
        name = pod.annotations.get(names.GANG)
        if name is None:
            self._cardless_changed(pod)
            return
        key = f"{pod.namespace}/{name}"
        self._keys[pod.uid] = key
        self._members.setdefault(key, {})[pod.uid] = pod
        if pod.spec.node_name or not _living(pod):
            self._offers.pop(pod.uid, None)

    def _cardless_changed(self, pod: Pod) -> None:
        group = group_of(pod)
        if group is None:
            return
        if pod.status.phase == "Failed" or pod.metadata.deletion_timestamp is not None:
            self.pod_deleted(pod.uid)
            return
        key = f"{pod.namespace}/{group.gang}"
        self._keys[pod.uid] = key
        self._cardless.setdefault(key, set()).add(pod.uid)

    def pod_deleted(self, uid: str) -> None:
        self._offers.pop(uid, None)
        key = self._keys.pop(uid, None)
        if key is None:
            return
        if (members := self._members.get(key)) is not None and members.pop(uid, None) is not None and not members:
            del self._members[key]
        if (cardless := self._cardless.get(key)) is not None:
            cardless.discard(uid)
            if not cardless:
                del self._cardless[key]

    def offer(self, pod: Pod, nodes: Iterable[str]) -> None:
        """Record that the scheduler accepts any of `nodes` for the pod."""
        self._offers[pod.uid] = tuple(nodes)
        self._offers.move_to_end(pod.uid)
        if len(self._offers) > MAX_OFFERS:
            self._offers.popitem(last=False)

    def offered(self, uid: str) -> tuple[str, ...] | None:
        """Return the nodes that the scheduler accepts for the pod; None if it has not asked yet."""
        return self._offers.get(uid)

    def of(self, pod: Pod) -> Gang | None:
        """Return the gang of `pod`, including it. Raises InvalidDemand for terms that are not valid."""
        terms = gang_terms(pod)
        if terms is None:
            return None
        members = self._members.get(f"{pod.namespace}/{terms.name}", {})
        return self._gang(pod.namespace, terms, {pod.uid: pod} | members).for_pod(pod)

    def partial(self) -> list[Gang]:
        """Return the gangs with both running and waiting pods."""
        found: list[Gang] = []
        for members in self._members.values():
            if len(members) < 2 or all(pod.spec.node_name for pod in members.values()):
                continue
            for pod in members.values():
                try:
                    terms = gang_terms(pod)
                except InvalidDemand:
                    continue
                assert terms is not None
                found.append(self._gang(pod.namespace, terms, members))
                break
        return [gang for gang in found if gang.partial]

    def _gang(self, namespace: str, terms: GangTerms, members: dict[str, Pod]) -> Gang:
        ordered = sorted(members.values(), key=lambda pod: (pod.metadata.creation_timestamp or "", pod.name))
        living = [pod for pod in ordered if _living(pod)]
        if terms.open:
            terms = _youngest(living) or terms
        bound = [pod for pod in living if pod.spec.node_name or self._is_held(pod.uid)]
        taken = {pod.uid for pod in bound}
        return Gang(
            namespace=namespace,
            terms=terms,
            bound=tuple(bound),
            waiting=tuple(pod for pod in living if pod.uid not in taken),
            succeeded=sum(pod.status.phase == "Succeeded" and pod.finished for pod in ordered),
            cardless=len(self._cardless.get(f"{namespace}/{terms.name}", ())) if terms.open else 0,
        )


def _youngest(members: Iterable[Pod]) -> GangTerms | None:
    """Return the terms of the last member that has valid ones: an open gang may grow and shrink."""
    for pod in reversed(list(members)):
        try:
            terms = gang_terms(pod)
        except InvalidDemand:
            continue
        if terms is not None and terms.open:
            return terms
    return None
