/* Multi-instance GPUs: a card in MIG mode is divided into GPU instances (memory, and slices of
 * compute), and those into compute instances (slices of compute). Each is a record beside the
 * cards, so its memory and time work like a card's.
 *
 * A record is written with the table locked, its kind last: a process that dies meanwhile leaves a
 * free one. A process that runs on a compute instance is noted in the process table: the instance
 * is in use while that process lives.
 */
#include "machine_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RECORDS_PER_CARD (2 * SIM_MAX_INSTANCES)

static struct sim_card *record(struct machine *machine, const struct sim_card *board,
                               enum sim_instance_kind kind, unsigned place) {
    unsigned first = SIM_MAX_CARDS + board->index * RECORDS_PER_CARD;
    return &machine->cards[first + (kind == SIM_INSTANCE_COMPUTE ? SIM_MAX_INSTANCES : 0) + place];
}

struct sim_card *machine_instance(struct machine *machine, const struct sim_card *board,
                                  enum sim_instance_kind kind, unsigned place) {
    /* do not read its records either: reading would allocate real memory */
    if (!atomic_load(&board->mig_enabled)) return NULL;
    struct sim_card *found = record(machine, board, kind, place);
    return atomic_load(&found->instance) == (uint32_t)kind ? found : NULL;
}

struct sim_card *machine_board_of(struct machine *machine, struct sim_card *card) {
    return card->index < SIM_MAX_CARDS ? card : &machine->cards[card->board];
}

struct sim_card *machine_memory_of(struct machine *machine, struct sim_card *card) {
    return atomic_load(&card->instance) == SIM_INSTANCE_COMPUTE
               ? &machine->cards[card->memory_record]
               : card;
}

struct sim_card *machine_next_memory(struct machine *machine, const struct sim_card *after) {
    uint32_t count = machine->header->card_count;
    uint32_t at = after ? after->index + 1 : 0;
    for (; at < count; at++)
        if (!atomic_load(&machine->cards[at].mig_enabled)) return &machine->cards[at];
    for (at = at < SIM_MAX_CARDS ? 0 : at - SIM_MAX_CARDS; at < count * RECORDS_PER_CARD; at++) {
        unsigned place = at % RECORDS_PER_CARD;
        if (place >= SIM_MAX_INSTANCES) continue;
        struct sim_card *instance = machine_instance(
            machine, &machine->cards[at / RECORDS_PER_CARD], SIM_INSTANCE_GPU, place);
        if (instance) return instance;
    }
    return NULL;
}

/* ---- mode ---- */

/* Return whether a live process uses the card itself. */
static bool card_in_use(struct machine *machine, const struct sim_card *card) {
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++)
        if (atomic_load(&machine->header->process_state[slot]) != SIM_PROCESS_FREE &&
            atomic_load(&machine->processes[slot].cards[card->index].contexts))
            return true;
    return atomic_load(&card->used_chunks) != 0;
}

static bool has_instances(struct machine *machine, const struct sim_card *card) {
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++)
        if (machine_instance(machine, card, SIM_INSTANCE_GPU, place)) return true;
    return false;
}

int machine_set_mig_mode(struct machine *machine, struct sim_card *card, bool on) {
    machine_table_lock(machine);
    machine_reap_locked(machine);
    atomic_store(&card->mig_pending, on);
    bool was = atomic_load(&card->mig_enabled);
    int error = was == on                                                           ? 0
                : (was ? has_instances(machine, card) : card_in_use(machine, card)) ? EBUSY
                                                                                    : 0;
    if (!error) atomic_store(&card->mig_enabled, on);
    machine_table_unlock(machine);
    return error;
}

/* ---- making ---- */

/* Return the memory slices of a card, which number the places: its largest instance takes all. */
static uint32_t memory_slices(const struct sim_card *board) {
    uint32_t all = 1;
    for (int i = 0; i < SIM_MAX_MIG_PROFILES; i++)
        if (board->mig_profiles[i].size > all) all = board->mig_profiles[i].size;
    return all;
}

/* Return the id: the place of an instance of that size in the card's tree of halves. No two
 * existing ones have the same. */
