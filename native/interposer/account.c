/* The container's bytes: the protocol of egpu_abi.h. Every process of the container goes through
 * the same words. */
#define _GNU_SOURCE
#include "interposer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "common/process.h"
#include "parking/parking.h"

enum {
    /* then a holder of the join lock that does not move is given up on */
    JOIN_PATIENCE_NS = 2000000000,
    REAP_PERIOD_NS = 50000000, /* how often asking for free memory looks for the dead */
    REPAIR_ATTEMPTS = 64,
};

/* This process on one device: all that an allocation or a release of its own needs, in one line. */
static struct own {
    egpu_lock lock; /* the slot's counters and our own: one thread at a time */
    struct egpu_usage_slot *slot;
    struct egpu_usage_device *totals; /* where there is a slot */
    /* What the process holds: the file can be written by others, and says at least this. */
    uint64_t memory_bytes, spill_bytes;
} __attribute__((aligned(64))) owns[EGPU_MAX_DEVICES];

static egpu_lock lock; /* joining */
static uint64_t reaped_at_ns[EGPU_MAX_DEVICES];
static uint64_t own_pid_namespace;

/* Where a SIGKILL may fall; tests make it fall there (storm.c). */
#ifdef EGPU_KILL_POINTS
void kill_point(void);
#define STORE(operation) (kill_point(), (operation))
#else
#define STORE(operation) (operation)
#endif
#define ADD(word, n) STORE(__atomic_fetch_add(&(word), (n), __ATOMIC_ACQ_REL))
#define SUB(word, n) STORE(__atomic_fetch_sub(&(word), (n), __ATOMIC_ACQ_REL))
#define PUT(word, n) STORE(__atomic_store_n(&(word), (n), __ATOMIC_RELEASE))
#define GET(word) __atomic_load_n(&(word), __ATOMIC_ACQUIRE)
/* of this process alone */
#define KEEP(word, n) __atomic_store_n(&(word), (n), __ATOMIC_RELAXED)

/* Which word a class counts in: of the device, and of this process. */
static uint64_t *total_of(struct egpu_usage_device *totals, int class) {
    return class == EGPU_MEMORY_SPILL ? &totals->spill_bytes : &totals->memory_bytes;
}

static uint64_t *own_of(struct own *own, int class) {
    return class == EGPU_MEMORY_SPILL ? &own->spill_bytes : &own->memory_bytes;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t limit_of(int device, int class) {
    policy_look();
    return class == EGPU_MEMORY_SPILL ? LIMIT(device, spill_bytes) : LIMIT(device, memory_bytes);
}

void account_forget(void) {
    lock.word = 0;
    memset(owns, 0, sizeof owns); /* the parent's: the child joins for itself */
}

/* no process has these start times: they are before init */
enum { UNREADABLE = 0, ONLY_A_STATUS = 1 };

/* Field 22 of /proc/<pid>/stat, in clock ticks since boot. */
static uint64_t start_time_of(uint32_t pid) {
    char text[1024];
    const char *stat = process_stat(pid, text, sizeof text);
    if (stat == NULL) return UNREADABLE;
    /* Dead and not yet waited for; a zombie with threads is a main thread that ended before the
     * others. */
    if ((*stat == 'Z' || *stat == 'X') && process_field(stat, PROCESS_THREADS) <= 1)
        return ONLY_A_STATUS;
    return process_field(stat, PROCESS_START_TIME);
}

static uint64_t pid_namespace(void) {
    char text[64]; /* "pid:[4026531836]" */
    ssize_t size =
        own_pid_namespace != 0 ? 0 : readlink("/proc/self/ns/pid", text, sizeof text - 1);
    if (size > 5) {
        text[size] = 0;
        own_pid_namespace = strtoull(text + 5, NULL, 10);
    }
    return own_pid_namespace;
}

/* The join lock: an OFD lock, so that the kernel drops it when its holder dies. Returns the file,
 * or -1. */
static int join_lock(uint64_t patience_ns) {
    char path[PATH_MAX];
    /* Opened anew each time: a description shared with a forked child would share the lock with
     * it. */
    int file = slice_path("usage", path, sizeof path) == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    uint64_t deadline = now_ns() + patience_ns;
    while (file >= 0 && fcntl(file, F_OFD_SETLK, &whole) != 0) {
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || now_ns() >= deadline) {
            close(file);
            return -1;
        }
        sleep_ns(200000);
    }
    return file;
}

