/* Contexts: the memory that one takes, and the memory that ends with it.
 *
 * No call tells how much a context takes. The driver takes it while it makes the context, so it is
 * measured there: as the growth of the card's used memory according to NVML, because the driver's
 * own question needs a context. The processes of a slice make their contexts one after the other,
 * and each first reserves the size of the slice's last context. So contexts that begin together
 * never take more than the slice has.
 *
 * A neighbour that takes or frees memory at that moment falsifies the measurement. NVML's figure of
 * this process then counts, where NVML lists it under the pid that it has here: in no container
 * with pids of its own. Otherwise, if a measurement differs from the last one, the lesser of the
 * two counts. The agent adds what is missing, by the driver's figures of the processes
 * (`overhead_bytes`).
 */
#define _GNU_SOURCE
#include "interposer.h"

#include "parking/parking.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum {
    SURPRISE_BYTES = 32 << 20, /* two contexts that differ by more: a neighbour may be the cause */
    MOST_BYTES = 1 << 30,      /* of the first context; an empty one has up to 612 MiB (a B200) */
    TURN_LOOK_NS = 1000000,
    MAX_ORDINALS = 64,
};
/* Then another process's context is waited for no longer: the process may be stopped. */
static const uint64_t TURN_PATIENCE_NS = 10000000000u;
/* Of a key in the table: the context's own memory, beside that of its limits (local.c). */
static const uint64_t OWN_KEY = UINT64_C(0xff) << 56;

static egpu_lock primary_lock;
static CUcontext primary[MAX_ORDINALS];

void contexts_forget(void) {
    primary_lock.word = loading.word = 0;
    memset(primary, 0, sizeof primary);
    pools_forget();
    graphs_forget();
    local_forget();
    kernels_changed();
}

/* ---- contexts that begin ---- */

struct creation {
    CUresult (*make)(struct creation *creation);
    CUresult (*undo)(struct creation *creation);
    CUcontext *context; /* the driver puts it there */
    CUdevice ordinal;
    unsigned flags;
    int affinities;
    CUexecAffinityParam *affinity;
    CUctxCreateParams *parameters;
};

/* Waits until no other process of the slice makes a context. Returns the file to end the turn with,
 * or -1. */
static int turn_take(void) {
    char path[PATH_MAX];
    const char *usage = slice_path("usage", path, sizeof path);
    int file = usage == NULL ? -1 : open(usage, O_RDONLY | O_CLOEXEC);
    uint64_t deadline = now_ns() + TURN_PATIENCE_NS;
    while (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0 && now_ns() < deadline)
        sleep_ns(TURN_LOOK_NS);
    return file;
}

static void turn_end(int file) {
    if (file < 0) return;
    flock(file, LOCK_UN); /* a child that was forked meanwhile has the file, too */
    close(file);
}

/* The charge for a context that took so much where `expected` is reserved. */
static uint64_t charge_for(uint64_t took, uint64_t expected) {
    if (expected == 0) return took < MOST_BYTES ? took : MOST_BYTES;
    return took > expected + SURPRISE_BYTES ? expected : took;
}

/* What the card's growth says, or this process's own by NVML, if the card's has a neighbour's in
 * it. */
static uint64_t taken(uint64_t by_card, uint64_t own) {
    return own != 0 && by_card > own + SURPRISE_BYTES ? own : by_card;
}

