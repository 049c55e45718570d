/* A launch: checks of its shape, its memory, and the order of its blocks. */
#include "block.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Shared memory is allocated in units (%total_smem_size in the PTX ISA says so), and compilers read
 * a whole vector even where less was requested. This is the smallest unit of any card. */
enum { SHARED_UNIT = 128 };

static void cluster_of(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                       uint32_t cluster[3]) {
    for (int i = 0; i < 3; i++)
        cluster[i] = launch->cluster[i]                 ? launch->cluster[i]
                     : kernel->info.required_cluster[i] ? kernel->info.required_cluster[i]
                                                        : 1;
}

static bool fits(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                 const uint32_t cluster[3], uint64_t *shared) {
    static const uint32_t grid_limit[3] = {INT32_MAX, 65535, 65535},
                          block_limit[3] = {1024, 1024, 64};
    const egpu_ptx_kernel_info *info = &kernel->info;
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (launch->grid[i] == 0 || launch->grid[i] > grid_limit[i] || launch->block[i] == 0 ||
            launch->block[i] > block_limit[i])
            return false;
        if (info->required_block[0] && launch->block[i] != info->required_block[i]) return false;
        threads *= launch->block[i];
        if (launch->grid[i] % cluster[i]) return false;
    }
    if ((uint64_t)cluster[0] * cluster[1] * cluster[2] > EGPU_PTX_CLUSTER_BLOCKS) return false;
    *shared = (uint64_t)info->static_shared_bytes + launch->dynamic_shared_bytes;
    uint32_t allowed = launch->max_shared_bytes ? launch->max_shared_bytes : 227 * 1024;
    return threads <= info->max_threads && *shared <= allowed &&
           (info->param_bytes == 0 || (launch->params && launch->param_bytes >= info->param_bytes));
}

/* Make the constants of every function that can run, with this kernel's places in shared memory.
 * One allocation. */
static union slot **make_templates(const egpu_ptx_kernel *kernel) {
    size_t slots = 0;
    for (uint32_t i = 0; i < kernel->reachable_count; i++)
        slots += kernel->reachable[i]->const_count;
    size_t head = (kernel->module->function_count * sizeof(union slot *) + 15) & ~(size_t)15;
    unsigned char *memory = calloc(1, head + slots * sizeof(union slot));
    if (!memory) return NULL;
    union slot **templates = (union slot **)memory, *next = (union slot *)(memory + head);
    for (uint32_t i = 0; i < kernel->reachable_count; i++) {
        const struct function *f = kernel->reachable[i];
        templates[f->index] = next;
        if (f->const_count) memcpy(next, f->constants, f->const_count * sizeof(union slot));
        for (uint32_t r = 0; r < f->reloc_count; r++) {
            const struct const_reloc *reloc = &f->relocs[r];
            if (reloc->target->kind != VAR_SHARED) continue;
            for (uint32_t v = 0; v < kernel->shared_count; v++)
                if (kernel->shared[v] == reloc->target)
                    next[reloc->slot].u64 = kernel->shared_offsets[v] + reloc->addend +
                                            (reloc->generic ? WINDOW_SHARED : 0);
        }
        next += f->const_count;
    }
    return templates;
}

/* Clusters follow each other like blocks in a grid without them, and so do the blocks of each. */
static void place_blocks(struct cluster *c, const egpu_ptx_launch *launch, uint64_t index) {
    const uint32_t *size = c->x->cluster;
    uint32_t wide = launch->grid[0] / size[0], high = launch->grid[1] / size[1];
    uint32_t x = (uint32_t)(index % wide), y = (uint32_t)(index / wide % high),
             z = (uint32_t)(index / wide / high);
    for (uint32_t rank = 0; rank < c->count; rank++) {
        uint32_t *position = c->blocks[rank].position;
        position[0] = x * size[0] + rank % size[0];
        position[1] = y * size[1] + rank / size[0] % size[1];
        position[2] = z * size[2] + rank / size[0] / size[1];
    }
}