struct bytes {
    uint64_t memory, spill; /* what counts in memory_bytes, and in spill_bytes */
};

static struct bytes held_by(const struct egpu_usage_slot *slot) {
    struct bytes held = {0};
    for (int class = 0; class < EGPU_MEMORY_CLASSES; class++)
        *(class == EGPU_MEMORY_SPILL ? &held.spill : &held.memory) +=
            GET(slot->reserved_bytes[class]) - GET(slot->released_bytes[class]);
    if (!gate_is_on) held.memory -= GET(slot->parked_bytes);
    return held;
}

static bool is_dead(const struct egpu_usage_slot *slot) {
    /* Of another pid namespace we cannot tell; the agent, which sees all of them, can. */
    if (slot->pid_namespace != pid_namespace()) return false;
    /* Ours, and not in use: of the program that this process ran before it called exec. */
    if (slot->pid == (uint32_t)getpid())
        return slot->device >= EGPU_MAX_DEVICES || GET(owns[slot->device].slot) != slot;
    if (kill((pid_t)slot->pid, 0) != 0 && errno == ESRCH) return true;
    uint64_t start_time = start_time_of(slot->pid);
    /* It exists, but /proc hides it from us (hidepid, another user): then it counts as alive. */
    return start_time != UNREADABLE && start_time != slot->start_time;
}

/* One pass over the live slots: what they hold, and a mark that changes with any store; false: one
 * is between two. */
static bool survey(int device, struct bytes *held, uint64_t *mark) {
    *held = (struct bytes){0};
    *mark = 0;
    for (unsigned i = 0; i < EGPU_USAGE_SLOTS; i++) {
        struct egpu_usage_slot *slot = &slice_usage()->slots[i];
        if (GET(slot->state) != EGPU_SLOT_LIVE || slot->device != (uint32_t)device) continue;
        uint64_t sequence = GET(slot->sequence);
        struct bytes own = held_by(slot);
        if (sequence & 1 || GET(slot->sequence) != sequence) return false;
        held->memory += own.memory;
        held->spill += own.spill;
        *mark = *mark * 1099511628211ull + sequence + i;
    }
    return true;
}

/* Under the join lock. Takes out of the totals what no live slot holds: what processes left that
 * died half-way. */
static void repair(int device) {
    uint64_t *memory = &slice_usage()->devices[device].memory_bytes,
             *spill = &slice_usage()->devices[device].spill_bytes;
    for (int attempt = 0; attempt < REPAIR_ATTEMPTS; attempt++) {
        struct bytes held, again_held;
        uint64_t mark, again;
        if (!survey(device, &held, &mark)) continue;
        uint64_t memory_seen = GET(*memory), spill_seen = GET(*spill);
        if (!survey(device, &again_held, &again) || again != mark) continue;
        /* Modular: right in both directions, should the file have been tampered with. */
        if (memory_seen != held.memory) SUB(*memory, memory_seen - held.memory);
        if (spill_seen != held.spill) SUB(*spill, spill_seen - held.spill);
        return;
    }
}

static void reap_locked(int device) {
    struct egpu_usage_device *totals = &slice_usage()->devices[device];
    for (unsigned i = 0; i < EGPU_USAGE_SLOTS; i++) {
        struct egpu_usage_slot *slot = &slice_usage()->slots[i];
        if (GET(slot->state) != EGPU_SLOT_LIVE || slot->device != (uint32_t)device ||
            !is_dead(slot))
            continue;
        struct bytes held = held_by(slot);
        /* Freed first: killed here, the total stays too high, and repair finds it. */
        PUT(slot->state, EGPU_SLOT_FREE);
        SUB(totals->memory_bytes, held.memory);
        if (held.spill != 0) SUB(totals->spill_bytes, held.spill);
        ADD(totals->reaped_bytes, held.memory + held.spill);
    }
    repair(device);
}

void account_reap(int device) {
    uint64_t now = now_ns(), before = __atomic_load_n(&reaped_at_ns[device], __ATOMIC_RELAXED);
    if (now - before < REAP_PERIOD_NS) return;
    __atomic_store_n(&reaped_at_ns[device], now, __ATOMIC_RELAXED);
    int file = join_lock(0); /* someone else is at it: then it is being done */
    if (file < 0) return;
    reap_locked(device);
    close(file);
}

