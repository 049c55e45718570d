"""Whose slice a process on a card is in, also when it does not want to be found.

In this order: the session of an executor, which nothing in it can leave; the control group of its pod, and among that
pod's slices the policy page that the process sees or has mapped; outside of pods the page alone, and the slice of its
parent, or of a parent of that. So what a process of a pod shows tells it apart from its own pod's, and never makes it
another's. A process stays what it was, whatever it hides later: it is known by pid and start time.

Mappings take the kernel 0.3 ms a thousand, and a process may have millions. So a look reads them last, only where
nothing else tells, and for MAPPINGS_SECONDS at most; the next look, which is due at once, goes on. No limit waits for
that: a process of a pod is charged to its pod's slice before its mappings are read, and the callers give the processes
with the most memory first. All other questions cost the same for every process, whatever it does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from egpu.adapters.slices import membership
from egpu.adapters.slices.membership import PageIdentity
from egpu_base.system import proc
from egpu_base.system.processes import Process

STRANGER_SECONDS: Final = 1.0
"""How long a process that is nobody's is not looked at again: it may have come before its slice was known."""
MOST_STRANGER_SECONDS: Final = 16.0
"""The same after several looks: each waits twice as long as the one before, until a slice is new."""
MAPPINGS_SECONDS: Final = 0.01
"""How long one look reads mappings. The last process may take `proc.MAX_SECONDS` more."""


@dataclass(frozen=True, kw_only=True)
class WatchedSlice:
    """A slice as it is watched, and how its processes are found.

    `session`: of an executor, which leads it; its count is our own word, and may be above a limit that was lowered:
    `granted_bytes` says by card how much of that was given to it. 0: its processes are those that have its policy page
    mapped, or see it at `page` (absolute, in their own file system), those in the control groups of the pods with these
    UIDs, and the descendants of these and of `root`. `mixed`: other pods of the slice, whose processes may as well be
    in none, so that only the page tells. `kept_bytes`: by card, what it was allowed before its limit was lowered, and
    may keep until it is to give it back.
    """

    key: Hashable
    policy: Path
    usage: Path
    session: int = 0
    granted_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    kept_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    page: str = ""
    pods: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    root: Process | None = None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The key of a process's slice, None for a stranger's. Until the mappings of `unread` are read, it is the one that
    is charged; if they show one of the `pages`, then that one's slice is it. `groups`: of its container."""

    key: Hashable = None
    unread: tuple[int, ...] = ()
    pages: Mapping[PageIdentity, Hashable] = field(default_factory=dict[PageIdentity, Hashable])
    groups: frozenset[str] = frozenset()


_STRANGER: Final = _Answer()


