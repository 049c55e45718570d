/* Memory and events that several processes hold: one table in the machine's file, a bit per holder.
 *
 * A chunk of shared memory belongs to its entry, not to a process, so it outlives its creator while
 * another process holds it. An entry without holders is free; its generation makes old references
 * invalid.
 */
#include "machine_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct sim_shared *table(struct machine *machine) {
    return (struct sim_shared *)((char *)machine->header + machine->header->shared_offset);
}

static void set_holder(struct sim_shared *shared, int slot, bool holds) {
    uint64_t bit = UINT64_C(1) << (slot % 64);
    if (holds)
        atomic_fetch_or(&shared->holders[slot / 64], bit);
    else
        atomic_fetch_and(&shared->holders[slot / 64], ~bit);
}

static bool holds(const struct sim_shared *shared, uint32_t slot) {
    return atomic_load(&shared->holders[slot / 64]) >> (slot % 64) & 1;
}

static int first_holder(const struct sim_shared *shared) {
    for (int word = 0; word < SIM_MAX_PROCESSES / 64; word++) {
        uint64_t bits = atomic_load(&shared->holders[word]);
        if (bits) return word * 64 + __builtin_ctzll(bits);
    }
    return -1;
}

int machine_charged_slot(struct machine *machine, uint32_t owner) {
    if (!(owner & SIM_OWNER_SHARED)) {
        uint32_t slot = (owner & ~SIM_OWNER_EVICTABLE) - 1;
        return slot < SIM_MAX_PROCESSES ? (int)slot : -1;
    }
    uint32_t index = owner & ~SIM_OWNER_SHARED;
    if (index >= SIM_MAX_SHARED) return -1;
    const struct sim_shared *shared = &table(machine)[index];
    return holds(shared, shared->creator) ? (int)shared->creator : first_holder(shared);
}

static void release_entry(struct machine *machine, uint32_t index) {
    struct sim_shared *shared = &table(machine)[index];
    if (atomic_load(&shared->kind) == SIM_SHARED_MEMORY) {
        struct sim_card *card = &machine->cards[shared->card];
        _Atomic uint32_t *owners = machine_chunk_table(machine, card);
        for (uint32_t i = 0; i < card->chunk_count; i++)
            if (atomic_load_explicit(&owners[i], memory_order_relaxed) ==
                (SIM_OWNER_SHARED | index)) {
                machine_punch(machine, card, i, 1);
                atomic_store(&owners[i], 0);
            }
    }
    shared->generation++;
    atomic_store(&shared->kind, SIM_SHARED_FREE);
}

static void let_go(struct machine *machine, uint32_t index, int slot) {
    struct sim_shared *shared = &table(machine)[index];
    set_holder(shared, slot, false);
    if (first_holder(shared) < 0) release_entry(machine, index);
}

void machine_bury_shared(struct machine *machine, int slot) {
    bool any = false;
    for (uint32_t i = 0; i < SIM_MAX_SHARED; i++) {
        struct sim_shared *shared = &table(machine)[i];
        if (atomic_load(&shared->kind) == SIM_SHARED_FREE) continue;
        if (atomic_load(&shared->recorder) == (uint32_t)slot + 1)
            atomic_store(&shared->done, atomic_load(&shared->recorded));
        if (!holds(shared, (uint32_t)slot) && first_holder(shared) >= 0) continue;
        let_go(machine, i, slot);
        any = true;
    }
    if (any) machine_recount(machine);
}

/* With the table locked. The holder is noted before the kind: a process that dies meanwhile leaves
 * a free entry. */
static int new_entry(struct machine *machine, enum sim_shared_kind kind,
                     const struct sim_card *card, struct shared_ref *ref) {
    for (uint32_t i = 0; i < SIM_MAX_SHARED; i++) {
        struct sim_shared *shared = &table(machine)[i];
        if (atomic_load(&shared->kind) != SIM_SHARED_FREE) continue;
        for (int word = 0; word < SIM_MAX_PROCESSES / 64; word++)
            atomic_store(&shared->holders[word], 0);
        shared->card = card->index;
        shared->creator = (uint32_t)machine->slot;
        atomic_store(&shared->recorded, 0);
        atomic_store(&shared->done, 0);
        atomic_store(&shared->timestamp_ns, 0);
        atomic_store(&shared->recorder, 0);
        set_holder(shared, machine->slot, true);
        atomic_store(&shared->kind, kind);
        *ref = (struct shared_ref){i, shared->generation};
        return 0;
    }
    return ENOSPC;
}

