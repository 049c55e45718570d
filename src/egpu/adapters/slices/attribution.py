"""Whose slice a process on a card is in, also when it does not want to be found.

In this order: the session of an executor, which nothing in it can leave; the policy page that the process sees or has
mapped; the control group of its pod; the slice of its parent, or of whoever is above that. Whose a process once was it
stays, whatever it hides later: it is known by pid and start time.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from egpu.adapters.processes import Process
from egpu.adapters.slices import membership
from egpu.adapters.slices.membership import PageIdentity

STRANGER_SECONDS: Final = 1.0
"""How long a process that is nobody's is not looked at again: it may have come before its slice was known."""


@dataclass(frozen=True, kw_only=True)
class WatchedSlice:
    """A slice as it is watched, and how its processes are found.

    `session`: of an executor, which leads it; its count is our own word, and may be above a limit that was lowered:
    `granted_bytes` says by card how much of that was given to it. 0: its processes are those that have its policy page
    mapped, or see it at `page` (absolute, in their own file system), those in the control groups of the pods with these
    UIDs, and the descendants of these and of `root`. `kept_bytes`: by card, what it was allowed before its limit
    was lowered, and may keep until it is to give it back.
    """

    key: Hashable
    policy: Path
    usage: Path
    session: int = 0
    granted_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    kept_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    page: str = ""
    pods: tuple[str, ...] = ()
    root: Process | None = None

    @property
    def seen_at(self) -> str:
        """Where its page may be in a process: a path, or the name alone of the mapped file."""
        return self.page or self.policy.name


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
            owner = watched.by_key.get(before.get(process)) or self._owner(process, watched)
            if owner is None:
                self._strangers[process] = now
            else:
                self._known[process] = owner.key
                found[pid] = process, owner
        return found

    def _owner(self, process: Process, watched: _Watched) -> WatchedSlice | None:
        found = watched.of_session(process.pid) or watched.of_page(process.pid)
        groups = membership.control_groups(process.pid) if watched.pods else frozenset[str]()
        if found is not None:
            for uid in found.pods:
                self._groups |= {group: found.key for group in groups if membership.is_of_pod(group, uid)}
            return found
        return self._of_groups(groups, watched) or watched.of_ancestors(process.pid)

    def _of_groups(self, groups: frozenset[str], watched: _Watched) -> WatchedSlice | None:
        """Of a pod with several containers: that one whose group it is, else one whose group nobody has shown yet."""
        for group in groups:
            if group in self._groups:
                return watched.by_key[self._groups[group]]
        for uid, candidates in watched.pods.items():
            if any(membership.is_of_pod(group, uid) for group in groups):
                shown = set(self._groups.values())
                return next((one for one in candidates if one.key not in shown), candidates[0])
        return None


class _Watched:
    """The slices of one look, by what tells their processes."""

    def __init__(self, slices: tuple[WatchedSlice, ...]) -> None:
        self.by_key = {one.key: one for one in slices}
        self._by_session = {one.session: one for one in slices if one.session}
        self._by_root = {one.root.pid: one for one in slices if one.root is not None and one.root.is_alive()}
        self._by_page: dict[PageIdentity, WatchedSlice] = {}
        self.pods: dict[str, list[WatchedSlice]] = {}
        for one in slices:
            page = None if one.session else membership.identity(one.policy)
            if page is not None:
                self._by_page[page] = one
            for uid in () if one.session else one.pods:
                self.pods.setdefault(uid, []).append(one)
        self._pages = {one.seen_at for one in self._by_page.values()}

    def of_session(self, pid: int) -> WatchedSlice | None:
        try:
            return self._by_session.get(os.getsid(pid))
        except OSError:
            return None  # it is gone

    def of_page(self, pid: int) -> WatchedSlice | None:
        seen = (each for page in self._pages for each in membership.pages_of(pid, page))
        return next((self._by_page[each] for each in seen if each in self._by_page), None)

    def of_ancestors(self, pid: int) -> WatchedSlice | None:
        for above in membership.ancestors(pid):
            if found := self._by_root.get(above) or self.of_page(above):
                return found
        return None
