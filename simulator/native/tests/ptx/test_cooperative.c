/* Blocks on several host threads. Those of a cooperative launch wait for each other, and all see
 * their place on the card. */
#include "harness.h"

#include <pthread.h>

/* Each block writes, waits for all others at the address in %envreg1 and %envreg2, and reads what
 * its right neighbour wrote. */
static const char grid_ptx[] = HEADER
    ".visible .entry ring(.param .u64 out) {\n"
    ".reg .u64 %rd<8>; .reg .u32 %r<12>; .reg .pred %p<3>;\n"
    "ld.param.u64 %rd1,[out]; mov.u32 %r1,%ctaid.x; mov.u32 %r2,%nctaid.x;"
    " mul.wide.u32 %rd2,%r1,4;\n"
    "add.u64 %rd2,%rd1,%rd2; mov.u32 %r3,%tid.x; setp.ne.u32 %p1,%r3,0; @%p1 bra MEET;\n"
    "add.u32 %r4,%r1,100; st.global.u32 [%rd2],%r4; fence.acq_rel.gpu;\n"
    "mov.u32 %r5,%envreg1; mov.u32 %r6,%envreg2; mov.b64 %rd3,{%r6,%r5};"
    " atom.global.add.u32 %r7,[%rd3+4],1;\n"
    "WAIT: ld.volatile.global.u32 %r7,[%rd3+4]; setp.lt.u32 %p2,%r7,%r2; @%p2 bra WAIT;\n"
    "MEET: bar.sync 0; @%p1 ret;\n"
    "add.u32 %r8,%r1,1; rem.u32 %r8,%r8,%r2; mul.wide.u32 %rd4,%r8,4; add.u64 %rd4,%rd1,%rd4;\n"
    "ld.volatile.global.u32 %r9,[%rd4]; mul.wide.u32 %rd5,%r2,4; add.u64 %rd2,%rd2,%rd5;"
    " st.global.u32 [%rd2],%r9; ret; }\n"

    ".visible .entry where(.param .u64 out) {\n"
    ".reg .u64 %rd<3>; .reg .u32 %r<4>; ld.param.u64 %rd1,[out]; mov.u32 %r1,%ctaid.x;"
    " mul.wide.u32 %rd2,%r1,8;\n"
    "add.u64 %rd1,%rd1,%rd2; mov.u32 %r2,%smid; mov.u32 %r3,%nsmid;"
    " st.global.v2.u32 [%rd1],{%r2,%r3}; ret; }\n"

    ".visible .entry count(.param .u64 out) {\n"
    ".reg .u64 %rd<3>; .reg .u32 %r<2>; ld.param.u64 %rd1,[out]; mov.u32 %r1,%ctaid.x;"
    " mul.wide.u32 %rd2,%r1,4;\n"
    "add.u64 %rd1,%rd1,%rd2; red.global.add.u32 [%rd1],1; ret; }\n"

    /* The system's shared memory is beyond the block's own. */
    ".visible .entry reserved(.param .u64 out) {\n"
    ".shared .align 4 .b8 own[100]; .reg .u64 %rd1; .reg .u32 %r<4>; ld.param.u64 %rd1,[out];\n"
    "mov.u32 %r1,%reserved_smem_offset_1; st.shared.u32 [own+96],5; st.shared.u32 [%r1],6;\n"
    "ld.shared.u32 %r2,[own+96]; mov.u32 %r3,%total_smem_size; st.global.v2.u32 [%rd1],{%r2,%r3};\n"
    "ld.shared.u32 %r2,[%r1+512]; ret; }\n";

struct part {
    const egpu_ptx_kernel *kernel;
    egpu_ptx_launch launch;
    egpu_ptx_status status;
    pthread_t thread;
};

static void *run_part(void *argument) {
    struct part *part = argument;
    part->status = egpu_ptx_run(part->kernel, &part->launch, NULL, NULL);
    return NULL;
}

