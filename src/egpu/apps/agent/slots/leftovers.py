"""Ends processes of pods whose object is gone.

Such a pod's cards are already free. A forced deletion does not wait for the containers to end, and kubelet lets them
run for the grace period that the pod's author chose."""

import contextlib
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.slices import membership
from egpu.api import names
from egpu.apps.agent.slots import directories as layout
from egpu_base.system import proc

_PAGE = f"{names.SLICE_DIRECTORY}/{layout.POLICY_FILE}"


@dataclass(frozen=True)
class Leftovers:
    """A pod's possible leftovers: its control group (by its UID, "" for none), the slot directory of a container, and
    the policy page of its slice (None if others share it)."""

    pod_uid: str
    slot: Path
    policy: Path | None


def end_leftovers(leftovers: Iterable[Leftovers], pids: Iterable[int] | None = None) -> dict[Leftovers, list[int]]:
    """Kill every process in such a control group. Of those in no pod's, kill who sees such a directory as its own, or
    uses such a page. Looks at these pids, or at every process of the machine. Returns the pids for each leftover that
    had any."""
    looked_for = _LookedFor(tuple(leftovers))
    killed: dict[Leftovers, list[int]] = {}
    for pid in proc.pids() if pids is None else pids:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # Asked while the process is open: the pid may be reused by now.
                if found := proc.asked("what is left of a pod", looked_for.left_of, pid, None):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.setdefault(found, []).append(pid)
            finally:
                os.close(handle)
    return killed


class _LookedFor:
    def __init__(self, leftovers: Sequence[Leftovers]) -> None:
        self._our_groups = membership.control_groups(os.getpid())
        self._by_pod = {name: one for one in leftovers if one.pod_uid for name in membership.pod_names(one.pod_uid)}
        self._by_slot = {found: one for one in leftovers if (found := membership.identity(one.slot))}
        self._by_page = {
            found: one for one in leftovers if one.policy and (found := membership.identity(one.policy))
        }  # fmt: skip

    def left_of(self, pid: int) -> Leftovers | None:
        if pod := membership.pod_of(membership.control_groups(pid), self._our_groups):
            return self._by_pod.get(pod)  # whatever it shows
        directory = membership.seen_at(pid, names.SLICE_DIRECTORY)
        if directory in self._by_slot:
            return self._by_slot[directory]
        return next((self._by_page[page] for page in membership.pages_of(pid, _PAGE, self._by_page.keys())), None)