static uint32_t gpu_instance_id(uint32_t slices, uint32_t first, uint32_t size) {
    return slices / size - 1 + first / size;
}

static uint32_t taken_slices(struct machine *machine, const struct sim_card *board) {
    uint32_t taken = 0;
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        const struct sim_card *instance = machine_instance(machine, board, SIM_INSTANCE_GPU, place);
        if (instance) taken |= ((1u << instance->slice_count) - 1) << instance->first_slice;
    }
    return taken;
}

static unsigned count_of(struct machine *machine, const struct sim_card *board, uint32_t profile) {
    unsigned count = 0;
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        const struct sim_card *instance = machine_instance(machine, board, SIM_INSTANCE_GPU, place);
        count += instance && instance->mig_profile == profile;
    }
    return count;
}

static bool fits(const struct sim_mig_profile *profile, uint32_t taken, uint32_t first) {
    return (profile->starts >> first & 1) && !(taken >> first & ((1u << profile->size) - 1));
}

uint32_t machine_room_for(struct machine *machine, const struct sim_card *board, uint32_t profile) {
    const struct sim_mig_profile *shape = &board->mig_profiles[profile];
    uint32_t taken = taken_slices(machine, board);
    uint32_t left = shape->instances - count_of(machine, board, profile);
    uint32_t room = 0;
    for (uint32_t first = 0; first < SIM_MEMORY_SLICES; first++)
        if (fits(shape, taken, first)) {
            taken |= ((1u << shape->size) - 1) << first;
            room++;
        }
    return room < left ? room : left;
}

static struct sim_card *free_record(struct machine *machine, const struct sim_card *board,
                                    enum sim_instance_kind kind) {
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++)
        if (!machine_instance(machine, board, kind, place))
            return record(machine, board, kind, place);
    return NULL;
}

/* Copy the constant fields from the containing card or GPU instance; all dynamic ones start
 * anew. */
static void begin(struct sim_card *made, const struct sim_card *whole, uint32_t index) {
    memset(made, 0, sizeof *made);
    memcpy(made, whole, offsetof(struct sim_card, busy_until_ns));
    made->index = index;
    made->utilization_window_ms = whole->utilization_window_ms;
    memset(made->nvlink_to, 0, sizeof made->nvlink_to); /* instances have no peers */
}

static void share_compute(struct sim_card *made, const struct sim_card *whole, uint32_t sm_count) {
    made->sm_count = sm_count;
    made->context_chunks = whole->context_chunks * sm_count / whole->sm_count;
    made->tflops_fp32 = whole->tflops_fp32 * (float)sm_count / (float)whole->sm_count;
    made->tflops_fp16 = whole->tflops_fp16 * (float)sm_count / (float)whole->sm_count;
}

static void fill_gpu_instance(struct sim_card *made, const struct sim_card *board, uint32_t profile,
                              uint32_t first) {
    const struct sim_mig_profile *shape = &board->mig_profiles[profile];
    uint64_t chunks = (board->memory_bytes + board->driver_bytes) >> SIM_CHUNK_SHIFT;
    uint32_t slices = memory_slices(board);
    uint32_t chunk = (uint32_t)(chunks / slices) * first;
    made->board = board->index;
    made->mig_profile = profile;
    made->first_slice = first;
    made->slice_count = shape->size;
    made->instance_id = gpu_instance_id(slices, first, shape->size);
    made->chunk_count = shape->memory_chunks;
    made->driver_bytes = 0; /* NVIDIA's instance sizes exclude it */
    made->memory_bytes = (uint64_t)shape->memory_chunks << SIM_CHUNK_SHIFT;
    made->chunk_offset = board->chunk_offset + chunk * sizeof(uint32_t);
    made->memory_offset = board->memory_offset + ((uint64_t)chunk << SIM_CHUNK_SHIFT);
    made->async_engines = shape->copy_engines;
    made->l2_bytes = board->l2_bytes / slices * shape->size;
    made->memory_bus_bits = board->memory_bus_bits / slices * shape->size;
    made->memory_bandwidth = board->memory_bandwidth / slices * shape->size;
    share_compute(made, board, shape->sm_count);
}

