"""What is left of a pod that the cluster has forgotten.

Its cards are given back when its object is gone. Whoever deletes it by force does not wait for its containers to end,
and kubelet lets them go on for the grace period that the pod's author chose. So they are ended here.
"""

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from egpu.adapters.slices import membership
from egpu.apps.agent.slots import directories as layout

_PAGE = f"{layout.CONTAINER_DIRECTORY}/{layout.POLICY_FILE}"


@dataclass(frozen=True)
class Remains:
    """What a pod may have left: its control group, the slot directory of a container, and the policy page of its slice
    (None where others have that too)."""

    pod_uid: str
    slot: Path
    policy: Path | None


def end_remains(remains: Iterable[Remains]) -> dict[Remains, list[int]]:
    """End (SIGKILL) every process that the kernel says is in such a control group, sees such a directory as its own, or
    has to do with such a page; returns their pids, of each of whom there were any."""
    looked_for = [
        (one, membership.pod_names(one.pod_uid), membership.identity(one.slot), _page_of(one)) for one in remains
    ]
    killed: dict[Remains, list[int]] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # Asked with the process in our hands: the pid may be another's by now.
                groups = {name for group in membership.control_groups(pid) for name in membership.names_in(group)}
                directory, pages = membership.seen_at(pid, layout.CONTAINER_DIRECTORY), membership.pages_of(pid, _PAGE)
                for one, pod, slot, page in looked_for:
                    if not pod.isdisjoint(groups) or (slot is not None and slot == directory) or page in pages:
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                        killed.setdefault(one, []).append(pid)
                        break
            finally:
                os.close(handle)
    return killed


def _page_of(one: Remains) -> membership.PageIdentity | None:
    return None if one.policy is None else membership.identity(one.policy)