class Attribution:
    """Remembers, of the processes that it was asked for last, whose they are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._known: dict[Process, _Answer] = {}
        self._strangers: dict[Process, _Rest] = {}
        self._present: frozenset[Hashable] = frozenset()
        """The slices of the last look, and their pages."""
        self._groups: dict[str, Hashable] = {}
        """Control groups of containers, by what their processes were known by otherwise."""
        self._mappings = _Mappings(clock)

    @property
    def is_behind(self) -> bool:
        """Return whether the last look left mappings to the next one."""
        return self._mappings.is_behind

    def owners(
        self, pids: Iterable[int], slices: Iterable[WatchedSlice], *, now: float
    ) -> dict[int, tuple[Process, WatchedSlice]]:
        """By pid: the process, and its slice; strangers and the dead are left out. Asks in the order of `pids`."""
        pids = tuple(pids)
        watched = _Watched(tuple(slices) if pids else ())
        processes = {pid: process for pid in pids if (process := Process.of(pid)).start_time}
        self._groups = {group: key for group, key in self._groups.items() if key in watched.by_key}
        present = frozenset((*watched.by_key, *watched.pages))
        is_new, self._present = not self._present.issuperset(present), present
        self._mappings.begin(watched, now=now, is_new=is_new)
        before, self._known = self._known, {}
        strangers, self._strangers = self._strangers, {}
        found: dict[int, tuple[Process, WatchedSlice]] = {}
        for pid, process in processes.items():
            rest = strangers.get(process)
            if rest is not None and (rest := rest.shortened(now) if is_new else rest).until > now:
                self._strangers[process] = rest
                continue
            answer = before.get(process, _STRANGER)
            if answer.key not in watched.by_key and not (answer.unread and not is_new):
                answer = self._asked(process, watched)
            elif answer.unread:
                answer = self._read(process, answer)
            if answer.key in watched.by_key:
                found[pid] = process, watched.by_key[answer.key]
            if answer.key in watched.by_key or answer.unread:
                self._known[process] = answer
                if answer.unread and rest is not None:
                    self._strangers[process] = rest  # how often it was one: it may turn out to be one again
            else:
                self._strangers[process] = _Rest.after(rest, now)
        return found

    def _asked(self, process: Process, watched: _Watched) -> _Answer:
        found = proc.asked("whose", lambda pid: self._owner(pid, watched), process.pid, _STRANGER)
        return self._read(process, found) if process.is_alive() else _STRANGER  # else it is of a later one's

    def _owner(self, pid: int, watched: _Watched) -> _Answer:
        """Return what tells without mappings."""
        if found := watched.of_session(pid):
            return _Answer(key=found.key)
        unread: list[int] = []
        for each in watched.with_ancestors(pid):
            if each != pid and (found := watched.of_root(each)):
                return _Answer(key=found.key)
            pod, groups = watched.pod_of(each) if watched.pods else ("", frozenset[str]())
            if pod:
                return self._of_pod(each, watched, watched.pods.get(pod, ()), groups)
            if (page := watched.page_at(each)) is not None:
                return _Answer(key=watched.pages[page])
            unread.append(each)
        return _Answer(unread=tuple(unread), pages=watched.pages) if watched.pages else _STRANGER

    def _of_pod(self, pid: int, watched: _Watched, candidates: Sequence[_OfPod], groups: frozenset[str]) -> _Answer:
        """Of a pod with several containers: the one whose page it shows, or whose group it is, else one whose group
        nobody has shown yet."""
        keys = {one.slice.key for one in candidates}
        if not any(one.is_mixed for one in candidates) and len(keys) <= 1:
            return _Answer(key=next(iter(keys), None))
        pages = {one.page: one.slice.key for one in candidates if one.page}
        if (page := watched.page_at(pid)) in pages:
            self._groups |= dict.fromkeys(groups, pages[page])
            return _Answer(key=pages[page])
        shown = set(self._groups.values())
        alone = [one.slice.key for one in candidates if not one.is_mixed]
        of_nobody = next((key for key in alone if key not in shown), next(iter(alone), None))
        return _Answer(key=of_nobody, unread=(pid,), pages=pages, groups=groups)

    def _read(self, process: Process, answer: _Answer) -> _Answer:
        """Return the answer after mappings, as far as there is time. One that fails shows nothing."""
        known = (self._groups.get(group) for group in answer.groups)
        if (of_group := next((key for key in known if key in answer.pages.values()), None)) is not None:
            return _Answer(key=of_group)
        for at, pid in enumerate(answer.unread):
            shown = proc.asked("mappings", self._mappings.of, pid, set[PageIdentity]())
            if shown is None:
                return replace(answer, unread=answer.unread[at:])
            if (found := next((answer.pages[page] for page in shown if page in answer.pages), None)) is not None:
                self._groups |= dict.fromkeys(answer.groups, found)
                return _Answer(key=found) if process.is_alive() else _STRANGER
        return _Answer(key=answer.key)


@dataclass(frozen=True)
class _Rest:
    """The time during which a stranger is not asked again."""

    until: float
    seconds: float

    @classmethod
    def after(cls, before: _Rest | None, now: float) -> _Rest:
        seconds = STRANGER_SECONDS if before is None else min(2 * before.seconds, MOST_STRANGER_SECONDS)
        return cls(now + seconds, seconds)

    def shortened(self, now: float) -> _Rest:
        """Return the rest when there is a new slice, which may be the process's."""
        return _Rest(min(self.until, now + STRANGER_SECONDS), STRANGER_SECONDS)