static struct egpu_usage_slot *join(int device) {
    int file = join_lock(JOIN_PATIENCE_NS);
    if (file < 0) return NULL;
    reap_locked(device);
    struct egpu_usage_slot *slot = NULL;
    for (unsigned i = 0; i < EGPU_USAGE_SLOTS && slot == NULL; i++)
        if (GET(slice_usage()->slots[i].state) == EGPU_SLOT_FREE) slot = &slice_usage()->slots[i];
    if (slot != NULL) {
        uint32_t pid = (uint32_t)getpid();
        *slot = (struct egpu_usage_slot){.device = (uint32_t)device,
                                         .pid = pid,
                                         .start_time = start_time_of(pid),
                                         .pid_namespace = pid_namespace(),
                                         .heartbeat_ns = now_ns()};
        /* before the lock is dropped: what is ours and not in here is reaped */
        owns[device].totals = &slice_usage()->devices[device];
        PUT(owns[device].slot, slot);
        PUT(slot->state, EGPU_SLOT_LIVE);
    }
    close(file);
    return slot;
}

struct egpu_usage_slot *slot_of(int device) {
    struct egpu_usage_slot *slot = GET(owns[device].slot);
    if (slot != NULL) return slot;
    lock_take(&lock);
    slot = owns[device].slot;
    if (slot == NULL) slot = join(device);
    lock_drop(&lock);
    return slot;
}

/* NULL: a device of nobody's, or the usage file is unusable. */
static struct own *own_on(int device) {
    return device < 0 || slot_of(device) == NULL ? NULL : &owns[device];
}

/* Between these two the counters are ours, and a survey knows that they are moving. Plain stores:
 * nobody else writes them, and the read-modify-write of the total in between orders them. */
static uint64_t begin(struct own *own) {
    lock_take(&own->lock);
    uint64_t sequence = own->slot->sequence | 1;
    STORE(__atomic_store_n(&own->slot->sequence, sequence, __ATOMIC_RELAXED));
    return sequence;
}

static void end(struct own *own, uint64_t sequence) {
    PUT(own->slot->sequence, sequence + 1);
    lock_drop(&own->lock);
}

static void take(struct own *own, enum egpu_memory_class class, uint64_t bytes) {
    PUT(own->slot->reserved_bytes[class], own->slot->reserved_bytes[class] + bytes);
    KEEP(*own_of(own, class), *own_of(own, class) + bytes);
}

static void give_back(struct own *own, enum egpu_memory_class class, uint64_t bytes) {
    PUT(own->slot->released_bytes[class], own->slot->released_bytes[class] + bytes);
    SUB(*total_of(own->totals, class), bytes);
    KEEP(*own_of(own, class), *own_of(own, class) - bytes);
}

static bool try_reserve(struct own *own, enum egpu_memory_class class, uint64_t bytes,
                        uint64_t limit) {
    struct egpu_usage_device *totals = own->totals;
    uint64_t *total = total_of(totals, class);
    /* A hopeless request is not even tried: while it stood in the total, it would refuse others
     * that do fit. */
    if (bytes > limit || GET(*total) > limit - bytes) return false;
    uint64_t sequence = begin(own);
    uint64_t before = ADD(*total, bytes);
    bool granted = larger(before, *own_of(own, class)) <= limit - bytes;
    take(own, class, bytes);
    if (!granted) give_back(own, class, bytes);
    end(own, sequence);
    if (granted && class != EGPU_MEMORY_SPILL && before + bytes > GET(totals->peak_bytes))
        PUT(totals->peak_bytes, before + bytes);
    return granted;
}

bool account_reserve(int device, enum egpu_memory_class class, uint64_t bytes) {
    struct own *own = own_on(device);
    if (own == NULL) return false;
    if (__builtin_expect(try_reserve(own, class, bytes, limit_of(device, class)), 1)) return true;
    if (bytes > limit_of(device, class)) return false;
    /* Perhaps it is the dead who hold the memory, or another's refused request that stood in the
     * way. */
    int file = join_lock(JOIN_PATIENCE_NS);
    if (file >= 0) {
        reap_locked(device);
        close(file);
    }
    return try_reserve(own, class, bytes, limit_of(device, class));
}