static int new_gpu_instance(struct machine *machine, struct sim_card *board, uint32_t profile,
                            int at, struct sim_card **out) {
    const struct sim_mig_profile *shape = &board->mig_profiles[profile];
    if (!atomic_load(&board->mig_enabled)) return ENODEV;
    if (at >= SIM_MEMORY_SLICES || (at >= 0 && !(shape->starts >> at & 1))) return EINVAL;
    uint32_t taken = taken_slices(machine, board);
    struct sim_card *made = free_record(machine, board, SIM_INSTANCE_GPU);
    if (!made || count_of(machine, board, profile) >= shape->instances) return ENOSPC;
    /* Prefer the last place: large instances begin at the front. */
    for (int first = SIM_MEMORY_SLICES - 1; first >= 0 && at < 0; first--)
        if (fits(shape, taken, (uint32_t)first)) at = first;
    if (at < 0 || !fits(shape, taken, (uint32_t)at)) return ENOSPC;
    begin(made, board, (uint32_t)(made - machine->cards));
    fill_gpu_instance(made, board, profile, (uint32_t)at);
    atomic_store(&made->instance, SIM_INSTANCE_GPU);
    *out = made;
    return 0;
}

int machine_create_gpu_instance(struct machine *machine, struct sim_card *board, uint32_t profile,
                                int first, struct sim_card **out) {
    machine_table_lock(machine);
    int error = new_gpu_instance(machine, board, profile, first, out);
    machine_table_unlock(machine);
    return error;
}

void machine_mig_name(const struct sim_mig_profile *profile, uint32_t slices, char *text,
                      size_t size) {
    char part[16] = "";
    if (slices && slices != profile->slices) snprintf(part, sizeof part, "%uc.", slices);
    snprintf(text, size, "%s%ug.%ugb%s", part, profile->slices, profile->gigabytes,
             profile->media_extensions ? "+me" : "");
}

uint32_t machine_mig_sms(const struct sim_card *gpu_instance, uint32_t slices) {
    const struct sim_mig_profile *shape = &gpu_instance->mig_profiles[gpu_instance->mig_profile];
    if (slices == shape->slices) return shape->sm_count;
    uint32_t least = shape->sm_count;
    for (int i = 0; i < SIM_MAX_MIG_PROFILES; i++) /* a slice is the smallest instance's size */
        if (gpu_instance->mig_profiles[i].slices == 1 &&
            gpu_instance->mig_profiles[i].sm_count < least)
            least = gpu_instance->mig_profiles[i].sm_count;
    return least * slices;
}

/* An instance recreated on the same card has the same UUID. FNV-1a, twice. */
static void name_instance(struct sim_card *made, const struct sim_card *board,
                          uint32_t gpu_instance_id) {
    char kind[32];
    uint32_t ids[2] = {gpu_instance_id, made->instance_id};
    for (uint64_t half = 0; half < 2; half++) {
        uint64_t hash = UINT64_C(0xcbf29ce484222325) + half;
        for (size_t i = 0; i < sizeof board->uuid; i++)
            hash = (hash ^ board->uuid[i]) * UINT64_C(0x100000001b3);
        for (size_t i = 0; i < sizeof ids; i++)
            hash = (hash ^ ((const uint8_t *)ids)[i]) * UINT64_C(0x100000001b3);
        memcpy(made->uuid + 8 * half, &hash, sizeof hash);
    }
    made->uuid[6] = (uint8_t)(0x50 | (made->uuid[6] & 0x0f));
    made->uuid[8] = (uint8_t)(0x80 | (made->uuid[8] & 0x3f));
    machine_mig_name(&board->mig_profiles[made->mig_profile], made->slice_count, kind, sizeof kind);
    size_t used = strlen(board->name);
    snprintf(made->name + used, sizeof made->name - used, " MIG %s", kind);
}