static void check_ring(const egpu_ptx_module *module, unsigned blocks, unsigned threads) {
    uint32_t *out = device(blocks * 8), *workspace = device(8);
    uint64_t params[1] = {(uintptr_t)out};
    struct part parts[4];
    for (unsigned i = 0; i < threads; i++) {
        egpu_ptx_launch launch = shape(blocks, 64, params, sizeof params);
        launch.cooperative = true;
        launch.grid_workspace = (uintptr_t)workspace;
        launch.first_block = i * blocks / threads;
        launch.block_count = (i + 1) * blocks / threads - launch.first_block;
        parts[i] = (struct part){.kernel = egpu_ptx_find_kernel(module, "ring"), .launch = launch};
        if (pthread_create(&parts[i].thread, NULL, run_part, &parts[i]) != 0) abort();
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(parts[i].thread, NULL);
        CHECK(parts[i].status == EGPU_PTX_OK, "%u blocks on %u threads: %s", blocks, threads,
              egpu_ptx_status_name(parts[i].status));
    }
    for (unsigned i = 0; i < blocks; i++)
        CHECK(out[blocks + i] == 100 + (i + 1) % blocks, "block %u read %u", i, out[blocks + i]);
}

static void blocks_wait_for_each_other(const egpu_ptx_module *module) {
    for (unsigned threads = 1; threads <= 4; threads++) check_ring(module, 300, threads);
    uint32_t *out = device(16), *workspace = device(8);
    uint64_t params[1] = {(uintptr_t)out};
    egpu_ptx_launch one_by_one = shape(2, 64, params, sizeof params);
    one_by_one.grid_workspace = (uintptr_t)workspace;
    one_by_one.max_instructions = 100000;
    CHECK(run_kernel(module, "ring", one_by_one) == EGPU_PTX_TIMEOUT, "an ordinary launch waited");
}

/* Several threads take the blocks of an ordinary launch: each block runs once. */
static void threads_share_the_blocks(const egpu_ptx_module *module) {
    enum { BLOCKS = 5000, THREADS = 4 };
    uint32_t *out = device(BLOCKS * 4);
    uint64_t params[1] = {(uintptr_t)out};
    _Atomic uint64_t begun = 0;
    struct part parts[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        egpu_ptx_launch launch = shape(BLOCKS, 3, params, sizeof params);
        launch.begun = &begun;
        parts[i] = (struct part){.kernel = egpu_ptx_find_kernel(module, "count"), .launch = launch};
        if (pthread_create(&parts[i].thread, NULL, run_part, &parts[i]) != 0) abort();
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(parts[i].thread, NULL);
        CHECK(parts[i].status == EGPU_PTX_OK, "%s", egpu_ptx_status_name(parts[i].status));
    }
    for (unsigned i = 0; i < BLOCKS; i++) CHECK(out[i] == 3, "block %u: %u threads", i, out[i]);
}

static void blocks_are_spread_over_the_card(const egpu_ptx_module *module) {
    uint32_t *out = device(7 * 8);
    uint64_t params[1] = {(uintptr_t)out};
    egpu_ptx_launch launch = shape(7, 1, params, sizeof params);
    launch.multiprocessors = 3;
    CHECK(run_kernel(module, "where", launch) == EGPU_PTX_OK, "where");
    for (unsigned i = 0; i < 7; i++)
        CHECK(out[2 * i] == i % 3 && out[2 * i + 1] == 3, "block %u is on %u of %u", i, out[2 * i],
              out[2 * i + 1]);
}

static void reserved_memory_has_an_end(const egpu_ptx_module *module) {
    uint32_t *out = device(8);
    uint64_t params[1] = {(uintptr_t)out};
    egpu_ptx_status status = run_kernel(module, "reserved", shape(1, 1, params, sizeof params));
    CHECK(status == EGPU_PTX_ILLEGAL_ADDRESS, "%s", egpu_ptx_status_name(status));
    CHECK(out[0] == 5 && out[1] == 128, "%u, %u", out[0], out[1]);
}

int main(void) {
    egpu_ptx_module *module = load(grid_ptx);
    if (module) {
        blocks_wait_for_each_other(module);
        threads_share_the_blocks(module);
        blocks_are_spread_over_the_card(module);
        reserved_memory_has_an_end(module);
    }
    egpu_ptx_unload(module);
    return report("cooperative");
}
