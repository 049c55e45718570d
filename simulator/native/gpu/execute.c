/* Execution of each operation by a stream's worker. */
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "egpu_streaming.h"

#define NEAR_BYTES (512u << 10) /* fits into one processor's cache */
#define CHARGE_NS 100000000u    /* a kernel that has the card for long is charged in such pieces */
#define LAUNCH_OVERHEAD_NS 2000 /* for a kernel whose duration is derived from its work */

/* ---- memory ---- */

bool context_may_touch(const struct context *context, const struct extent *extent) {
    if (extent->kind != EXTENT_DEVICE || extent->owner == context) return true;
    if (extent->block_kind == BLOCK_MAPPED) return extent->access >> context->device->ordinal & 1;
    const struct context *owner = extent->owner;
    if (owner->device == context->device) return true;
    const struct pool *pool = extent->pool;
    if (pool && pool->access >> context->device->ordinal & 1) return true;
    return atomic_load(&context->peers) >> owner->device->ordinal & 1;
}

/* Return the bytes from the first to the last. If they overflow, return more than any memory
 * covers. */
static size_t span(size_t width, size_t rows, size_t pitch, size_t slices, size_t slice) {
    size_t of_rows, of_slices, bytes;
    bool over = __builtin_mul_overflow(rows - 1, pitch, &of_rows) ||
                __builtin_mul_overflow(slices - 1, slice, &of_slices);
    over = over || __builtin_add_overflow(of_rows, of_slices, &bytes) ||
           __builtin_add_overflow(bytes, width, &bytes);
    return over ? SIZE_MAX : bytes;
}

/* Ranges that were mapped side by side count as one range. */
static bool covered(uint64_t address, size_t bytes, bool *mapped_by_program) {
    struct extent extent;
    *mapped_by_program = false;
    while (memory_find(address, &extent)) {
        if (extent.kind == EXTENT_DEVICE && extent.block_kind == BLOCK_MAPPED) {
            *mapped_by_program = true;
            if (!extent.access) return false;
        }
        uint64_t there = extent.size - (address - extent.base);
        if (bytes <= there) return true;
        if (!*mapped_by_program) return false;
        address += there;
        bytes -= there;
    }
    return false;
}

