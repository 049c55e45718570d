"""What is left of a pod that the cluster has forgotten.

Its cards are given back when its object is gone. Whoever deletes it by force does not wait for its containers to end,
and kubelet lets them go on for the grace period that the pod's author chose. So they are ended here.
"""

import contextlib
import os
import signal
from pathlib import Path

from egpu.adapters.slices import membership
from egpu.apps.agent.slots import directories as layout

_PAGE = f"{layout.CONTAINER_DIRECTORY}/{layout.POLICY_FILE}"


def end_remains(pod_uid: str, slot: Path, policy: Path | None) -> tuple[int, ...]:
    """End (SIGKILL) every process that the kernel says is in the pod's control group, sees the directory `slot` as its
    own, or is in the slice whose policy page is `policy` (None where others have that too); returns their pids."""
    directory, page = membership.identity(slot), None if policy is None else membership.identity(policy)
    killed: list[int] = []
    for pid in (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                # Asked with the process in our hands: the pid may be another's by now.
                if (
                    membership.in_pod(pid, pod_uid)
                    or (directory is not None and membership.seen_at(pid, layout.CONTAINER_DIRECTORY) == directory)
                    or (page is not None and page in membership.pages_of(pid, _PAGE))
                ):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.append(pid)
            finally:
                os.close(handle)
    return tuple(killed)
