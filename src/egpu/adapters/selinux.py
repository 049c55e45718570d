"""SELinux labels for what containers get to see, where the kernel enforces them.

A process in a container (type container_t of the reference policy) may open files of the type container_file_t and not
those that hostPath directories have from their parents. Container runtimes label what kubelet has them relabel; nobody
asks them to for what a device plugin or a CDI specification mounts, so whoever makes such files labels them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

ENFORCE: Final = Path("/sys/fs/selinux/enforce")
CONTAINER_FILE: Final = "system_u:object_r:container_file_t:s0"
"""No categories: containers of any pod may open what they are shown."""
_ATTRIBUTE: Final = "security.selinux"


def enforcing() -> bool:
    """Whether SELinux is there and enforces its policy."""
    try:
        return ENFORCE.read_text().strip() == "1"
    except OSError:
        return False


def mount_option() -> str:
    """The option that labels a whole new file system, to be appended to others; nothing where nobody enforces."""
    return f',context="{CONTAINER_FILE}"' if enforcing() else ""


def label(directory: Path) -> None:
    """Label a directory and all below it for containers, links themselves; does nothing where nobody enforces.

    Raises OSError: this process may not.
    """
    if not enforcing():
        return
    for folder, directories, files in os.walk(directory):
        for name in (".", *directories, *files):
            _label(os.path.join(folder, name))


def _label(path: str) -> None:
    try:
        os.setxattr(path, _ATTRIBUTE, CONTAINER_FILE.encode() + b"\0", follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:  # what was mounted with a context has it, and takes no other
            raise
