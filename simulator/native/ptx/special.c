/* Special registers: their names, and their values in a thread. */
#include "compile.h"
#include "exec.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    enum special which;
} specials[] = {
    {"%laneid", SR_LANEID},
    {"%warpid", SR_WARPID},
    {"%nwarpid", SR_NWARPID},
    {"%smid", SR_SMID},
    {"%nsmid", SR_NSMID},
    {"%gridid", SR_GRIDID},
    {"%lanemask_eq", SR_LANEMASK_EQ},
    {"%lanemask_le", SR_LANEMASK_LE},
    {"%lanemask_lt", SR_LANEMASK_LT},
    {"%lanemask_ge", SR_LANEMASK_GE},
    {"%lanemask_gt", SR_LANEMASK_GT},
    {"%cluster_ctarank", SR_CLUSTER_CTARANK},
    {"%cluster_nctarank", SR_CLUSTER_NCTARANK},
    {"%is_explicit_cluster", SR_IS_EXPLICIT_CLUSTER},
    {"%dynamic_smem_size", SR_DYNAMIC_SMEM_SIZE},
    {"%total_smem_size", SR_TOTAL_SMEM_SIZE},
    {"%aggr_smem_size", SR_AGGR_SMEM_SIZE},
    {"%envreg1", SR_GRID_WORKSPACE_HIGH},
    {"%envreg2", SR_GRID_WORKSPACE_LOW},
    {"%reserved_smem_offset_begin", SR_RESERVED_SMEM_BEGIN},
    {"%reserved_smem_offset_end", SR_RESERVED_SMEM_END},
    {"%reserved_smem_offset_cap", SR_RESERVED_SMEM_CAP},
    {"%reserved_smem_offset_0", SR_RESERVED_SMEM_BEGIN},
    {"%reserved_smem_offset_1", SR_RESERVED_SMEM_SECOND},
    {"%current_graph_exec", SR_ZERO}, /* graphs are not launched from kernels */
};

/* Return whether a name is a register of a numbered family: "%pm3_64". The driver defines none of
 * these, so they are zero. */
static bool undefined_special(const char *name) {
    static const struct {
        const char *prefix, *suffix;
        unsigned count;
    } families[] = {{"%envreg", "", 32}, {"%pm", "", 8}, {"%pm", "_64", 8}};
    char member[24];
    for (unsigned i = 0; i < sizeof families / sizeof *families; i++)
        for (unsigned n = 0; n < families[i].count; n++) {
            snprintf(member, sizeof member, "%s%u%s", families[i].prefix, n, families[i].suffix);
            if (strcmp(name, member) == 0) return true;
        }
    return false;
}

bool special_slot(struct parser *p, const char *name, uint16_t *slot) {
    if (name[0] != '%') return false;
    static const char *const triples[] = {"%tid",           "%ntid",          "%ctaid",
                                          "%nctaid",        "%clusterid",     "%nclusterid",
                                          "%cluster_ctaid", "%cluster_nctaid"};
    for (unsigned i = 0; i < sizeof triples / sizeof *triples; i++)
        if (strcmp(name, triples[i]) == 0) {
            unsigned axis = accept_dot(p, "x")   ? 0
                            : accept_dot(p, "y") ? 1
                            : accept_dot(p, "z") ? 2
                                                 : 3;
            if (axis == 3) unsupported(p, "%s without .x, .y or .z", name);
            *slot = special_constant(p, (enum special)(SR_TID_X + 3 * i + axis));
            return true;
        }
    for (unsigned i = 0; i < sizeof specials / sizeof *specials; i++)
        if (strcmp(name, specials[i].name) == 0) {
            *slot = special_constant(p, specials[i].which);
            return true;
        }
    if ((name[1] == 'e' || name[1] == 'p') && undefined_special(name)) {
        *slot = special_constant(p, SR_ZERO);
        return true;
    }
    static const struct {
        const char *name;
        enum op op;
        unsigned aux;
        int32_t imm;
    } clocks[] = {{"%clock", OP_clock, 32, 0},
                  {"%clock64", OP_clock, 64, 0},
                  {"%clock_hi", OP_clock_hi, 0, 0},
                  {"%globaltimer", OP_globaltimer, 0, 0},
                  {"%globaltimer_lo", OP_globaltimer, 0, 0},
                  {"%globaltimer_hi", OP_globaltimer, 0, 32}};
    for (unsigned i = 0; i < sizeof clocks / sizeof *clocks; i++)
        if (strcmp(name, clocks[i].name) == 0) {
            *slot = temporary(p, CLOCK_VALUE);
            emit(p, clocks[i].op, clocks[i].aux, *slot, 0, 0, 0, clocks[i].imm);
            return true;
        }
    return false;
}

