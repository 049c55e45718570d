#include "physical.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

/* protects the lists, and the last references of shared ones */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct physical *shared_list;
static struct physical *own_list;

static void list_own(struct physical *physical) {
    pthread_mutex_lock(&lock);
    physical->after = own_list;
    if (own_list) own_list->before = physical;
    own_list = physical;
    pthread_mutex_unlock(&lock);
}

/* With the lock. */
static void unlist_own(const struct physical *physical) {
    if (physical->imported) return;
    if (physical->before)
        physical->before->after = physical->after;
    else
        own_list = physical->after;
    if (physical->after) physical->after->before = physical->before;
}

static struct physical *new_physical(struct machine *machine, struct sim_card *card) {
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical) return NULL;
    physical->machine = machine;
    physical->card = card ? machine_memory_of(machine, card) : NULL;
    atomic_store(&physical->refs, 1);
    return physical;
}

int physical_create(struct machine *machine, struct sim_card *card, uint32_t chunks,
                    struct physical **out) {
    struct physical *physical = new_physical(machine, card);
    if (!physical) return ENOBUFS;
    int error = machine_take_chunks(machine, card, chunks, &physical->runs, &physical->run_count);
    if (error) {
        free(physical);
        return error;
    }
    physical->chunk_count = chunks;
    list_own(physical);
    *out = physical;
    return 0;
}

void physical_retain(struct physical *physical) { atomic_fetch_add(&physical->refs, 1); }

void physical_release(struct physical *physical) {
    pthread_mutex_lock(&lock);
    bool last = atomic_fetch_sub(&physical->refs, 1) == 1;
    if (last && physical->shared) {
        struct physical **at = &shared_list;
        while (*at != physical) at = &(*at)->next;
        *at = physical->next;
    }
    if (last) unlist_own(physical);
    pthread_mutex_unlock(&lock);
    if (!last) return;
    if (physical->shared)
        machine_drop_shared(physical->machine, physical->ref);
    else
        machine_give_chunks(physical->machine, physical->card, physical->runs, physical->run_count);
    free(physical->runs);
    free(physical);
}

static void list_shared(struct physical *physical) {
    physical->shared = true;
    physical->next = shared_list;
    shared_list = physical;
}

int physical_share(struct physical *physical) {
    int error = 0;
    pthread_mutex_lock(&lock);
    if (!physical->shared) {
        error = machine_share_chunks(physical->machine, physical->card, physical->runs,
                                     physical->run_count, &physical->ref);
        if (!error) list_shared(physical);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int physical_import(struct machine *machine, struct shared_ref ref, struct physical **out) {
    int error = 0;
    pthread_mutex_lock(&lock);
    for (struct physical *at = shared_list; at; at = at->next)
        if (at->ref.index == ref.index && at->ref.generation == ref.generation) {
            atomic_fetch_add(&at->refs, 1);
            *out = at;
            pthread_mutex_unlock(&lock);
            return 0;
        }
    struct physical *physical = new_physical(machine, NULL);
    if (!physical)
        error = ENOBUFS;
    else {
        error = machine_hold_chunks(machine, ref, &physical->card, &physical->runs,
                                    &physical->run_count);
        for (size_t i = 0; !error && i < physical->run_count; i++)
            physical->chunk_count += physical->runs[i].count;
        physical->ref = ref;
        physical->imported = true;
        if (error)
            free(physical);
        else {
            list_shared(physical);
            *out = physical;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int physical_map(const struct physical *physical, uint64_t address) {
    char *at = (char *)(uintptr_t)address;
    for (size_t i = 0; i < physical->run_count; i++) {
        size_t length = (size_t)physical->runs[i].count * SIM_CHUNK_BYTES;
        off_t offset = (off_t)(physical->card->memory_offset +
                               (uint64_t)physical->runs[i].first * SIM_CHUNK_BYTES);
        if (mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->machine->fd,
                 offset) == MAP_FAILED)
            return ENOBUFS;
        at += length;
    }
    /* A forked child has no CUDA, and must not change its parent's card. */
    madvise((void *)(uintptr_t)address, (size_t)physical->chunk_count * SIM_CHUNK_BYTES,
            MADV_DONTFORK);
    return 0;
}

int physical_populate(const struct physical *physical, uint64_t offset, uint64_t bytes) {
    /* Host addresses are contiguous, file offsets are not: go through the runs. */
    for (size_t i = 0; i < physical->run_count && bytes; i++) {
        uint64_t run_bytes = (uint64_t)physical->runs[i].count << SIM_CHUNK_SHIFT;
        if (offset >= run_bytes) {
            offset -= run_bytes;
            continue;
        }
        uint64_t part = run_bytes - offset < bytes ? run_bytes - offset : bytes;
        uint64_t at = physical->card->memory_offset +
                      ((uint64_t)physical->runs[i].first << SIM_CHUNK_SHIFT) + offset;
        int rc;
        do rc = fallocate(physical->machine->fd, 0, (off_t)at, (off_t)part);
        while (rc < 0 && errno == EINTR);
        if (rc < 0) return errno;
        bytes -= part;
        offset = 0;
    }
    return 0;
}

struct physical *physical_own(void) { return own_list; }

bool physical_any_shared(void) { return shared_list != NULL; }

void physical_leave(struct physical *physical) {
    machine_give_chunks(physical->machine, physical->card, physical->runs, physical->run_count);
    free(physical->runs);
    physical->runs = NULL;
    physical->run_count = 0;
}

int physical_return(struct physical *physical, struct sim_card *card) {
    physical->card = machine_memory_of(physical->machine, card);
    return machine_take_chunks(physical->machine, physical->card, physical->chunk_count,
                               &physical->runs, &physical->run_count);
}

uint64_t address_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (alignment < SIM_CHUNK_BYTES) alignment = SIM_CHUNK_BYTES;
    if (hint && hint % alignment == 0) { /* a hint; another address is fine too */
        void *got =
            mmap((void *)(uintptr_t)hint, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == (void *)(uintptr_t)hint) return hint;
        if (got != MAP_FAILED) munmap(got, bytes);
    }
    if (bytes + alignment < bytes) return 0;
    char *raw = mmap(NULL, bytes + alignment, PROT_NONE, flags, -1, 0);
    if (raw == MAP_FAILED) return 0;
    char *base = (char *)(((uintptr_t)raw + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (base > raw) munmap(raw, (size_t)(base - raw));
    size_t tail = (size_t)(raw + alignment - base);
    if (tail) munmap(base + bytes, tail);
    return (uint64_t)(uintptr_t)base;
}

void address_clear(uint64_t address, uint64_t bytes) {
    mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void address_release(uint64_t address, uint64_t bytes) {
    munmap((void *)(uintptr_t)address, bytes);
}
