"""Whose slice a process on a card is in, also when it does not want to be found.

In this order: the session of an executor, which nothing in it can leave; the control group of its pod, and among that
pod's slices the policy page that the process sees or has mapped; outside of pods the page alone, and the slice of its
parent, or of a parent of that. So what a process of a pod shows tells it apart from its own pod's, and never makes it
another's. A process stays what it was, whatever it hides later: it is known by pid and start time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from egpu.adapters.slices import membership
from egpu.adapters.slices.membership import PageIdentity
from egpu_base.system import proc
from egpu_base.system.processes import Process

STRANGER_SECONDS: Final = 1.0
"""How long a process that is nobody's is not looked at again: it may have come before its slice was known."""


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


class Attribution:
    """Remembers, of the processes that it was asked for last, whose they are."""

    def __init__(self) -> None:
        self._known: dict[Process, Hashable] = {}
        self._strangers: dict[Process, float] = {}
        self._groups: dict[str, Hashable] = {}
        """Control groups of containers, by what their processes were known by otherwise."""

    def owners(
        self, pids: Iterable[int], slices: Iterable[WatchedSlice], *, now: float
    ) -> dict[int, tuple[Process, WatchedSlice]]:
        """By pid: the process, and its slice; strangers and the dead are left out."""
        pids = tuple(pids)
        watched = _Watched(tuple(slices) if pids else ())
        processes = {pid: process for pid in pids if (process := Process.of(pid)).start_time}
        self._groups = {group: key for group, key in self._groups.items() if key in watched.by_key}
        before, self._known = self._known, {}
        strangers, self._strangers = self._strangers, {}
        found: dict[int, tuple[Process, WatchedSlice]] = {}
        for pid, process in processes.items():
            if now - (since := strangers.get(process, -STRANGER_SECONDS)) < STRANGER_SECONDS:
                self._strangers[process] = since
                continue
            owner = watched.by_key.get(before.get(process)) or self._asked(process, watched)
            if owner is None:
                self._strangers[process] = now
            else:
                self._known[process] = owner.key
                found[pid] = process, owner
        return found

    def _asked(self, process: Process, watched: _Watched) -> WatchedSlice | None:
        found = proc.asked("whose", lambda pid: self._owner(pid, watched), process.pid, None)
        return found if process.is_alive() else None  # else it is of a later process with this pid

    def _owner(self, pid: int, watched: _Watched) -> WatchedSlice | None:
        if found := watched.of_session(pid):
            return found
        for each in itertools.chain((pid,), membership.ancestors(pid)):
            if each != pid and (found := watched.of_root(each)):
                return found
            groups = membership.control_groups(each) if watched.pods else frozenset[str]()
            if pod := membership.pod_of(groups, watched.our_groups):
                own = frozenset(group for group in groups if membership.pod_of((group,), watched.our_groups))
                return self._of_pod(each, watched.pods.get(pod, ()), own)
            if found := watched.of_page(each):
                return found
        return None

    def _of_pod(self, pid: int, candidates: Sequence[_OfPod], groups: frozenset[str]) -> WatchedSlice | None:
        """Of a pod with several containers: the one whose page it shows, or whose group it is, else one whose group
        nobody has shown yet."""
        slices = {one.slice.key: one.slice for one in candidates}
        if not any(one.is_mixed for one in candidates) and len(slices) <= 1:
            return next(iter(slices.values()), None)
        pages = {page: one.slice for one in candidates if (page := one.page)}
        if found := _of_page(pid, pages):
            self._groups |= dict.fromkeys(groups, found.key)
            return found
        known = (slices.get(self._groups.get(group)) for group in groups)
        if found := next((one for one in known if one is not None), None):
            return found
        shown = set(self._groups.values())
        alone = [one.slice for one in candidates if not one.is_mixed]
        return next((one for one in alone if one.key not in shown), next(iter(alone), None))


@dataclass(frozen=True)
class _OfPod:
    """A slice as a candidate for the processes of one pod."""

    slice: WatchedSlice
    page: PageIdentity | None
    is_mixed: bool


class _Watched:
    """The slices of one look, by what tells their processes."""

    def __init__(self, slices: tuple[WatchedSlice, ...]) -> None:
        self.by_key = {one.key: one for one in slices}
        self._by_session = {one.session: one for one in slices if one.session}
        self._by_root = {one.root.pid: one for one in slices if one.root is not None and one.root.is_alive()}
        self._by_page: dict[PageIdentity, WatchedSlice] = {}
        self.pods: dict[str, list[_OfPod]] = {}
        """By the name of the pod's control group."""
        for one in slices:
            page = None if one.session else membership.identity(one.policy)
            if page is not None:
                self._by_page[page] = one
            for uid in () if one.session else (*one.pods, *one.mixed):
                for name in membership.pod_names(uid):
                    self.pods.setdefault(name, []).append(_OfPod(one, page, uid in one.mixed))
        self.our_groups = membership.control_groups(os.getpid()) if self.pods else frozenset[str]()

    def of_session(self, pid: int) -> WatchedSlice | None:
        try:
            return self._by_session.get(os.getsid(pid))
        except OSError:
            return None  # it is gone

    def of_root(self, pid: int) -> WatchedSlice | None:
        return self._by_root.get(pid)

    def of_page(self, pid: int) -> WatchedSlice | None:
        return _of_page(pid, self._by_page)


def _of_page(pid: int, pages: Mapping[PageIdentity, WatchedSlice]) -> WatchedSlice | None:
    places = {one.page or one.policy.name for one in pages.values()}
    seen = (page for place in places for page in membership.pages_of(pid, place, pages.keys()))
    return next((pages[page] for page in seen), None)
