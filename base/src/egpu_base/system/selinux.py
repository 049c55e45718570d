"""SELinux labels of files for containers, where the kernel enforces them.

A process in a container (type container_t of the reference policy) may open files of the type container_file_t and not
those that hostPath directories inherit from their parents. Container runtimes relabel only the volumes that kubelet
names, not mounts of a device plugin or a CDI specification. So the maker of such files labels them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

ENFORCE: Final = Path("/sys/fs/selinux/enforce")
CONTAINER_FILE: Final = "system_u:object_r:container_file_t:s0"
"""A label without categories, so that containers of any pod may open the files."""
_ATTRIBUTE: Final = "security.selinux"


def enforcing() -> bool:
    """Return whether SELinux is enabled and enforces its policy."""
    try:
        return ENFORCE.read_text().strip() == "1"
    except OSError:
        return False


def mount_option() -> str:
    """Return the mount option that labels a whole new file system, to append to others; "" without enforcement."""
    return f',context="{CONTAINER_FILE}"' if enforcing() else ""


def label(directory: Path) -> None:
    """Label a directory and all below it for containers, links too; do nothing without enforcement.

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
        if error.errno != errno.ENOTSUP:  # a mount with a context has its label, and takes no other
            raise
