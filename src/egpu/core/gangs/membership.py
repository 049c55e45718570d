"""Gangs: groups of pods that run all together or not at all, named by annotations of their pods.

A gang is its living members: the pods of one namespace that name it and are neither finished nor being deleted. It is
*whole* when as many are bound as its size says. Members that succeeded count as bound while others of the gang still
are: a worker that finished early, and is not created again, must not keep a lost one from coming back.

`egpu.core.gangs.placing` decides where the members fit together.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from egpu.api import names
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import InvalidDemand

DEFAULT_TIMEOUT_SECONDS: Final = 60
MAX_OFFERS: Final = 16_384
"""Waiting members whose nodes are remembered. The scheduler may ask about a pod before the watch shows it, or after its
end, so the number of known pods is no bound."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""The name is a label's value too."""
_DURATION: Final = re.compile(r"([0-9]{1,9})([smh]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class GangTerms:
    """The name, size and timeout of a gang, by the annotations of one pod."""

    name: str
    size: int
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS


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
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= names.MAX_GANG_SIZE:
        reason = f"{text!r} is not a number of pods from 1 to {names.MAX_GANG_SIZE}"
        raise InvalidDemand(_field(names.GANG_SIZE), reason)
    return GangTerms(name, int(text), _timeout(pod.annotations.get(names.GANG_TIMEOUT)))


def _timeout(text: str | None) -> int:
    if text is None:
        return DEFAULT_TIMEOUT_SECONDS
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 1 <= seconds <= names.MAX_GANG_TIMEOUT_SECONDS:
        most = names.MAX_GANG_TIMEOUT_SECONDS
        reason = f"{text!r} is not a time from 1 s to {most} s; write seconds, or a number with s, m or h"
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
        for key, ours, theirs in (
            (names.GANG_SIZE, terms.size, said.size),
            (names.GANG_TIMEOUT, terms.timeout_seconds, said.timeout_seconds),
        ):
            if ours != theirs:
                reason = f"is {ours}, and {theirs} in pod {other.name} of the gang {terms.name}; write the same"
                return InvalidDemand(_field(key), reason)
    if len(living) >= terms.size:
        members = ", ".join(sorted(one.name for one in living))
        return InvalidDemand(_field(names.GANG), f"the gang {terms.name} already has {terms.size} members ({members})")
    return None


def _living(pod: Pod) -> bool:
    return not pod.finished and pod.metadata.deletion_timestamp is None


@dataclass(frozen=True)
class Gang:
    """A gang as its pods show it, by the terms of one of them. `waiting` are sorted by age and name."""

    namespace: str
    terms: GangTerms
    bound: tuple[Pod, ...]
    waiting: tuple[Pod, ...]
    succeeded: int

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.terms.name}"

    @property
    def existing(self) -> int:
        """The number of members, as this module defines them."""
        return len(self.bound) + len(self.waiting) + (self.succeeded if self.bound else 0)

    @property
    def partial(self) -> bool:
        """True if some members run while others wait, which must not last."""
        return bool(self.waiting) and 0 < len(self.bound) < self.terms.size

    def problem(self) -> str:
        """Return why no member can be placed, whatever room there is; "" if all exist and agree."""
        size, name = self.terms.size, self.terms.name
        for other in (*self.bound, *self.waiting):
            try:
                terms = gang_terms(other)
            except InvalidDemand as error:
                return f"gang {name}: pod {other.name}: {error}"
            if terms != self.terms:
                return f"gang {name}: its pods disagree on size or time limit; create them again"
        if self.existing < size:
            return f"gang {name}: {self.existing} of {size} members exist"
        if len(self.bound) + len(self.waiting) > size:
            return f"gang {name}: {len(self.bound) + len(self.waiting)} members exist, its size is {size}"
        return ""


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
        self._keys: dict[str, str] = {}
        self._offers: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def pod_changed(self, pod: Pod) -> None:
        name = pod.annotations.get(names.GANG)
        if name is None:
            return
        key = f"{pod.namespace}/{name}"
        self._keys[pod.uid] = key
        self._members.setdefault(key, {})[pod.uid] = pod
        if pod.spec.node_name or not _living(pod):
            self._offers.pop(pod.uid, None)

    def pod_deleted(self, uid: str) -> None:
        self._offers.pop(uid, None)
        key = self._keys.pop(uid, None)
        if key is not None:
            del self._members[key][uid]
            if not self._members[key]:
                del self._members[key]

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
        return self._gang(pod.namespace, terms, {pod.uid: pod} | members)

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
        bound = [pod for pod in living if pod.spec.node_name or self._is_held(pod.uid)]
        taken = {pod.uid for pod in bound}
        return Gang(
            namespace=namespace,
            terms=terms,
            bound=tuple(bound),
            waiting=tuple(pod for pod in living if pod.uid not in taken),
            succeeded=sum(pod.status.phase == "Succeeded" and pod.finished for pod in ordered),
        )
