#define _GNU_SOURCE
#include "ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/kernel.h"
#include "common/thread.h"

_Static_assert(offsetof(struct shared_control, requests) == 128 &&
                   offsetof(struct shared_control, request_head) == 256 &&
                   offsetof(struct shared_control, executor) == 384 &&
                   offsetof(struct shared_control, replies) == 512 &&
                   offsetof(struct shared_control, reply_head) == 640 &&
                   offsetof(struct shared_control, client) == 768 &&
                   sizeof(struct shared_control) <= 4096,
               "the control page is as docs/internals/wire.md says");

/* A ping-pong partner answers within a few microseconds. Longer spinning would take a core from
 * it. */
#define SPIN_NS 20000

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A reader must never sleep while a frame is there. The writer stores its tail, then reads
 * `sleeps`; the reader sets `sleeps`, then reads the tail. Each side needs its store to be visible
 * before its load. A fence in the writer would cost a cache miss per call. So where the kernel has
 * a barrier for all processors (membarrier), the reader runs it before it sleeps, and writers only
 * register. */
static bool registered;

static int membarrier(int command) { return (int)syscall(SYS_membarrier, command, 0, 0); }

int shared_create(void) {
    int fd = kernel_memfd("egpu-session", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, SHARED_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0) return fd;
    close(fd);
    return -1;
}

static uint8_t *map_twice(int fd, off_t offset, uint32_t bytes) {
    uint8_t *room = mmap(NULL, 2 * (size_t)bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    for (int i = 0; i < 2; i++)
        if (mmap(room + (size_t)i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 fd, offset) == MAP_FAILED) {
            munmap(room, 2 * (size_t)bytes);
            return NULL;
        }
    return room;
}

uint8_t *doubled(uint32_t bytes) {
    int fd = kernel_memfd("egpu-buffer", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    uint8_t *room = ftruncate(fd, bytes) == 0 ? map_twice(fd, 0, bytes) : NULL;
    close(fd);
    return room;
}

bool shared_map(struct shared *shared, int fd) {
    struct stat status;
    *shared = (struct shared){0};
    /* Unsealed memory could be truncated while a reader uses it. */
    int seals = fcntl(fd, F_GET_SEALS); /* -1: this kind of file cannot be sealed */
    if (kernel_fstat(fd, &status) != 0 || status.st_size != SHARED_BYTES || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0)
        return false;
    void *control = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) return false;
    shared->control = control;
    shared->requests = map_twice(fd, 4096, SHARED_RING_BYTES);
    shared->replies = map_twice(fd, 4096 + SHARED_RING_BYTES, SHARED_RING_BYTES);
    void *bulk = mmap(NULL, SHARED_BULK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      4096 + 2 * (off_t)SHARED_RING_BYTES);
    shared->bulk = bulk == MAP_FAILED ? NULL : bulk;
    if (shared->requests && shared->replies && shared->bulk) {
        shared_register();
        return true;
    }
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

static void copy_words(void *to, const void *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 8)
        memcpy((uint8_t *)to + at, (const uint8_t *)from + at, 8);
}

void shared_publish_short(struct shared_tail *tail, uint64_t end,
                          const uint64_t frame[SHARED_SHORT_WORDS], size_t bytes, uint8_t *slot) {
    atomic_store_explicit(&tail->beside, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; 8 * i < bytes; i++)
        atomic_store_explicit(&tail->frame[i], frame[i], memory_order_relaxed);
    atomic_store_explicit(&tail->beside, end, memory_order_release);
    shared_publish(tail, end);
    /* Written to the ring last: the reader should not wait for that cache line. A reader misses the
     * frame beside the tail only if another frame has replaced it, and that is written after this
     * copy. */
    copy_words(slot, frame, bytes);
}

bool shared_beside(struct shared_tail *tail, uint64_t start, uint64_t end,
                   uint64_t frame[SHARED_SHORT_WORDS]) {
    if (end - start > SHARED_SHORT_BYTES ||
        atomic_load_explicit(&tail->beside, memory_order_acquire) != end)
        return false;
    for (size_t i = 0; 8 * i < end - start; i++)
        frame[i] = atomic_load_explicit(&tail->frame[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    /* the writer is ahead: the frame is in the ring */
    if (atomic_load_explicit(&tail->beside, memory_order_relaxed) != end) return false;
    /* the header's length; if it differs, other frames come before this one */
    return shared_frame(frame[0] >> 32) == end - start;
}

void shared_register(void) {
    if (!registered && thread_alone())
        registered = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
}

void shared_reader_init(struct shared_reader *reader) {
    int known = membarrier(MEMBARRIER_CMD_QUERY);
    atomic_store(&reader->barriers, known > 0 && known & MEMBARRIER_CMD_GLOBAL_EXPEDITED &&
                                        membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0);
}

bool shared_wait(struct shared_tail *tail, uint64_t seen, struct shared_reader *reader,
                 int milliseconds) {
    uint64_t end = 0;
    for (uint32_t i = 0;; i++) {
        if (atomic_load_explicit(&tail->at, memory_order_acquire) != seen) return true;
        thread_pause();
        if (i % 64 == 63) {
            uint64_t now = clock_now_ns();
            if (end == 0) end = now + SPIN_NS;
            if (now > end) break;
        }
    }
    atomic_store(&reader->sleeps, 1);
    if (atomic_load_explicit(&reader->barriers, memory_order_relaxed) &&
        membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0) {
        /* The kernel refuses it here. From now on the writer uses fences, but it may just have
         * written without one: sleep briefly. */
        atomic_store(&reader->barriers, 0);
        milliseconds = 1;
    }
    if (atomic_load(&tail->at) == seen) {
        struct timespec timeout = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
        syscall(SYS_futex, &reader->sleeps, FUTEX_WAIT, 1, &timeout, NULL, 0);
    }
    atomic_store(&reader->sleeps, 0);
    return atomic_load(&tail->at) != seen;
}

void shared_wake(struct shared_reader *reader) {
    if (registered && atomic_load_explicit(&reader->barriers, memory_order_relaxed))
        atomic_signal_fence(memory_order_seq_cst);
    else
        atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&reader->sleeps, memory_order_relaxed) == 0) return;
    atomic_store(&reader->sleeps, 0);
    syscall(SYS_futex, &reader->sleeps, FUTEX_WAKE, 1, NULL, NULL, 0);
}