static int new_compute_instance(struct machine *machine, struct sim_card *whole, uint32_t slices,
                                int at, struct sim_card **out) {
    if (atomic_load(&whole->instance) != SIM_INSTANCE_GPU) return ENOENT;
    struct sim_card *board = &machine->cards[whole->board];
    uint32_t all = board->mig_profiles[whole->mig_profile].slices;
    uint32_t taken = 0;
    uint32_t ids = 0;
    if (slices == 0 || slices > all || (at >= 0 && (uint32_t)at + slices > all)) return EINVAL;
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        const struct sim_card *other =
            machine_instance(machine, board, SIM_INSTANCE_COMPUTE, place);
        if (!other || other->memory_record != whole->index) continue;
        taken |= ((1u << other->slice_count) - 1) << other->first_slice;
        ids |= 1u << other->instance_id;
    }
    uint32_t mask = (1u << slices) - 1;
    for (int first = 0; (uint32_t)first + slices <= all && at < 0; first++)
        if (!(taken >> first & mask)) at = first;
    struct sim_card *made = free_record(machine, board, SIM_INSTANCE_COMPUTE);
    if (!made || at < 0 || (taken >> at & mask)) return ENOSPC;
    begin(made, whole, (uint32_t)(made - machine->cards));
    made->board = board->index;
    made->memory_record = whole->index;
    made->mig_profile = whole->mig_profile;
    made->first_slice = (uint32_t)at;
    made->slice_count = slices;
    made->instance_id = (uint32_t)__builtin_ctz(~ids);
    share_compute(made, whole, machine_mig_sms(whole, slices));
    name_instance(made, board, whole->instance_id);
    atomic_store(&made->instance, SIM_INSTANCE_COMPUTE);
    *out = made;
    return 0;
}

int machine_create_compute_instance(struct machine *machine, struct sim_card *gpu_instance,
                                    uint32_t slices, int first, struct sim_card **out) {
    machine_table_lock(machine);
    int error = new_compute_instance(machine, gpu_instance, slices, first, out);
    machine_table_unlock(machine);
    return error;
}

/* ---- visibility: device files, in the order of NVIDIA's /proc/driver/nvidia-caps/mig-minors
 * ---- */

static bool capability(const struct machine *machine, uint32_t minor) {
    char path[sizeof machine->directory + 64];
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%u", machine->directory, minor);
    return access(path, R_OK) == 0;
}

bool machine_may_configure(const struct machine *machine) {
    return capability(machine, SIM_CAPABILITY_CONFIG);
}

bool machine_instance_visible(const struct machine *machine, const struct sim_card *instance) {
    const struct sim_card *whole = &machine->cards[instance->memory_record];
    uint32_t of_gpu =
        SIM_CAPABILITY_FIRST +
        (instance->minor * SIM_CAPABILITY_INSTANCES + whole->instance_id) * SIM_CAPABILITY_FILES;
    return capability(machine, of_gpu) && capability(machine, of_gpu + 1 + instance->instance_id);
}

/* ---- destruction ---- */

static bool has_processes(struct machine *machine, const struct sim_card *instance) {
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++)
        if (atomic_load(&machine->header->process_state[slot]) != SIM_PROCESS_FREE &&
            machine->processes[slot].instance == instance->index)
            return true;
    return false;
}

static bool has_compute_instances(struct machine *machine, const struct sim_card *gpu_instance) {
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        const struct sim_card *other = machine_instance(
            machine, &machine->cards[gpu_instance->board], SIM_INSTANCE_COMPUTE, place);
        if (other && other->memory_record == gpu_instance->index) return true;
    }
    return false;
}

int machine_destroy_instance(struct machine *machine, struct sim_card *instance) {
    int error = 0;
    machine_table_lock(machine);
    machine_reap_locked(machine);
    uint32_t kind = atomic_load(&instance->instance);
    if (kind == SIM_INSTANCE_NONE)
        error = ENOENT;
    else if (kind == SIM_INSTANCE_GPU ? has_compute_instances(machine, instance)
                                      : has_processes(machine, instance))
        error = EBUSY;
    else
        atomic_store(&instance->instance, SIM_INSTANCE_NONE);
    machine_table_unlock(machine);
    return error;
}