class _Mappings:
    """The policy pages that processes have mapped, read for a limited time in each look.

    Answers are kept for a while, so that a process with many ancestors is read to its end in several looks, and an
    ancestor of many is read once.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Process, tuple[float, set[PageIdentity]]] = {}
        self._wanted = frozenset[PageIdentity]()
        self._now = 0.0
        self._until: float | None = None
        self.is_behind = False

    def begin(self, watched: _Watched, *, now: float, is_new: bool) -> None:
        """Begin a look; `is_new`: there are other pages than before."""
        oldest = now if is_new else now - STRANGER_SECONDS
        self._kept = {process: (at, pages) for process, (at, pages) in self._kept.items() if at > oldest}
        self._wanted = frozenset(watched.pages)
        self._now, self._until, self.is_behind = now, None, False

    def of(self, pid: int) -> set[PageIdentity] | None:
        """Return the pages that a process has mapped; None if this look has no time left to read them."""
        if self._until is None:
            self._until = self._clock() + MAPPINGS_SECONDS
        elif self._clock() >= self._until:
            self.is_behind = True
            return None
        process = Process.of(pid)
        if process not in self._kept:
            self._kept[process] = self._now, membership.pages_mapped(pid, self._wanted)
        return self._kept[process][1]


@dataclass(frozen=True)
class _OfPod:
    """A slice as a candidate for the processes of one pod."""

    slice: WatchedSlice
    page: PageIdentity | None
    is_mixed: bool


class _Watched:
    """The slices of one look, by what tells their processes.

    Answers about a process are kept for the look: many processes have the same ancestors. The kernel gives a pid again
    only after all others, so a look sees one process by it; `Attribution` asks again whether a process is the same.
    """

    def __init__(self, slices: tuple[WatchedSlice, ...]) -> None:
        self.by_key = {one.key: one for one in slices}
        self._by_session = {one.session: one for one in slices if one.session}
        self._by_root = {one.root.pid: one for one in slices if one.root is not None and one.root.is_alive()}
        self.pages: dict[PageIdentity, Hashable] = {}
        self.places: set[str] = set()
        """Where processes see these pages, as far as that is known."""
        self.pods: dict[str, list[_OfPod]] = {}
        """By the name of the pod's control group."""
        for one in slices:
            page = None if one.session else membership.identity(one.policy)
            if page is not None:
                self.pages[page] = one.key
                self.places |= {one.page} - {""}
            for uid in () if one.session else (*one.pods, *one.mixed):
                for name in membership.pod_names(uid):
                    self.pods.setdefault(name, []).append(_OfPod(one, page, uid in one.mixed))
        self._pod_of: dict[frozenset[str], tuple[str, frozenset[str]]] = {}
        self._parents: dict[int, int] = {}
        self._groups: dict[int, frozenset[str]] = {}
        self._seen: dict[int, PageIdentity | None] = {}
        self.our_groups = membership.control_groups(os.getpid()) if self.pods else frozenset[str]()

    def of_session(self, pid: int) -> WatchedSlice | None:
        try:
            return self._by_session.get(os.getsid(pid))
        except OSError:
            return None  # it is gone

    def of_root(self, pid: int) -> WatchedSlice | None:
        return self._by_root.get(pid)

    def pod_of(self, pid: int) -> tuple[str, frozenset[str]]:
        """Return the name of the control group of a process's pod, and which of its groups are in it."""
        if pid not in self._groups:
            self._groups[pid] = membership.control_groups(pid)
        groups = self._groups[pid]
        if groups not in self._pod_of:
            own = frozenset(group for group in groups if membership.pod_of((group,), self.our_groups))
            self._pod_of[groups] = membership.pod_of(groups, self.our_groups), own
        return self._pod_of[groups]

    def page_at(self, pid: int) -> PageIdentity | None:
        """Return the page that a process sees at its place."""
        if pid not in self._seen:
            seen = (page for place in self.places for page in membership.page_at(pid, place, self.pages.keys()))
            self._seen[pid] = next(seen, None)
        return self._seen[pid]

    def with_ancestors(self, pid: int) -> Iterator[int]:
        """Yield a process, its parent, and so on."""
        yield pid
        yield from membership.ancestors(pid, self._parents)
