/* The arbiter of a card's time between processes, and the account of it.
 *
 * `busy_until_ns` is advanced by compare-and-swap, so no two kernels ever overlap and a process
 * that dies cannot hold the card. Between processes there are also time slices, as on hardware: a
 * process with work keeps the card until its slice is over, then the next one with work gets it, in
 * the order of their slots. One word holds the current slice: slot + 1 in the upper 11 bits, its
 * start in units of 16 ns below. Times are simulated: a thread that wakes up late loses nothing.
 * But a process that makes no progress for a whole slice (stopped, or starved of CPU) is passed
 * over.
 */
#include "clock.h"
#include "machine_internal.h"

#include <time.h>

#define SLICE_SHIFT 53
#define SLICE_UNIT_SHIFT 4
#define NAP_MIN_NS 20000u
#define NAP_MAX_NS 300000u

static void charge_bucket(struct sim_busy *busy, uint64_t bucket, uint64_t ns) {
    _Atomic uint64_t *cell = &busy->buckets[bucket % SIM_BUCKETS];
    uint64_t tag = (bucket & UINT32_MAX) << 32;
    uint64_t old = atomic_load_explicit(cell, memory_order_relaxed);
    uint64_t new;
    do {
        int32_t newer = (int32_t)((uint32_t)(old >> 32) - (uint32_t)bucket);
        if (newer > 0 && old) return; /* too late: this bucket was used again */
        new = newer == 0 ? old + ns : tag | ns;
    } while (!atomic_compare_exchange_weak(cell, &old, new));
}

static void charge(struct sim_busy *busy, uint64_t start, uint64_t duration) {
    atomic_fetch_add(&busy->total_ns, duration);
    while (duration) {
        uint64_t bucket = start >> SIM_BUCKET_SHIFT;
        uint64_t room = ((bucket + 1) << SIM_BUCKET_SHIFT) - start;
        uint64_t part = duration < room ? duration : room;
        charge_bucket(busy, bucket, part);
        start += part;
        duration -= part;
    }
}

void machine_count_runnable(struct machine *machine, struct sim_card *card, int change) {
    atomic_fetch_add(&machine_usage(machine, machine->slot, card)->runnable, (uint32_t)change);
}

static uint64_t slice_length(const struct sim_card *card) {
    switch (atomic_load_explicit(&card->timeslice, memory_order_relaxed)) {
    case SIM_TIMESLICE_SHORT: return card->timeslice_ns / 2;
    case SIM_TIMESLICE_MEDIUM: return card->timeslice_ns * 2;
    case SIM_TIMESLICE_LONG: return card->timeslice_ns * 8;
    default: return card->timeslice_ns;
    }
}

static uint64_t slice_word(int slot, uint64_t began) {
    return (uint64_t)(slot + 1) << SLICE_SHIFT |
           ((began >> SLICE_UNIT_SHIFT) & ((UINT64_C(1) << SLICE_SHIFT) - 1));
}

static bool runnable(struct machine *machine, const struct sim_card *card, int slot) {
    if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE) return false;
    struct sim_usage *usage = machine_usage(machine, slot, card);
    return usage && (int32_t)atomic_load(&usage->runnable) > 0;
}

/* Return the next process after `slot` that has work for the card; -1: no other has. */
static int next_runnable(struct machine *machine, const struct sim_card *card, int slot) {
    for (int i = 1; i < SIM_MAX_PROCESSES; i++) {
        int other = (slot + i) % SIM_MAX_PROCESSES;
        if (runnable(machine, card, other)) return other;
    }
    return -1;
}

static void nap(uint64_t until, uint64_t now) {
    uint64_t ns = until > now ? until - now : 0;
    if (ns < NAP_MIN_NS) ns = NAP_MIN_NS;
    if (ns > NAP_MAX_NS) ns = NAP_MAX_NS;
    struct timespec t = {.tv_nsec = (long)ns};
    nanosleep(&t, NULL);
}

