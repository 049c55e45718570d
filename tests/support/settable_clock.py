"""The time of day as one process sees it, set by whoever tests: a library in its LD_PRELOAD adds to it.

The machine's own clock is everybody's, and time namespaces have no time of day.
"""

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

VARIABLE: Final = "EGPU_TEST_CLOCK"
EVERYBODY: Final = 0
_SETTING: Final = struct.Struct("<qq")

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile struct {
    int64_t pid, seconds;
} *setting;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("EGPU_TEST_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *setting, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) setting = mapped;
    close(file);
}

static int64_t added(void) {
    return setting != NULL && (setting->pid == 0 || setting->pid == getpid()) ? setting->seconds : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += added();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    *now = (struct timeval){at.tv_sec, at.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return to == NULL ? now.tv_sec : (*to = now.tv_sec);
}
"""


class SettableClock:
    """Of processes that are started while it is in the environment (`environment`)."""

    def __init__(self, directory: Path) -> None:
        self._setting = directory / "clock"
        self._setting.write_bytes(_SETTING.pack(EVERYBODY, 0))
        source, self._library = directory / "clock.c", directory / "libclock.so"
        source.write_text(_SOURCE)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", self._library, source], check=True)

    @contextlib.contextmanager
    def environment(self) -> Generator[None]:
        """This process's, and so that of all that it starts."""
        os.environ |= {"LD_PRELOAD": str(self._library), VARIABLE: str(self._setting)}
        try:
            yield
        finally:
            del os.environ["LD_PRELOAD"], os.environ[VARIABLE]

    def set(self, pid: int, seconds: int) -> None:
        """So much is added to the time of day that `pid` sees from now on, and to nobody else's."""
        with self._setting.open("r+b") as file:
            file.write(_SETTING.pack(pid, seconds))

    def seen(self) -> float:
        """The time of day in a process that is started now."""
        command = [sys.executable, "-c", "import time; print(time.time())"]
        return float(subprocess.run(command, capture_output=True, check=True).stdout)