struct sim_shared *machine_shared(struct machine *machine, struct shared_ref ref) {
    if (ref.index >= SIM_MAX_SHARED) return NULL;
    struct sim_shared *shared = &table(machine)[ref.index];
    return atomic_load(&shared->kind) != SIM_SHARED_FREE && shared->generation == ref.generation
               ? shared
               : NULL;
}

int machine_share_chunks(struct machine *machine, struct sim_card *card,
                         const struct chunk_run *runs, size_t run_count, struct shared_ref *ref) {
    _Atomic uint32_t *owners = machine_chunk_table(machine, card);
    machine_table_lock(machine);
    int error = new_entry(machine, SIM_SHARED_MEMORY, card, ref);
    for (size_t r = 0; r < run_count && !error; r++)
        for (uint32_t i = 0; i < runs[r].count; i++)
            atomic_store(&owners[runs[r].first + i], SIM_OWNER_SHARED | ref->index);
    machine_table_unlock(machine);
    return error;
}

/* Chunks are always taken in ascending order, so the table alone gives their order. */
static int find_runs(struct machine *machine, const struct sim_card *card, uint32_t owner,
                     struct chunk_run **runs, size_t *run_count) {
    const _Atomic uint32_t *owners = machine_chunk_table(machine, card);
    size_t count = 0;
    size_t room = 0;
    *runs = NULL;
    for (uint32_t i = 0; i < card->chunk_count;) {
        if (atomic_load_explicit(&owners[i], memory_order_relaxed) != owner) {
            i++;
            continue;
        }
        uint32_t end = i;
        while (end < card->chunk_count &&
               atomic_load_explicit(&owners[end], memory_order_relaxed) == owner)
            end++;
        if (count == room) {
            room = room ? room * 2 : 4;
            struct chunk_run *grown = realloc(*runs, room * sizeof **runs);
            if (!grown) {
                free(*runs);
                *runs = NULL;
                return ENOBUFS;
            }
            *runs = grown;
        }
        (*runs)[count++] = (struct chunk_run){i, end - i};
        i = end;
    }
    *run_count = count;
    return count ? 0 : ENOENT;
}

int machine_hold_chunks(struct machine *machine, struct shared_ref ref, struct sim_card **card,
                        struct chunk_run **runs, size_t *run_count) {
    machine_table_lock(machine);
    struct sim_shared *shared = machine_shared(machine, ref);
    int error = shared && atomic_load(&shared->kind) == SIM_SHARED_MEMORY ? 0 : ENOENT;
    if (!error) {
        *card = &machine->cards[shared->card];
        error = find_runs(machine, *card, SIM_OWNER_SHARED | ref.index, runs, run_count);
    }
    if (!error) set_holder(shared, machine->slot, true);
    machine_table_unlock(machine);
    return error;
}

int machine_share_event(struct machine *machine, struct sim_card *card, uint32_t flags,
                        struct shared_ref *ref) {
    machine_table_lock(machine);
    int error = new_entry(machine, SIM_SHARED_EVENT, card, ref);
    if (!error) machine_shared(machine, *ref)->event_flags = flags;
    machine_table_unlock(machine);
    return error;
}

int machine_hold_event(struct machine *machine, struct shared_ref ref) {
    machine_table_lock(machine);
    struct sim_shared *shared = machine_shared(machine, ref);
    int error = shared && atomic_load(&shared->kind) == SIM_SHARED_EVENT ? 0 : ENOENT;
    if (!error) set_holder(shared, machine->slot, true);
    machine_table_unlock(machine);
    return error;
}

void machine_drop_shared(struct machine *machine, struct shared_ref ref) {
    machine_table_lock(machine);
    if (machine_shared(machine, ref)) {
        let_go(machine, ref.index, machine->slot);
        machine_recount(machine);
    }
    machine_table_unlock(machine);
}
