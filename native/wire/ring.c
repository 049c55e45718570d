#define _GNU_SOURCE
#include "ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(offsetof(struct shared_control, request_tail) == 64 && offsetof(struct shared_control, request_head) == 128 &&
                   offsetof(struct shared_control, executor_sleeps) == 192 && offsetof(struct shared_control, reply_tail) == 256 &&
                   offsetof(struct shared_control, reply_head) == 320 && offsetof(struct shared_control, client_sleeps) == 384,
               "the control page is as docs/wire.md says");

/* A ping-pong partner answers within a few microseconds; longer spinning would take a core away from it. */
#define SPIN_NS 20000

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int shared_create(void) {
    int fd = memfd_create("egpu-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, SHARED_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0) return fd;
    close(fd);
    return -1;
}

static uint8_t *map_twice(int fd, off_t offset, uint32_t bytes) {
    uint8_t *room = mmap(NULL, 2 * (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    for (int i = 0; i < 2; i++)
        if (mmap(room + (size_t)i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED) {
            munmap(room, 2 * (size_t)bytes);
            return NULL;
        }
    return room;
}

uint8_t *doubled(uint32_t bytes) {
    int fd = memfd_create("egpu-buffer", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    uint8_t *room = ftruncate(fd, bytes) == 0 ? map_twice(fd, 0, bytes) : NULL;
    close(fd);
    return room;
}

bool shared_map(struct shared *shared, int fd) {
    struct stat status;
    *shared = (struct shared){0};
    /* Unsealed memory could be cut off under a reader's feet. */
    int seals = fcntl(fd, F_GET_SEALS); /* -1: a file of a kind that cannot be sealed */
    if (fstat(fd, &status) != 0 || status.st_size != SHARED_BYTES || seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
    void *control = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) return false;
    shared->control = control;
    shared->requests = map_twice(fd, 4096, SHARED_RING_BYTES);
    shared->replies = map_twice(fd, 4096 + SHARED_RING_BYTES, SHARED_RING_BYTES);
    void *bulk = mmap(NULL, SHARED_BULK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096 + 2 * (off_t)SHARED_RING_BYTES);
    shared->bulk = bulk == MAP_FAILED ? NULL : bulk;
    if (shared->requests && shared->replies && shared->bulk) return true;
    shared_unmap(shared);
    return false;
}

void shared_unmap(struct shared *shared) {
    if (shared->control) munmap(shared->control, 4096);
    if (shared->requests) munmap(shared->requests, 2 * (size_t)SHARED_RING_BYTES);
    if (shared->replies) munmap(shared->replies, 2 * (size_t)SHARED_RING_BYTES);
    if (shared->bulk) munmap(shared->bulk, SHARED_BULK_BYTES);
    *shared = (struct shared){0};
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool shared_wait(_Atomic uint64_t *tail, uint64_t seen, _Atomic uint32_t *sleeps, int milliseconds) {
    uint64_t end = 0;
    for (uint32_t i = 0;; i++) {
        if (atomic_load_explicit(tail, memory_order_acquire) != seen) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (i % 64 == 63) {
            uint64_t now = now_ns();
            if (end == 0) end = now + SPIN_NS;
            if (now > end) break;
        }
    }
    atomic_store(sleeps, 1);
    if (atomic_load(tail) == seen) {
        struct timespec timeout = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
        syscall(SYS_futex, sleeps, FUTEX_WAIT, 1, &timeout, NULL, 0);
    }
    atomic_store(sleeps, 0);
    return atomic_load(tail) != seen;
}

void shared_wake(_Atomic uint32_t *sleeps) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(sleeps, memory_order_relaxed) == 0) return;
    atomic_store(sleeps, 0);
    syscall(SYS_futex, sleeps, FUTEX_WAKE, 1, NULL, NULL, 0);
}