static bool is_of(const struct egpu_usage_slot *slot, int pid) {
    return GET(slot->state) == EGPU_SLOT_LIVE && slot->device < slice_device_count() &&
           slot->pid == (uint32_t)pid && slot->pid_namespace == pid_namespace() && !is_dead(slot);
}

void account_checkpointed(int pid) {
    int file = join_lock(JOIN_PATIENCE_NS);
    for (unsigned i = 0; file >= 0 && i < EGPU_USAGE_SLOTS; i++) {
        struct egpu_usage_slot *slot = &slice_usage()->slots[i];
        if (!is_of(slot, pid)) continue;
        uint64_t bytes = held_by(slot).memory;
        /* Killed in between, the total stays too high, and repair finds it. */
        PUT(slot->parked_bytes, slot->parked_bytes + bytes);
        SUB(slice_usage()->devices[slot->device].memory_bytes, bytes);
    }
    if (file >= 0) close(file);
}

bool account_restored(int pid) {
    uint64_t added[EGPU_MAX_DEVICES] = {0};
    bool fits = true;
    int file = join_lock(JOIN_PATIENCE_NS);
    for (unsigned i = 0; file >= 0 && i < EGPU_USAGE_SLOTS; i++) {
        const struct egpu_usage_slot *slot = &slice_usage()->slots[i];
        if (!is_of(slot, pid)) continue;
        reap_locked((int)slot->device);
        uint64_t limit = limit_of((int)slot->device, EGPU_MEMORY_DEVICE);
        added[slot->device] = slot->parked_bytes;
        uint64_t before =
            ADD(slice_usage()->devices[slot->device].memory_bytes, slot->parked_bytes);
        fits &= slot->parked_bytes <= limit && before <= limit - slot->parked_bytes;
    }
    for (unsigned i = 0; file >= 0 && fits && i < EGPU_USAGE_SLOTS; i++)
        if (is_of(&slice_usage()->slots[i], pid)) PUT(slice_usage()->slots[i].parked_bytes, 0);
    for (unsigned device = 0; !fits && device < slice_device_count(); device++)
        SUB(slice_usage()->devices[device].memory_bytes, added[device]);
    if (file >= 0) close(file);
    return file >= 0 && fits;
}

void account_refused(int device) {
    if (device >= 0) ADD(slice_usage()->devices[device].refusals, 1);
}

void account_force(int device, enum egpu_memory_class class, uint64_t bytes) {
    struct own *own = own_on(device);
    if (own == NULL) return;
    uint64_t sequence = begin(own);
    ADD(*total_of(own->totals, class), bytes);
    take(own, class, bytes);
    end(own, sequence);
}

void account_release(int device, enum egpu_memory_class class, uint64_t bytes) {
    struct own *own = own_on(device);
    if (own == NULL) return;
    uint64_t sequence = begin(own);
    give_back(own, class, bytes);
    end(own, sequence);
}

/* All that is counted, or at least our own. */
static uint64_t counted(int device, int class) {
    return larger(GET(*total_of(&slice_usage()->devices[device], class)),
                  GET(*own_of(&owns[device], class)));
}

uint64_t account_held(uint64_t *sequence) {
    uint64_t held = 0;
    *sequence = 0;
    for (unsigned device = 0; device < slice_device_count(); device++) {
        struct own *own = &owns[device];
        const struct egpu_usage_slot *slot = GET(own->slot);
        if (slot == NULL) continue;
        lock_take(&own->lock);
        for (int class = 0; class < EGPU_MEMORY_CLASSES; class++)
            if (class != EGPU_MEMORY_POOL && class != EGPU_MEMORY_GRAPH)
                held += slot->reserved_bytes[class] - slot->released_bytes[class];
        *sequence += slot->sequence;
        lock_drop(&own->lock);
    }
    return held;
}

uint64_t account_counted(int device) {
    return add_bytes(counted(device, EGPU_MEMORY_DEVICE), counted(device, EGPU_MEMORY_SPILL));
}

uint64_t account_used(int device) {
    if (device < 0) return 0;
    account_reap(device);
    uint64_t limit = memory_limit(device),
             used = add_bytes(account_counted(device), LIMIT(device, overhead_bytes));
    return used < limit ? used : limit;
}