/* Wait until this process has the slice. *until_ns: its end (UINT64_MAX: no other process wants the
 * card). */
static void wait_for_slice(struct machine *machine, struct sim_card *card, uint64_t earliest,
                           uint64_t *until_ns) {
    const uint64_t length = slice_length(card);
    for (;;) {
        uint64_t word = atomic_load(&card->slice);
        int holder = (int)(word >> SLICE_SHIFT) - 1;
        uint64_t end = ((word & ((UINT64_C(1) << SLICE_SHIFT) - 1)) << SLICE_UNIT_SHIFT) + length;
        uint64_t busy = atomic_load(&card->busy_until_ns);
        uint64_t start = busy > earliest ? busy : earliest;
        uint64_t now = sim_now();
        if (holder == machine->slot) {
            int other = next_runnable(machine, card, holder);
            if (other < 0 || start < end) {
                *until_ns = other < 0 ? UINT64_MAX : end;
                if (other < 0 && start >= end)
                    atomic_compare_exchange_strong(&card->slice, &word, slice_word(holder, start));
                return;
            }
            atomic_compare_exchange_strong(&card->slice, &word, slice_word(other, start));
        } else if (holder < 0 || !runnable(machine, card, holder)) {
            atomic_compare_exchange_strong(&card->slice, &word, slice_word(machine->slot, start));
        } else {
            bool stuck = now > (busy > end ? busy : end) + length;
            if (stuck) machine_reap(machine); /* it may be dead */
            if (start < end && !stuck)
                nap(busy < end ? busy : end, now);
            else {
                int other = next_runnable(machine, card, holder);
                if (other < 0) other = machine->slot;
                uint64_t began = stuck && other != machine->slot ? now : start;
                atomic_compare_exchange_strong(&card->slice, &word, slice_word(other, began));
            }
        }
    }
}

uint64_t machine_take_time(struct machine *machine, struct sim_card *card, uint64_t earliest_ns,
                           uint64_t *duration_ns) {
    bool sliced = !(machine->header->flags & SIM_FLAG_FIFO);
    uint64_t slice_end = UINT64_MAX;
    if (sliced) {
        wait_for_slice(machine, card, earliest_ns, &slice_end);
        const uint64_t length = slice_length(card);
        if (*duration_ns > length) *duration_ns = length;
    }
    uint64_t until = atomic_load(&card->busy_until_ns);
    uint64_t start;
    uint64_t given;
    do {
        start = until > earliest_ns ? until : earliest_ns;
        given = *duration_ns;
        if (slice_end > start && slice_end - start < given) given = slice_end - start;
    } while (!atomic_compare_exchange_weak(&card->busy_until_ns, &until, start + given));
    *duration_ns = given;
    return start;
}

void machine_charge_time(struct machine *machine, struct sim_card *card, uint64_t start_ns,
                         uint64_t duration_ns) {
    charge(&card->busy, start_ns, duration_ns);
    charge(&machine_usage(machine, machine->slot, card)->busy, start_ns, duration_ns);
}

uint64_t machine_busy_in(const struct sim_busy *busy, uint64_t from_ns, uint64_t to_ns,
                         uint64_t *window_ns) {
    uint64_t first = from_ns >> SIM_BUCKET_SHIFT;
    uint64_t end = to_ns >> SIM_BUCKET_SHIFT; /* the bucket of `to` is still incomplete */
    uint64_t sum = 0;
    if (end - first > SIM_BUCKETS) first = end - SIM_BUCKETS;
    for (uint64_t bucket = first; bucket < end; bucket++) {
        uint64_t cell =
            atomic_load_explicit(&busy->buckets[bucket % SIM_BUCKETS], memory_order_relaxed);
        if (cell >> 32 == (bucket & UINT32_MAX)) sum += cell & UINT32_MAX;
    }
    *window_ns = (end - first) << SIM_BUCKET_SHIFT;
    return sum;
}