/* `*bytes` are reserved for it, and set right. */
static CUresult make_measured(struct creation *creation, int device, uint64_t *bytes) {
    bool is_measured = measure_open();
    int64_t before = is_measured ? measure_card(device, *bytes) : 0;
    int64_t own = is_measured ? measure_own(device) : 0;
    CUresult result = creation->make(creation);
    uint64_t took = *bytes;
    if (is_measured && result == CUDA_SUCCESS)
        took = taken(measure_grown(before, measure_card(device, *bytes)),
                     measure_grown(own, measure_own(device)));
    if (is_measured) measure_close();
    if (result != CUDA_SUCCESS) return result;
    uint64_t charged = charge_for(took, *bytes);
    slice_usage()->devices[device].context_bytes = took < MOST_BYTES ? took : MOST_BYTES;
    if (charged < *bytes) account_release(device, EGPU_MEMORY_MODULE, *bytes - charged);
    if (charged > *bytes && !module_reserve(device, charged - *bytes)) {
        creation->undo(creation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *bytes = charged;
    return CUDA_SUCCESS;
}

static CUresult make_charged(struct creation *creation, int device) {
    uint64_t bytes = slice_usage()->devices[device].context_bytes;
    if (!module_reserve(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = make_measured(creation, device, &bytes);
    if (result != CUDA_SUCCESS) {
        account_release(device, EGPU_MEMORY_MODULE, bytes);
        return result;
    }
    CUcontext context = *creation->context;
    uint64_t key = (uint64_t)(uintptr_t)context | OWN_KEY;
    if (bytes == 0 || module_book(HOLDING_CONTEXT, key, bytes, context, device))
        return CUDA_SUCCESS;
    creation->undo(creation);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A device that is not the slice's gets no memory anyway, and a bad call the driver's own error. */
static CUresult context_begins(struct creation *creation) {
    device_used(creation->ordinal);
    int device = device_of_ordinal(creation->ordinal);
    if (device < 0 || creation->context == NULL) return creation->make(creation);
    lock_take(&loading);
    int turn = turn_take();
    CUresult result = make_charged(creation, device);
    turn_end(turn);
    lock_drop(&loading);
    return result;
}

static CUresult retain_primary(struct creation *creation) {
    return REAL(cuDevicePrimaryCtxRetain)(creation->context, creation->ordinal);
}
static CUresult release_primary(struct creation *creation) {
    return REAL(cuDevicePrimaryCtxRelease_v2) != NULL
               ? REAL(cuDevicePrimaryCtxRelease_v2)(creation->ordinal)
               : REAL(cuDevicePrimaryCtxRelease)(creation->ordinal);
}

static bool primary_is_active(CUdevice ordinal) {
    unsigned flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState) != NULL &&
           REAL(cuDevicePrimaryCtxGetState)(ordinal, &flags, &active) == CUDA_SUCCESS && active;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    if (!slice_open()) return REFUSED;
    struct creation creation = {
        .make = retain_primary, .undo = release_primary, .context = context, .ordinal = ordinal};
    CUresult result =
        primary_is_active(ordinal) ? retain_primary(&creation) : context_begins(&creation);
    if (result == CUDA_SUCCESS && context != NULL && ordinal >= 0 && ordinal < MAX_ORDINALS) {
        lock_take(&primary_lock);
        primary[ordinal] = *context;
        lock_drop(&primary_lock);
    }
    return result;
}

static CUresult destroy(struct creation *creation) {
    return REAL(cuCtxDestroy_v2) != NULL ? REAL(cuCtxDestroy_v2)(*creation->context)
                                         : REAL(cuCtxDestroy)(*creation->context);
}

static CUresult create(struct creation *creation) {
    if (!slice_open()) return REFUSED;
    creation->undo = destroy;
    return context_begins(creation);
}

static CUresult create_v1(struct creation *is) {
    return REAL(cuCtxCreate)(is->context, is->flags, is->ordinal);
}
static CUresult create_v2(struct creation *is) {
    return REAL(cuCtxCreate_v2)(is->context, is->flags, is->ordinal);
}
static CUresult create_v3(struct creation *is) {
    return REAL(cuCtxCreate_v3)(is->context, is->affinity, is->affinities, is->flags, is->ordinal);
}
static CUresult create_v4(struct creation *is) {
    return REAL(cuCtxCreate_v4)(is->context, is->parameters, is->flags, is->ordinal);
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice ordinal) {
    return create(&(struct creation){
        .make = create_v1, .context = context, .flags = flags, .ordinal = ordinal});
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal) {
    return create(&(struct creation){
        .make = create_v2, .context = context, .flags = flags, .ordinal = ordinal});
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                               unsigned flags, CUdevice ordinal) {
    return create(&(struct creation){.make = create_v3,
                                     .context = context,
                                     .affinity = affinity,
                                     .affinities = count,
                                     .flags = flags,
                                     .ordinal = ordinal});
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags,
                               CUdevice ordinal) {
    return create(&(struct creation){.make = create_v4,
                                     .context = context,
                                     .parameters = parameters,
                                     .flags = flags,
                                     .ordinal = ordinal});
}

/* ---- contexts that end ---- */

/* What a context holds is taken out before the driver ends it: afterwards the next one may have its
 * handle. No library is taken into it meanwhile. `alone`: and nobody allocates. */
static void context_ends(CUcontext context, struct holdings *holdings, bool alone) {
    park_wait();
    lock_take(&loading);
    if (alone) {
        slice_pause();
        measure_wait_for_rest();
    }
    kernels_changed();
    table_take_owned((uint64_t)(uintptr_t)context, HOLDINGS_OF_CONTEXT, holdings);
}

enum outcome { STAYED, EMPTIED, GONE }; /* emptied: only its own memory stays */

static void context_ended(CUcontext context, struct holdings *holdings, bool alone,
                          enum outcome outcome) {
    bool gone = outcome != STAYED;
    if (gone) {
        managed_context_gone(context);
        for (unsigned i = 0; i < holdings->count; i++) {
            const struct holding *holding = &holdings->list[i];
            bool is_own = holding->kind == HOLDING_CONTEXT && (holding->key & OWN_KEY) == OWN_KEY;
            if (outcome == EMPTIED && is_own && table_add(holding)) continue;
            account_release(holding->device, holding->class, holding->bytes);
        }
        free(holdings->list);
        local_context_gone(context);
        compute_forget_context(context);
        device_contexts_changed();
        kernels_changed();
    } else {
        table_put_back(holdings);
    }
    if (alone) slice_resume();
    lock_drop(&loading);
    if (gone) pools_settle();
}

#define DESTROY(SYMBOL)                                                                   \
    EXPORT CUresult SYMBOL(CUcontext context) {                                           \
        struct holdings holdings = {0};                                                   \
        if (!slice_open()) return REFUSED;                                                \
        if (context == NULL) return REAL(SYMBOL)(context);                                \
        context_ends(context, &holdings, false);                                          \
        CUresult result = REAL(SYMBOL)(context);                                          \
        context_ended(context, &holdings, false, result == CUDA_SUCCESS ? GONE : STAYED); \
        return result;                                                                    \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* A primary context comes back under its handle, and perhaps at once. */
static CUresult primary_ends(CUdevice ordinal, CUresult (*call)(CUdevice), bool is_reset) {
    struct holdings holdings = {0};
    CUcontext context = ordinal < 0 || ordinal >= MAX_ORDINALS ? NULL : primary[ordinal];
    if (context == NULL) return call(ordinal);
    context_ends(context, &holdings, true);
    CUresult result = call(ordinal);
    bool is_active = primary_is_active(ordinal);
    enum outcome outcome = result != CUDA_SUCCESS ? STAYED
                           : !is_active           ? GONE
                           : is_reset             ? EMPTIED
                                                  : STAYED;
    context_ended(context, &holdings, true, outcome);
    return result;
}

#define PRIMARY_ENDS(SYMBOL, IS_RESET)                        \
    EXPORT CUresult SYMBOL(CUdevice ordinal) {                \
        if (!slice_open()) return REFUSED;                    \
        return primary_ends(ordinal, REAL(SYMBOL), IS_RESET); \
    }
PRIMARY_ENDS(cuDevicePrimaryCtxRelease, false)
PRIMARY_ENDS(cuDevicePrimaryCtxRelease_v2, false)
PRIMARY_ENDS(cuDevicePrimaryCtxReset, true)
PRIMARY_ENDS(cuDevicePrimaryCtxReset_v2, true)
