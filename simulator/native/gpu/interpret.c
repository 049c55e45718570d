/* Kernels: the interpreter runs them, on threads of this process. */
#include "engine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define POISON_BYTES (64u << 10) /* of each result of a skipped kernel */
#define MOST_PARTS 16            /* threads of this process that run a launch */
#define PARALLEL_THREADS 8192    /* a launch of so many threads is worth several of ours */
#define GRID_WORKSPACE_BYTES 8u

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

/* A part of a launch, on a thread of this process. */
struct part {
    struct context *context;
    const struct function *function;
    egpu_ptx_launch run;
    egpu_ptx_stats stats;
    pthread_t thread;
};

static void *run_part(void *argument) {
    struct part *part = argument;
    egpu_ptx_fault fault = {0};
    egpu_ptx_status status = egpu_ptx_run(part->function->kernel, &part->run, &part->stats, &fault);
    if (status != EGPU_PTX_OK) {
        of_run(part->context, part->function, status, &fault);
        atomic_store(&part->context->cancel, 1); /* the other parts may be waiting for this one */
    }
    return NULL;
}

/* Return how many threads run a launch: one where it is small, or where the order of its output
 * matters. */
static uint64_t part_count(const struct function *function, const egpu_ptx_launch *run,
                           uint64_t clusters) {
    cpu_set_t processors;
    uint64_t threads = clusters * run->block[0] * run->block[1] * run->block[2];
    bool small = threads < PARALLEL_THREADS && !run->cooperative;
    if (small || function->info->prints || clusters == 1) return 1;
    uint64_t most = sched_getaffinity(0, sizeof processors, &processors) == 0
                        ? (uint64_t)CPU_COUNT(&processors)
                        : 1;
    if (most > MOST_PARTS) most = MOST_PARTS;
    return clusters < most ? clusters : most;
}

/* Run a launch of clusters of `each` blocks. Blocks of a cooperative launch are resident together,
 * and may wait for each other in memory: each part has some of them, which take turns. Otherwise
 * the parts take one cluster after the other, in the grid's order. */
static void run_parts(struct context *context, const struct function *function,
                      const egpu_ptx_launch *run, uint64_t clusters, uint64_t each,
                      egpu_ptx_stats *stats) {
    struct part parts[MOST_PARTS];
    _Atomic uint64_t begun = 0;
    uint64_t count = part_count(function, run, clusters), started = 1;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t first = i * clusters / count, next = (i + 1) * clusters / count;
        parts[i] = (struct part){.context = context, .function = function, .run = *run};
        if (run->cooperative) {
            parts[i].run.first_block = first * each;
            parts[i].run.block_count = (next - first) * each;
        } else {
            parts[i].run.begun = &begun;
        }
    }
    while (started < count &&
           pthread_create(&parts[started].thread, NULL, run_part, &parts[started]) == 0)
        started++;
    if (started < count && run->cooperative) {
        context_fail(context, CUDA_ERROR_LAUNCH_FAILED,
                     "no threads for the blocks of a cooperative launch");
        atomic_store(&context->cancel, 1);
    }
    run_part(&parts[0]);
    for (uint64_t i = 0; i < started; i++) {
        if (i > 0) pthread_join(parts[i].thread, NULL);
        stats->instructions += parts[i].stats.instructions;
    }
}

/* Programs find the memory in which the blocks meet by its address: its size and a counter. */
static void run_cooperative(struct context *context, const struct function *function,
                            egpu_ptx_launch *run, uint64_t clusters, uint64_t each,
                            egpu_ptx_stats *stats) {
    void *workspace;
    if (memory_host_alloc(GRID_WORKSPACE_BYTES, EXTENT_PINNED, 0, context, &workspace) != 0) {
        context_fail(context, CUDA_ERROR_LAUNCH_FAILED, "no memory for a cooperative launch");
        return;
    }
    *(uint32_t *)workspace = GRID_WORKSPACE_BYTES;
    run->grid_workspace = (uint64_t)(uintptr_t)workspace;
    run->cooperative = true;
    run_parts(context, function, run, clusters, each, stats);
    memory_host_free(workspace, EXTENT_PINNED, NULL);
}

/* A skipped kernel overwrites the beginning of all that its parameters point to: whatever it should
 * have computed there, nobody takes it for a result. These bytes are no number in any format. A
 * machine that writes zeros instead leads programs further: they check sizes and statuses. */
static void poison(const struct context *context, const struct launch *launch) {
    int byte = engine.machine.header->flags & SIM_FLAG_ZERO_RESULTS ? 0 : 0xff;
    for (size_t at = 0; at + sizeof(uint64_t) <= launch->param_bytes; at += sizeof(uint64_t)) {
        uint64_t address;
        struct extent extent;
        memcpy(&address, (const char *)launch->params + at, sizeof address);
        if (!memory_find(address, &extent) || extent.kind != EXTENT_DEVICE ||
            !context_may_touch(context, &extent))
            continue;
        uint64_t bytes = extent.base + extent.size - address;
        if (bytes > POISON_BYTES) bytes = POISON_BYTES;
        if (memory_populate(&extent, address, bytes, NULL, NULL) == 0)
            memset((void *)(uintptr_t)address, byte, bytes);
    }
}

void interpret(struct context *context, const struct launch *launch, egpu_ptx_stats *stats) {
    const struct function *function = launch->function;
    if (function->module->skipped) {
        poison(context, launch);
        return;
    }
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
        .heap = &heap_calls,
        .check_ctx = context,
        .cancel = &context->cancel,
        .globaltimer = global_timer,
        .multiprocessors = context->device->card->sm_count,
    };
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t each = cluster[0] ? (uint64_t)cluster[0] * cluster[1] * cluster[2] : 1;
    if (launch->how.cooperative)
        run_cooperative(context, function, &run, blocks / each, each, stats);
    else
        run_parts(context, function, &run, blocks / each, each, stats);
}
