/* A set of the live objects. So a stale or invalid handle is an error and not a crash. */
#include "engine.h"

#include <stdlib.h>

struct entry {
    const void *object;    /* NULL: never used */
    enum handle_kind kind; /* HANDLE_NONE: removed */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct entry *table;
static size_t room, used; /* used also counts removed entries */

static size_t slot_of(const struct entry *entries, size_t size, const void *object) {
    size_t at = ((uintptr_t)object >> 4) * UINT64_C(0x9E3779B97F4A7C15) % size;
    while (entries[at].object && entries[at].object != object) at = (at + 1) % size;
    return at;
}

static bool grow(void) {
    size_t live = 0;
    for (size_t i = 0; i < room; i++) live += table[i].kind != HANDLE_NONE;
    size_t bigger = live * 4 < 256 ? 256 : live * 4;
    struct entry *fresh = calloc(bigger, sizeof *fresh);
    if (!fresh) return false;
    for (size_t i = 0; i < room; i++)
        if (table[i].kind != HANDLE_NONE) fresh[slot_of(fresh, bigger, table[i].object)] = table[i];
    free(table);
    table = fresh;
    room = bigger;
    used = live;
    return true;
}

bool handle_add(const void *object, enum handle_kind kind) {
    pthread_rwlock_wrlock(&lock);
    bool fine = used * 2 < room || grow();
    if (fine) {
        struct entry *entry = &table[slot_of(table, room, object)];
        if (!entry->object) used++;
        *entry = (struct entry){object, kind};
    }
    pthread_rwlock_unlock(&lock);
    return fine;
}

void handle_remove(const void *object) {
    pthread_rwlock_wrlock(&lock);
    if (room) {
        struct entry *entry = &table[slot_of(table, room, object)];
        if (entry->object) entry->kind = HANDLE_NONE;
    }
    pthread_rwlock_unlock(&lock);
}

void **handle_all(enum handle_kind kind) {
    pthread_rwlock_rdlock(&lock);
    size_t count = 0;
    for (size_t i = 0; i < room; i++) count += table[i].kind == kind;
    void **all = calloc(count + 1, sizeof *all);
    for (size_t i = 0, at = 0; all && i < room; i++)
        if (table[i].kind == kind) all[at++] = (void *)(uintptr_t)table[i].object;
    pthread_rwlock_unlock(&lock);
    return all;
}

enum handle_kind handle_kind_of(const void *object) {
    enum handle_kind kind = HANDLE_NONE;
    if (!object) return kind;
    pthread_rwlock_rdlock(&lock);
    if (room) kind = table[slot_of(table, room, object)].kind;
    pthread_rwlock_unlock(&lock);
    return kind;
}
