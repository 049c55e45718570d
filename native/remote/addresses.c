/* Addresses of device memory are reserved in this process too. So the memory at a pointer is the
 * program's or one server's card's, never both, and a copy whose pointers alone say where to goes
 * the right way.
 *
 * In steps of 2 MiB, as drivers map memory; allocations may share a step.
 */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <sys/mman.h>

#define STEP_BITS 21
#define STEPS (UINT64_C(1) << (47 - STEP_BITS)) /* no process has memory above them */

/* Per step: the number of allocations on it and their server. A step with allocations is
 * reserved. */
struct use {
    uint32_t allocations : 24, server : 8;
};
static struct use *users;
static_assert(MAX_SERVERS <= 1 << 8 && (1 << STEP_BITS) / 8 < 1 << 24, "fits into a use");
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct steps {
    uint64_t first, end;
};

static struct steps steps_of(uint64_t base, uint64_t bytes) {
    return (struct steps){base >> STEP_BITS, ((base + bytes - 1) >> STEP_BITS) + 1};
}

/* Find the next steps that are free, up to one in use. */
static bool next_unused(struct steps *found, struct steps all) {
    found->first = found->end;
    while (found->first < all.end && users[found->first].allocations != 0) found->first++;
    found->end = found->first;
    while (found->end < all.end && users[found->end].allocations == 0) found->end++;
    return found->first < found->end;
}

static void *place(struct steps steps) { return (void *)(uintptr_t)(steps.first << STEP_BITS); }

static size_t length(struct steps steps) { return (steps.end - steps.first) << STEP_BITS; }

static void unmap_unused(struct steps all) {
    struct steps found = {.end = all.first};
    while (next_unused(&found, all)) munmap(place(found), length(found));
}

/* Return 0 or an errno. */
static int map_unused(struct steps all) {
    struct steps found = {.end = all.first};
    while (next_unused(&found, all)) {
        void *at = mmap(place(found), length(found), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (at == place(found)) continue;
        int why = at == MAP_FAILED ? errno : EEXIST;
        if (at != MAP_FAILED) munmap(at, length(found)); /* before Linux 4.17 only a hint */
        unmap_unused((struct steps){all.first, found.first});
        return why;
    }
    return 0;
}

static bool of_another(struct steps all, unsigned server) {
    for (uint64_t step = all.first; step < all.end; step++)
        if (users[step].allocations != 0 && users[step].server != server) return true;
    return false;
}

enum addresses addresses_take(unsigned server, uint64_t base, uint64_t bytes) {
    struct steps all = steps_of(base, bytes);
    if (bytes == 0 || all.end > STEPS || all.end <= all.first) return ADDRESSES_UNKNOWN;
    pthread_mutex_lock(&lock);
    int why = 0;
    if (users == NULL) {
        void *made = mmap(NULL, STEPS * sizeof *users, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED)
            why = errno;
        else
            users = made;
    }
    if (why == 0 && of_another(all, server)) why = EEXIST;
    if (why == 0) why = map_unused(all);
    for (uint64_t step = all.first; why == 0 && step < all.end; step++) {
        users[step].allocations++;
        users[step].server = server;
    }
    pthread_mutex_unlock(&lock);
    /* Without room for addresses (a limit of the process) they are not reserved. */
    return why == 0 ? ADDRESSES_TAKEN : why == EEXIST ? ADDRESSES_OF_OTHERS : ADDRESSES_UNKNOWN;
}

void addresses_give(uint64_t base, uint64_t bytes) {
    struct steps all = steps_of(base, bytes);
    pthread_mutex_lock(&lock);
    for (uint64_t step = all.first; step < all.end; step++) users[step].allocations--;
    unmap_unused(all);
    pthread_mutex_unlock(&lock);
}

bool addresses_of_program(uint64_t pointer) {
    pthread_mutex_lock(&lock);
    uint64_t step = pointer >> STEP_BITS;
    bool taken = step >= STEPS || (users != NULL && users[step].allocations != 0);
    pthread_mutex_unlock(&lock);
    unsigned char resident;
    void *page = (void *)(uintptr_t)(pointer & ~UINT64_C(4095));
    return !taken && mincore(page, 1, &resident) == 0; /* ENOMEM: nothing is mapped there */
}
