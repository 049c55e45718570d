/* What a stream's worker does with each operation. */
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "egpu_streaming.h"

#define NEAR_BYTES (512u << 10) /* what stays in a cache of one processor */
#define CHARGE_NS 100000000u    /* a kernel that has the card for long is charged in such pieces */
#define LAUNCH_OVERHEAD_NS 2000 /* of a kernel whose duration is derived from its work */

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

/* Bytes from the first to the last; more than there can be, and so covered by nothing, when they
 * are too many to say. */
static size_t span(size_t width, size_t rows, size_t pitch, size_t slices, size_t slice) {
    size_t of_rows, of_slices, bytes;
    bool over = __builtin_mul_overflow(rows - 1, pitch, &of_rows) ||
                __builtin_mul_overflow(slices - 1, slice, &of_slices);
    over = over || __builtin_add_overflow(of_rows, of_slices, &bytes) ||
           __builtin_add_overflow(bytes, width, &bytes);
    return over ? SIZE_MAX : bytes;
}

/* Ranges that somebody mapped side by side are one range to whoever uses them. */
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

/* Copies may cross between devices without peer access: the driver stages them. */
static CUresult check_side(uint64_t address, size_t bytes, bool device) {
    struct extent extent;
    bool mapped;
    if (!memory_find(address, &extent)) {
        /* of a graph that has been launched but not yet run */
        if (graph_memory_covers(address, bytes)) return CUDA_SUCCESS;
        return device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
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

/* Memory of a graph that is not allocated now. */
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
                /* to the host, where so little is still in a cache when it is used */
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

static bool check_access(void *argument, uint64_t address, uint64_t length, bool write,
                         egpu_ptx_range *range) {
    (void)write;
    const struct context *context = argument;
    struct extent extent;
    if (!memory_find(address, &extent) || !context_may_touch(context, &extent)) return false;
    if (length > extent.size - (address - extent.base)) return false;
    uint64_t base = extent.base;
    uint64_t size = extent.size;
    if (extent.kind == EXTENT_DEVICE) {
        int error = memory_populate(&extent, address, length, &base, &size);
        if (error) {
            engine_say("no room in /dev/shm for device memory: %s", strerror(error));
            return false;
        }
    }
    *range = (egpu_ptx_range){
        .base = base, .size = size, .host = (void *)(uintptr_t)base, .writable = true};
    return true;
}

static CUresult of_fault(egpu_ptx_status status) {
    switch (status) {
    case EGPU_PTX_OK: return CUDA_SUCCESS;
    case EGPU_PTX_ILLEGAL_ADDRESS: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case EGPU_PTX_MISALIGNED: return CUDA_ERROR_MISALIGNED_ADDRESS;
    case EGPU_PTX_STACK_OVERFLOW: return CUDA_ERROR_HARDWARE_STACK_ERROR;
    case EGPU_PTX_ASSERT: return CUDA_ERROR_ASSERT;
    case EGPU_PTX_DEADLOCK:
    case EGPU_PTX_TIMEOUT: return CUDA_ERROR_LAUNCH_TIMEOUT;
    default: return CUDA_ERROR_LAUNCH_FAILED;
    }
}

static uint64_t global_timer(void *ignored) {
    (void)ignored;
    return sim_now();
}

static void of_run(struct context *context, const struct function *function, egpu_ptx_status status,
                   const egpu_ptx_fault *fault) {
    CUresult result = of_fault(status);
    if (result == CUDA_SUCCESS) return;
    char why[256];
    snprintf(
        why, sizeof why, "%s: %s at 0x%llx (%u bytes, %s), line %u, block %u,%u,%u thread %u,%u,%u",
        function->info->name, egpu_ptx_status_name(status), (unsigned long long)fault->address,
        fault->length, fault->write ? "write" : "read", fault->line, fault->block[0],
        fault->block[1], fault->block[2], fault->thread[0], fault->thread[1], fault->thread[2]);
    context_fail(context, result, why);
    mps_report(result);
}

struct resident_block {
    struct context *context;
    const struct function *function;
    egpu_ptx_launch run;
    egpu_ptx_stats stats;
    pthread_t thread;
    bool started;
};

static void *run_block(void *argument) {
    struct resident_block *block = argument;
    egpu_ptx_fault fault = {0};
    egpu_ptx_status status =
        egpu_ptx_run(block->function->kernel, &block->run, &block->stats, &fault);
    if (status != EGPU_PTX_OK) {
        of_run(block->context, block->function, status, &fault);
        atomic_store(&block->context->cancel, 1); /* the others may be waiting for this one */
    }
    return NULL;
}

/* Blocks of a cooperative launch are resident together, each on a thread: they may wait for each
 * other in memory. */
static void run_together(struct context *context, const struct function *function,
                         const egpu_ptx_launch *run, uint64_t count, uint64_t each,
                         egpu_ptx_stats *stats) {
    struct resident_block *blocks = calloc(count, sizeof *blocks);
    uint64_t started = 0;
    /* Of clusters, each as a whole. */
    for (; blocks && started < count; started++) {
        struct resident_block *block = &blocks[started];
        *block = (struct resident_block){.context = context, .function = function, .run = *run};
        block->run.first_block = started * each;
        block->run.block_count = each;
        if (pthread_create(&block->thread, NULL, run_block, block) != 0) break;
    }
    if (started < count) {
        context_fail(context, CUDA_ERROR_LAUNCH_FAILED,
                     "no threads for the blocks of a cooperative launch");
        atomic_store(&context->cancel, 1);
    }
    for (uint64_t i = 0; i < started; i++) {
        pthread_join(blocks[i].thread, NULL);
        stats->instructions += blocks[i].stats.instructions;
    }
    free(blocks);
}

static void interpret(struct context *context, const struct launch *launch, egpu_ptx_stats *stats) {
    const struct function *function = launch->function;
    egpu_ptx_fault fault = {0};
    unsigned cluster[3];
    cluster_shape(function, &launch->how, cluster);
    egpu_ptx_launch run = {
        .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
        .block = {launch->block[0], launch->block[1], launch->block[2]},
        .cluster = {cluster[0], cluster[1], cluster[2]},
        .dynamic_shared_bytes = launch->shared_bytes,
        .max_shared_bytes = context->device->card->shared_per_block_optin,
        .params = launch->params,
        .param_bytes = launch->param_bytes,
        .check = check_access,
        .texture = texture_shown,
        .print = print_text,
        .check_ctx = context,
        .cancel = &context->cancel,
        .globaltimer = global_timer,
    };
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t each = cluster[0] ? (uint64_t)cluster[0] * cluster[1] * cluster[2] : 1;
    if (launch->how.cooperative && blocks > each)
        run_together(context, function, &run, blocks / each, each, stats);
    else
        of_run(context, function, egpu_ptx_run(function->kernel, &run, stats, &fault), &fault);
}

/* The card's lanes work in parallel as far as there are threads for them. */
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

/* Until the end of what was taken, or until the kernel is cancelled. */
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
    /* In slices, so that other processes get their turn and a killed one leaves at most a slice
     * behind. */
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

/* ---- all of them ---- */

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

/* The card is another process's again once nothing is about to be launched. */
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
    /* nothing runs any more, but nobody waits for ever either */
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