/* Copies may cross devices without peer access: the driver stages them. */
static CUresult check_side(uint64_t address, size_t bytes, bool device) {
    struct extent extent;
    bool mapped;
    if (!memory_find(address, &extent)) {
        /* of a graph that was launched but has not run yet */
        if (graph_memory_covers(address, bytes)) return CUDA_SUCCESS;
        return device || !address ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    if (extent.kind == EXTENT_REGISTERED && !device) return CUDA_SUCCESS;
    return covered(address, bytes, &mapped) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool nothing(const struct copy *copy) {
    return copy->width == 0 || copy->rows == 0 || copy->slices == 0;
}

CUresult copy_check(const struct context *context, const struct copy *copy) {
    (void)context;
    if (nothing(copy)) return CUDA_SUCCESS;
    size_t out = span(copy->width, copy->rows, copy->destination_pitch, copy->slices,
                      copy->destination_slice);
    size_t in = span(copy->width, copy->rows, copy->source_pitch, copy->slices, copy->source_slice);
    CUresult result = check_side(copy->destination, out, copy->destination_device);
    return result != CUDA_SUCCESS ? result : check_side(copy->source, in, copy->source_device);
}

static CUresult populate(uint64_t address, size_t bytes) {
    struct extent extent;
    while (bytes && memory_find(address, &extent) && extent.kind == EXTENT_DEVICE) {
        uint64_t part = extent.size - (address - extent.base);
        if (part > bytes) part = bytes;
        int error = memory_populate(&extent, address, part, NULL, NULL);
        if (error) {
            engine_say("no room in /dev/shm for device memory: %s", strerror(error));
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        address += part;
        bytes -= part;
    }
    return CUDA_SUCCESS;
}

/* Return whether it is memory of a graph that is not allocated now. */
static bool missing(uint64_t address) {
    struct extent extent;
    return graph_memory_covers(address, 1) && !memory_find(address, &extent);
}

CUresult copy_run(const struct context *context, const struct copy *copy) {
    if (nothing(copy)) return CUDA_SUCCESS;
    /* again: it may have been freed while the copy was queued */
    CUresult result = copy_check(context, copy);
    if (result != CUDA_SUCCESS) return result;
    if (missing(copy->destination) || missing(copy->source)) return CUDA_ERROR_INVALID_VALUE;
    size_t out = span(copy->width, copy->rows, copy->destination_pitch, copy->slices,
                      copy->destination_slice);
    size_t in = span(copy->width, copy->rows, copy->source_pitch, copy->slices, copy->source_slice);
    if ((result = populate(copy->destination, out)) != CUDA_SUCCESS) return result;
    if ((result = populate(copy->source, in)) != CUDA_SUCCESS) return result;
    for (size_t slice = 0; slice < copy->slices; slice++)
        for (size_t row = 0; row < copy->rows; row++) {
            uint64_t to =
                copy->destination + slice * copy->destination_slice + row * copy->destination_pitch;
            uint64_t from = copy->source + slice * copy->source_slice + row * copy->source_pitch;
            bool apart = to - from >= copy->width && from - to >= copy->width;
            if (apart && (copy->destination_device || copy->width >= NEAR_BYTES))
                copy_streaming((void *)(uintptr_t)to, (const void *)(uintptr_t)from, copy->width);
            else if (apart && copy->width < NEAR_BYTES)
                /* to the host, where so few bytes are still in a cache when they are used */
                copy_near((void *)(uintptr_t)to, (const void *)(uintptr_t)from, copy->width);
            else
                memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, copy->width);
        }
    return CUDA_SUCCESS;
}

CUresult fill_check(const struct context *context, const struct fill *fill) {
    struct extent extent;
    if (fill->width == 0 || fill->rows == 0) return CUDA_SUCCESS;
    if (fill->destination % fill->element || (fill->rows > 1 && fill->pitch % fill->element))
        return CUDA_ERROR_INVALID_VALUE;
    if (fill->width > SIZE_MAX / fill->element) return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = span(fill->width * fill->element, fill->rows, fill->pitch, 1, 0);
    bool mapped;
    if (graph_memory_covers(fill->destination, bytes)) return CUDA_SUCCESS;
    if (!memory_find(fill->destination, &extent) || !context_may_touch(context, &extent))
        return CUDA_ERROR_INVALID_VALUE;
    return covered(fill->destination, bytes, &mapped) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fill_run(const struct context *context, const struct fill *fill) {
    CUresult result = fill_check(context, fill);
    if (result != CUDA_SUCCESS || fill->width == 0 || fill->rows == 0) return result;
    if (missing(fill->destination)) return CUDA_ERROR_INVALID_VALUE;
    result = populate(fill->destination,
                      span(fill->width * fill->element, fill->rows, fill->pitch, 1, 0));
    for (size_t row = 0; row < fill->rows && result == CUDA_SUCCESS; row++) {
        char *to = (char *)(uintptr_t)(fill->destination + row * fill->pitch);
        if (fill->element == 1)
            memset(to, (int)fill->value, fill->width);
        else if (fill->element == 2)
            for (size_t i = 0; i < fill->width; i++) ((uint16_t *)to)[i] = (uint16_t)fill->value;
        else
            for (size_t i = 0; i < fill->width; i++) ((uint32_t *)to)[i] = fill->value;
    }
    return result;
}

/* ---- kernels ---- */

/* The card's lanes work in parallel if there are enough threads. */
static uint64_t derived_ns(const struct sim_card *card, const struct launch *launch,
                           const egpu_ptx_stats *stats) {
    double threads = 1;
    for (int i = 0; i < 3; i++) threads *= (double)launch->grid[i] * launch->block[i];
    double lanes = (double)mps_sm_count(card) * card->cores_per_sm;
    double rate = (threads < lanes ? threads : lanes) * card->sm_clock_mhz * 1e6;
    return LAUNCH_OVERHEAD_NS + (uint64_t)((double)stats->instructions / rate * 1e9);
}

static uint64_t declared_ns(const struct function *function) {
    uint64_t set = atomic_load(&function->duration_ns);
    if (set) return set;
    return function->info->has_duration ? (uint64_t)(function->info->duration_us * 1000) : 0;
}

static void sleep_if_early(uint64_t deadline) {
    if (sim_now() < deadline) sim_sleep_until(deadline);
}

/* Use up the time that was taken, unless the kernel is cancelled. */
static void spend(struct context *context, uint64_t start, uint64_t duration) {
    while (duration && !atomic_load(&context->cancel)) {
        uint64_t piece = duration < CHARGE_NS ? duration : CHARGE_NS;
        machine_charge_time(&engine.machine, context->device->card, start, piece);
        start += piece;
        duration -= piece;
        sleep_if_early(start);
    }
}

static void execute_launch(struct stream *stream, const struct op *op, uint64_t earliest) {
    struct context *context = stream->context;
    struct sim_card *card = context->device->card;
    egpu_ptx_stats stats = {0};
    uint64_t remaining = declared_ns(op->launch.function);
    bool interpreted = remaining == 0;
    uint64_t end = earliest;
    if (interpreted) {
        interpret(context, &op->launch, &stats);
        remaining = mps_of_card(derived_ns(card, &op->launch, &stats));
    }
    if (!stream->runnable) machine_count_runnable(&engine.machine, card, 1);
    stream->runnable = true;
    /* In slices: other processes get their turns, and a killed one leaves at most a slice. */
    while (remaining && !atomic_load(&context->cancel)) {
        uint64_t slice = remaining;
        mps_begin();
        uint64_t start = machine_take_time(&engine.machine, card, end, &slice);
        if (!interpreted) {
            sleep_if_early(start);
            interpret(context, &op->launch, &stats);
            interpreted = true;
        }
        spend(context, start, slice);
        end = mps_end(card, start, slice);
        remaining -= slice;
    }
    stream->last_end_ns = end;
}

/* ---- all operations ---- */

static uint64_t copy_ns(const struct sim_card *card, const struct copy *copy) {
    uint64_t bytes = (uint64_t)copy->width * copy->rows * copy->slices;
    bool on_card = copy->destination_device && copy->source_device;
    double rate = (double)(on_card ? card->memory_bandwidth / 2 : card->pcie_bandwidth);
    return rate > 0 ? (uint64_t)((double)bytes / rate * 1e9) : 0;
}

static void asynchronous_failure(struct context *context, CUresult result) {
    if (result == CUDA_SUCCESS) return;
    context_fail(context, result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_ILLEGAL_ADDRESS : result,
                 "a queued copy or fill failed");
}

static void execute_alloc(struct context *context, const struct op *op) {
    struct physical *physical;
    uint64_t address;
    struct device *device = context->device;
    uint64_t size = op->graph_memory.size;
    int error =
        physical_create(&engine.machine, device->card,
                        (uint32_t)((size + SIM_CHUNK_BYTES - 1) >> SIM_CHUNK_SHIFT), &physical);
    if (!error) {
        error = memory_map(&context->memory, physical, op->graph_memory.address, size, BLOCK_GRAPH,
                           &address);
        physical_release(physical);
    }
    if (error) {
        context_fail(context, CUDA_ERROR_OUT_OF_MEMORY, "a graph's allocation failed");
        return;
    }
    graph_memory_mapped(op->graph_memory.address);
    uint64_t used = atomic_fetch_add(&device->graph_used, size) + size;
    uint64_t high = atomic_load(&device->graph_used_high);
    while (used > high && !atomic_compare_exchange_weak(&device->graph_used_high, &high, used)) {
    }
}

void execute_free(const struct op *op) {
    if (op->release.pool)
        pool_free(op->release.pool, op->release.address, op->release.size);
    else
        memory_free(op->release.address);
}

static void execute_graph(struct stream *stream, const struct op *op) {
    stream->in_graph = true;
    plan_run(stream, op);
    stream->in_graph = false;
}

/* Release the card to other processes when no launch follows. */
static void stop_wanting(struct stream *stream) {
    if (!stream->runnable || stream->in_graph || stream_next_is_launch(stream)) return;
    machine_count_runnable(&engine.machine, stream->context->device->card, -1);
    stream->runnable = false;
}

void op_execute(struct stream *stream, struct op *op) {
    struct context *context = stream->context;
    const struct sim_card *card = context->device->card;
    context_look(context);
    uint64_t start = op->enqueued_ns > stream->last_end_ns ? op->enqueued_ns : stream->last_end_ns;
    /* nothing runs any more, but no thread may wait forever */
    bool failed = atomic_load(&context->error) != CUDA_SUCCESS;
    switch (op->kind) {
    case OP_LAUNCH:
        if (!failed) execute_launch(stream, op, start);
        break;
    case OP_COPY:
        if (failed) break;
        asynchronous_failure(context, copy_run(context, &op->copy));
        stream->last_end_ns = start + copy_ns(card, &op->copy);
        sleep_if_early(stream->last_end_ns);
        break;
    case OP_FILL:
        if (failed) break;
        asynchronous_failure(context, fill_run(context, &op->fill));
        stream->last_end_ns = start + LAUNCH_OVERHEAD_NS;
        break;
    case OP_RECORD:
        event_reach(op->event.event, op->event.number, start);
        stream->last_end_ns = start;
        break;
    case OP_WAIT_EVENT:
        event_wait(op->event.event, op->event.number); /* 0: nothing was recorded */
        if (event_timestamp(op->event.event) > start) start = event_timestamp(op->event.event);
        stream->last_end_ns = start;
        break;
    case OP_WAIT_STREAM:
        stream_wait(op->after.stream, op->after.number);
        if (op->after.stream->last_end_ns > stream->last_end_ns)
            stream->last_end_ns = op->after.stream->last_end_ns;
        break;
    case OP_HOST:
        if (!failed) op->host.function(op->host.data);
        stream->last_end_ns = sim_now();
        break;
    case OP_CALLBACK:
        print_flush(context);
        op->callback.function(op->callback.handle, (CUresult)atomic_load(&context->error),
                              op->callback.data);
        stream->last_end_ns = sim_now();
        break;
    case OP_FREE: execute_free(op); break;
    case OP_GRAPH:
        if (failed)
            plan_skip(op);
        else
            execute_graph(stream, op);
        plan_over(op->graph.plan);
        break;
    case OP_GRAPH_ALLOC:
        if (!failed) execute_alloc(context, op);
        break;
    case OP_GRAPH_FREE: graph_memory_free(context, op->graph_memory.address); break;
    case OP_NOTHING: break;
    }
    stop_wanting(stream);
}
