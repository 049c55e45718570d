"""Files, processes and mounts of this machine.

files       files that are there whole or not at all
private     directories that only we can have filled
foreign     files that others write
processes   processes with a safe identity
proc        the kernel's own record of other processes, which they cannot forge
inotify     the kernel's news of files written or closed
mounts      mounts of this process's mount namespace
selinux     labels of files for containers
"""
