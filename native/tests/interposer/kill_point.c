/* Compiled into the interposer for the storm: dies at a given store to the shared file. */
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>

static long left;

void kill_point(void);
void kill_point(void) {
    if (__atomic_load_n(&left, __ATOMIC_RELAXED) > 0 &&
        __atomic_sub_fetch(&left, 1, __ATOMIC_RELAXED) == 0)
        kill(getpid(), SIGKILL);
}

__attribute__((visibility("default"))) void egpu_kill_after(long stores);
void egpu_kill_after(long stores) { left = stores; }