static uint32_t multiprocessors(const egpu_ptx_launch *launch) {
    return launch->multiprocessors ? launch->multiprocessors : 1;
}

static uint64_t block_number(const struct exec *x) {
    const uint32_t *grid = x->launch->grid;
    return x->block[0] + grid[0] * (x->block[1] + (uint64_t)grid[1] * x->block[2]);
}

uint64_t special_value(const struct exec *x, uint32_t thread, unsigned which) {
    const egpu_ptx_launch *launch = x->launch;
    uint32_t lane = thread % WARP_SIZE;
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    switch ((enum special)which) {
    case SR_TID_X: return thread % launch->block[0];
    case SR_TID_Y: return thread / launch->block[0] % launch->block[1];
    case SR_TID_Z: return thread / launch->block[0] / launch->block[1];
    case SR_NTID_X: return launch->block[0];
    case SR_NTID_Y: return launch->block[1];
    case SR_NTID_Z: return launch->block[2];
    case SR_CTAID_X: return x->block[0];
    case SR_CTAID_Y: return x->block[1];
    case SR_CTAID_Z: return x->block[2];
    case SR_NCTAID_X: return launch->grid[0];
    case SR_NCTAID_Y: return launch->grid[1];
    case SR_NCTAID_Z: return launch->grid[2];
    case SR_CLUSTERID_X: return x->block[0] / x->cluster[0];
    case SR_CLUSTERID_Y: return x->block[1] / x->cluster[1];
    case SR_CLUSTERID_Z: return x->block[2] / x->cluster[2];
    case SR_NCLUSTERID_X: return launch->grid[0] / x->cluster[0];
    case SR_NCLUSTERID_Y: return launch->grid[1] / x->cluster[1];
    case SR_NCLUSTERID_Z: return launch->grid[2] / x->cluster[2];
    case SR_CLUSTER_CTAID_X: return x->block[0] % x->cluster[0];
    case SR_CLUSTER_CTAID_Y: return x->block[1] % x->cluster[1];
    case SR_CLUSTER_CTAID_Z: return x->block[2] % x->cluster[2];
    case SR_CLUSTER_NCTAID_X: return x->cluster[0];
    case SR_CLUSTER_NCTAID_Y: return x->cluster[1];
    case SR_CLUSTER_NCTAID_Z: return x->cluster[2];
    case SR_CLUSTER_CTARANK: return x->rank;
    case SR_CLUSTER_NCTARANK: return x->cluster[0] * x->cluster[1] * x->cluster[2];
    case SR_IS_EXPLICIT_CLUSTER: return launch->cluster[0] != 0 || x->kernel->info.explicit_cluster;
    case SR_LANEID: return lane;
    case SR_WARPID: return thread / WARP_SIZE;
    case SR_NWARPID: return (threads + WARP_SIZE - 1) / WARP_SIZE;
    case SR_SMID: return block_number(x) % multiprocessors(launch);
    case SR_NSMID: return multiprocessors(launch);
    case SR_GRIDID: return 1;
    case SR_LANEMASK_EQ: return UINT32_C(1) << lane;
    case SR_LANEMASK_LE: return (UINT32_C(2) << lane) - 1;
    case SR_LANEMASK_LT: return (UINT32_C(1) << lane) - 1;
    case SR_LANEMASK_GE: return (uint32_t)-(UINT32_C(1) << lane);
    case SR_LANEMASK_GT: return lane == 31 ? 0 : (uint32_t)-(UINT32_C(2) << lane);
    case SR_DYNAMIC_SMEM_SIZE: return launch->dynamic_shared_bytes;
    case SR_TOTAL_SMEM_SIZE: return x->reserved_at;
    case SR_AGGR_SMEM_SIZE: return x->reserved_at + RESERVED_SHARED_BYTES;
    case SR_GRID_WORKSPACE_HIGH: return launch->grid_workspace >> 32;
    case SR_GRID_WORKSPACE_LOW: return (uint32_t)launch->grid_workspace;
    case SR_RESERVED_SMEM_BEGIN: return x->reserved_at;
    case SR_RESERVED_SMEM_END: return x->reserved_at + RESERVED_SHARED_BYTES;
    case SR_RESERVED_SMEM_SECOND: return x->reserved_at + RESERVED_SHARED_SECOND;
    case SR_RESERVED_SMEM_CAP: return RESERVED_SHARED_BYTES;
    case SR_ZERO:
    case SR_COUNT: break;
    }
    return 0;
}
