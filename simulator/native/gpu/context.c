#include "gate.h"
#include "graph.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_MAX (512u << 10) /* of a thread, on every card so far */

struct engine engine = {.lock = PTHREAD_MUTEX_INITIALIZER};

static atomic_int state; /* 0 no cuInit yet, 1 ready, 2 a forked child of a ready process */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct context *stack[CONTEXT_STACK];
static _Thread_local int depth;

/* ---- engine ---- */

/* The child must hold neither the machine's locks nor its identity: the open file has both. */
static void after_fork(void) {
    if (atomic_load(&state) == 0) return;
    atomic_store(&state, 2);
    depth = 0;
    gate_after_fork();
    mps_leave();
    if (engine.machine.fd >= 0) close(engine.machine.fd);
    engine.machine.fd = -1;
}

static CUresult find_devices(void) {
    struct sim_card *chosen[SIM_MAX_CARDS];
    engine.device_count = visible_devices(&engine.machine, chosen);
    for (int i = 0; i < engine.device_count; i++) {
        struct device *device = &engine.devices[i];
        *device = (struct device){.card = chosen[i], .ordinal = i};
        memory_init(&device->mapped, &engine.machine, device->card, NULL);
        device->memory_place = (struct pool_place){.device = device};
        device->managed_place = (struct pool_place){.kind = EXTENT_MANAGED, .preferred = i};
        if (!pool_place_init(&device->memory_place) || !pool_place_init(&device->managed_place))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    engine.pinned_place.kind = EXTENT_PINNED;
    engine.managed_place.kind = engine.managed_host_place.kind = EXTENT_MANAGED;
    engine.managed_place.preferred = MANAGED_NOWHERE;
    engine.managed_host_place.preferred = MANAGED_HOST;
    if (!pool_place_init(&engine.pinned_place) || !pool_place_init(&engine.managed_place) ||
        !pool_place_init(&engine.managed_host_place))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return engine.device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static CUresult init_once(void) {
    char directory[sizeof engine.machine.directory];
    static bool fork_handler;
    if (machine_library_directory((const void *)&engine, directory, sizeof directory) != 0)
        return CUDA_ERROR_UNKNOWN;
    int error = machine_open(&engine.machine, directory);
    if (error) {
        if (error == EPROTO)
            engine_say("%s/machine is not of layout %u; create it again", directory,
                       SIM_LAYOUT_VERSION);
        else
            engine_say("cannot open %s/machine: %s", directory, strerror(error));
        return CUDA_ERROR_NO_DEVICE;
    }
    CUresult result = find_devices();
    const struct sim_card *first = result == CUDA_SUCCESS ? engine.devices[0].card : NULL;
    if (first && (error = machine_join(&engine.machine,
                                       atomic_load(&first->instance) ? first : NULL)) != 0) {
        if (error == ENOSPC) engine_say("%u processes use this machine already", SIM_MAX_PROCESSES);
        /* destroyed since the check */
        result = error == ENOSPC ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NO_DEVICE;
    }
    if (result == CUDA_SUCCESS) result = mps_join();
    if (result == CUDA_SUCCESS) result = checkpoint_start();
    if (result != CUDA_SUCCESS) {
        machine_close(&engine.machine);
        return result;
    }
    if (!fork_handler) pthread_atfork(NULL, NULL, after_fork);
    fork_handler = true;
    return CUDA_SUCCESS;
}

CUresult engine_init(void) {
    CUresult result = CUDA_SUCCESS;
    if (atomic_load(&state) == 2) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_lock);
    if (atomic_load(&state) == 0) {
        result = init_once();
        if (result == CUDA_SUCCESS) atomic_store(&state, 1);
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

bool engine_ready(void) { return atomic_load_explicit(&state, memory_order_acquire) == 1; }

struct device *engine_device(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < engine.device_count ? &engine.devices[ordinal] : NULL;
}

/* ---- contexts ---- */

static const size_t first_limits[CU_LIMIT_MAX] = {
    [CU_LIMIT_STACK_SIZE] = 1024,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

CUresult context_activate(struct context *context) {
    struct device *device = context->device;
    const struct sim_card *board = machine_board_of(&engine.machine, device->card);
    context->lost_seen = atomic_load(&board->lost);
    context->ecc_seen = atomic_load(&board->ecc_uncorrected);
    if (context->lost_seen & 1 || machine_add_context(&engine.machine, device->card) != 0)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    memory_clear(&context->memory); /* of a call that was in progress when the context ended */
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (memory_reserve(&context->memory, device->card->context_chunks) == 0)
        result = stream_create(context, CU_STREAM_DEFAULT, 0, true, &context->legacy);
    if (result != CUDA_SUCCESS) {
        memory_clear(&context->memory);
        machine_remove_context(&engine.machine, device->card);
        return result;
    }
    memcpy(context->limits, first_limits, sizeof first_limits);
    memset(context->held, 0, sizeof context->held);
    atomic_store(&context->local_bytes, 0);
    atomic_store(&context->cancel, 0);
    atomic_store(&context->peers, 0);
    atomic_store(&context->error, CUDA_SUCCESS);
    atomic_store(&context->alive, true);
    return CUDA_SUCCESS;
}

CUresult context_create(struct device *device, unsigned flags, bool primary, struct context **out) {
    static _Atomic unsigned long long next_id = 1;
    struct context *context = calloc(1, sizeof *context);
    if (!context || !handle_add(context, HANDLE_CONTEXT)) {
        free(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->device = device;
    context->flags = flags;
    context->primary = primary;
    context->id = atomic_fetch_add(&next_id, 1);
    pthread_mutex_init(&context->lock, NULL);
    pthread_mutex_init(&context->print_lock, NULL);
    memory_init(&context->memory, &engine.machine, device->card, context);
    CUresult result = context_activate(context);
    if (result != CUDA_SUCCESS) {
        handle_remove(context);
        free(context);
        return result;
    }
    *out = context;
    return CUDA_SUCCESS;
}

/* Take card memory for a limit's increase; the initial limit is part of a context's cost. Every
 * thread that can be resident has local memory. */
static CUresult hold_limit(struct context *context, CUlimit limit, size_t value) {
    const struct sim_card *card = context->device->card;
    uint64_t each = limit == CU_LIMIT_STACK_SIZE
                        ? (uint64_t)card->sm_count * card->max_threads_per_sm
                        : limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
    uint64_t beyond = value > first_limits[limit] ? value - first_limits[limit] : 0, bytes;
    if (__builtin_mul_overflow(beyond, each, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    return memory_hold(&context->memory, &context->held[limit], bytes) == 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult context_set_limit(struct context *context, CUlimit limit, size_t value) {
    if (limit == CU_LIMIT_STACK_SIZE && value > STACK_MAX) return CUDA_ERROR_INVALID_VALUE;
    if ((limit == CU_LIMIT_PRINTF_FIFO_SIZE && atomic_load(&context->printed)) ||
        (limit == CU_LIMIT_MALLOC_HEAP_SIZE && atomic_load(&context->heap)))
        return CUDA_ERROR_INVALID_VALUE; /* its memory is in use */
    pthread_mutex_lock(&context->lock);
    size_t needed = value;
    if (limit == CU_LIMIT_STACK_SIZE && atomic_load(&context->local_bytes) > value)
        needed = atomic_load(&context->local_bytes);
    CUresult result = hold_limit(context, limit, needed);
    if (result == CUDA_SUCCESS) context->limits[limit] = value;
    pthread_mutex_unlock(&context->lock);
    return result;
}

CUresult context_need_local(struct context *context, uint32_t bytes) {
    CUresult result = CUDA_SUCCESS;
    if (bytes <= atomic_load_explicit(&context->local_bytes, memory_order_relaxed))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&context->lock);
    if (bytes > context->limits[CU_LIMIT_STACK_SIZE])
        result = hold_limit(context, CU_LIMIT_STACK_SIZE, bytes);
    if (result == CUDA_SUCCESS && bytes > atomic_load(&context->local_bytes))
        atomic_store(&context->local_bytes, bytes);
    pthread_mutex_unlock(&context->lock);
    return result;
}

void context_look(struct context *context) {
    const struct sim_card *card = machine_board_of(&engine.machine, context->device->card);
    if (atomic_load_explicit(&card->lost, memory_order_relaxed) != context->lost_seen)
        context_fail(context, CUDA_ERROR_UNKNOWN, "the card has fallen off the bus");
    else if (atomic_load_explicit(&card->ecc_uncorrected, memory_order_relaxed) !=
             context->ecc_seen)
        context_fail(context, CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error");
    CUresult shared = mps_look();
    if (shared != CUDA_SUCCESS)
        context_fail(context, shared, "the MPS server or another client failed");
}

/* The struct itself stays: other threads may still have it on their stacks, and find it dead. */
CUresult context_destroy(struct context *context) {
    bool was = true;
    if (!atomic_compare_exchange_strong(&context->alive, &was, false))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (atomic_load(&context->error) != CUDA_SUCCESS) atomic_store(&context->cancel, 1);
    context_synchronize(context);
    while (context->modules) module_unload(context->modules);
    for (;;) {
        pthread_mutex_lock(&context->lock);
        struct stream *stream = context->streams;
        if (stream) atomic_fetch_add(&stream->refs, 1);
        pthread_mutex_unlock(&context->lock);
        if (!stream) break;
        stream_destroy(stream);
        stream_unref(stream);
    }
    context->legacy = NULL;
    print_context_gone(context);
    heap_context_gone(context);
    texture_context_gone(context);
    array_context_gone(context);
    pool_context_gone(context);
    graph_memory_context_gone(context);
    memory_clear(&context->memory);
    memory_host_clear(context, host_memory_gone);
    machine_remove_context(&engine.machine, context->device->card);
    return CUDA_SUCCESS;
}

void context_fail(struct context *context, CUresult error, const char *why) {
    int none = CUDA_SUCCESS;
    if (atomic_compare_exchange_strong(&context->error, &none, (int)error))
        engine_explain("%s", why);
}

CUresult context_synchronize(struct context *context) {
    /* Streams may come and go meanwhile. Work submitted after this call is not waited for. */
    for (;;) {
        struct stream *busy = NULL;
        uint64_t number = 0;
        pthread_mutex_lock(&context->lock);
        for (struct stream *stream = context->streams; stream && !busy; stream = stream->next)
            if (stream_pending(stream, &number)) {
                busy = stream;
                atomic_fetch_add(&stream->refs, 1);
            }
        pthread_mutex_unlock(&context->lock);
        if (!busy) break;
        stream_wait(busy, number);
        stream_unref(busy);
    }
    print_flush(context);
    pool_synchronized(context->device);
    return (CUresult)atomic_load(&context->error);
}

/* ---- primary contexts ---- */

CUresult primary_retain(struct device *device, struct context **out) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&engine.lock);
    if (!device->primary)
        result = context_create(device, device->primary_flags, true, &device->primary);
    else if (!atomic_load(&device->primary->alive))
        result = context_activate(device->primary);
    if (result == CUDA_SUCCESS) {
        device->primary->flags = device->primary_flags;
        device->primary_refs++;
        *out = device->primary;
    }
    pthread_mutex_unlock(&engine.lock);
    return result;
}

CUresult primary_release(struct device *device) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&engine.lock);
    if (device->primary_refs == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--device->primary_refs == 0)
        context_destroy(device->primary);
    pthread_mutex_unlock(&engine.lock);
    return result;
}

/* Free everything the context owned. A context that is still retained starts again, empty. */
CUresult primary_reset(struct device *device) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&engine.lock);
    if (device->primary && atomic_load(&device->primary->alive)) {
        context_destroy(device->primary);
        if (device->primary_refs > 0) result = context_activate(device->primary);
    }
    pthread_mutex_unlock(&engine.lock);
    return result;
}

/* ---- the thread's stack ---- */

struct context *context_current(void) { return depth ? stack[depth - 1] : NULL; }

CUresult context_current_checked(struct context **out) {
    if (!engine_ready()) return CUDA_ERROR_NOT_INITIALIZED;
    struct context *context = context_current();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!atomic_load_explicit(&context->alive, memory_order_acquire))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    context_look(context);
    int error = atomic_load_explicit(&context->error, memory_order_relaxed);
    if (error != CUDA_SUCCESS) {
        print_flush(context); /* an error stops the call before it synchronises */
        return (CUresult)error;
    }
    *out = context;
    return CUDA_SUCCESS;
}

CUresult context_push(struct context *context) {
    if (depth == CONTEXT_STACK) return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult context_pop(struct context **out) {
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    *out = stack[--depth];
    return CUDA_SUCCESS;
}

void context_set(struct context *context) {
    if (!context) {
        if (depth) depth--;
    } else if (depth)
        stack[depth - 1] = context;
    else
        stack[depth++] = context;
}

CUresult context_check(CUcontext handle, struct context **out) {
    struct context *context = (struct context *)handle;
    if (handle_kind_of(context) != HANDLE_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
    if (!atomic_load(&context->alive)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = context;
    return CUDA_SUCCESS;
}