/* False: no memory. Allocated parts are freed with the cluster. */
static bool make_cluster(struct cluster *c, struct exec *x) {
    const uint32_t *threads = x->launch->block, *size = x->cluster;
    *c = (struct cluster){.x = x, .count = size[0] * size[1] * size[2]};
    for (uint32_t k = 0; k < c->count; k++) {
        struct block *b = &c->blocks[k];
        *b = (struct block){.cluster = c, .x = x, .count = threads[0] * threads[1] * threads[2]};
        b->threads = calloc(b->count, sizeof *b->threads);
        b->shared = c->shared[k] = aligned_alloc(256, (x->shared_bytes + 256) & ~(uint64_t)255);
        if (!b->threads || !b->shared) return false;
    }
    return true;
}

static void free_cluster(struct cluster *c) {
    for (uint32_t k = 0; k < c->count; k++) {
        struct block *b = &c->blocks[k];
        for (uint32_t i = 0; b->threads && i < b->count; i++) window_free(b->threads[i].window);
        free(b->threads);
        free(b->shared);
    }
    for (struct window *w = c->free_windows, *next; w; w = next) {
        next = w->next;
        window_free(w);
    }
}

/* Run the launch's part of the grid: one cluster after the other in the same memory, or all
 * together. */
static void run_grid(struct exec *x) {
    const egpu_ptx_launch *launch = x->launch;
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t each = (uint64_t)x->cluster[0] * x->cluster[1] * x->cluster[2];
    uint64_t rest = blocks - launch->first_block, first = launch->first_block / each;
    uint64_t count =
        (launch->block_count && launch->block_count < rest ? launch->block_count : rest) / each;
    uint64_t together = launch->cooperative ? count : 1;
    struct cluster *clusters = calloc(together, sizeof *clusters);
    bool made = clusters != NULL;
    for (uint64_t i = 0; made && i < together; i++) made = make_cluster(&clusters[i], x);
    if (!made) x->status = EGPU_PTX_NO_MEMORY;
    uint64_t own = 0;
    while (made && x->status == EGPU_PTX_OK) {
        uint64_t at = together * (launch->begun ? atomic_fetch_add(launch->begun, 1) : own++);
        if (at >= count) break;
        for (uint64_t i = 0; i < together; i++) place_blocks(&clusters[i], launch, first + at + i);
        run_clusters(clusters, together);
    }
    for (uint64_t i = 0; clusters && i < together; i++) free_cluster(&clusters[i]);
    free(clusters);
}

egpu_ptx_status egpu_ptx_run(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                             egpu_ptx_stats *stats, egpu_ptx_fault *fault) {
    uint64_t shared;
    uint32_t cluster[3];
    cluster_of(kernel, launch, cluster);
    if (!fits(kernel, launch, cluster, &shared) ||
        launch->first_block >= (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2])
        return EGPU_PTX_INVALID_LAUNCH;
    struct exec x = {
        .kernel = kernel,
        .launch = launch,
        .cluster = {cluster[0], cluster[1], cluster[2]},
        .reserved_at = (shared + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT,
        .slice = launch->cooperative ? COOPERATIVE_SLICE_INSTRUCTIONS : SLICE_INSTRUCTIONS,
        .fuel =
            launch->max_instructions ? launch->max_instructions : EGPU_PTX_DEFAULT_MAX_INSTRUCTIONS,
    };
    x.shared_bytes = x.reserved_at + (kernel->reserved_shared ? RESERVED_SHARED_BYTES : 0);
    x.templates = make_templates(kernel);
    if (x.templates)
        run_grid(&x);
    else
        x.status = EGPU_PTX_NO_MEMORY;
    free(x.templates);
    if (stats) {
        stats->instructions += x.stats.instructions;
        stats->loads += x.stats.loads;
        stats->stores += x.stats.stores;
        stats->atomics += x.stats.atomics;
        stats->barriers += x.stats.barriers;
    }
    if (fault && x.status != EGPU_PTX_OK) *fault = x.fault;
    return x.status;
}

const char *egpu_ptx_status_name(egpu_ptx_status status) {
    static const char *const names[] = {"ok",
                                        "syntax error",
                                        "unsupported",
                                        "unresolved symbol",
                                        "out of memory",
                                        "invalid launch",
                                        "illegal address",
                                        "misaligned address",
                                        "stack overflow",
                                        "trap",
                                        "failed assertion",
                                        "deadlock",
                                        "instruction limit reached",
                                        "cancelled"};
    return (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown status";
}
