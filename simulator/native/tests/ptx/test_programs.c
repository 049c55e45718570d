/* Whole programs: blocks, barriers, warps, divergence, calls, atomics; and launches that must fail
 * in a certain way. */
#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

static const char threads_ptx[] = HEADER
    ".global .align 4 .u32 table[4] = {10, 20, 30, 40};\n"
    ".global .align 8 .u64 pointer = generic(table)+8;\n"
    ".const .f32 half = 0f3F000000;\n"
    ".extern .shared .align 16 .b8 dynamic[];\n"

    ".visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n) {\n"
    ".reg .u64 %rd<8>; .reg .u32 %r<8>; .reg .f32 %f<5>; .reg .pred %p;\n"
    ".pragma \"egpu.duration_us 12.5\";\n"
    "ld.param.u64 %rd1,[x]; ld.param.u64 %rd2,[y]; ld.param.f32 %f1,[a]; ld.param.u32 %r1,[n];\n"
    "mov.u32 %r2,%ctaid.x; mov.u32 %r3,%ntid.x; mov.u32 %r4,%tid.x; mad.lo.u32 %r5,%r2,%r3,%r4;\n"
    "setp.ge.u32 %p,%r5,%r1; @%p ret;\n"
    "mul.wide.u32 %rd3,%r5,4; add.u64 %rd1,%rd1,%rd3; add.u64 %rd2,%rd2,%rd3;\n"
    "ld.global.f32 %f2,[%rd1]; ld.global.f32 %f3,[%rd2]; fma.rn.f32 %f4,%f1,%f2,%f3; st.global.f32 [%rd2],%f4; ret; }\n"

    /* Sum of a block in shared memory. */
    ".visible .entry reduce(.param .u64 in, .param .u64 out) {\n"
    ".shared .align 4 .b8 cells[1024];\n"
    ".reg .u64 %rd<6>; .reg .u32 %r<8>; .reg .f32 %f<4>; .reg .pred %p<3>;\n"
    "ld.param.u64 %rd1,[in]; ld.param.u64 %rd2,[out]; mov.u32 %r1,%tid.x; mov.u32 %r2,%ntid.x;\n"
    "mul.wide.u32 %rd3,%r1,4; add.u64 %rd1,%rd1,%rd3; ld.global.f32 %f1,[%rd1];\n"
    "mov.u32 %r3,cells; shl.b32 %r4,%r1,2; add.u32 %r3,%r3,%r4; st.shared.f32 [%r3],%f1;\n"
    "shr.u32 %r5,%r2,1;\n"
    "LOOP: bar.sync 0; setp.eq.u32 %p1,%r5,0; @%p1 bra DONE; setp.ge.u32 %p2,%r1,%r5; @%p2 bra NEXT;\n"
    "shl.b32 %r6,%r5,2; add.u32 %r7,%r3,%r6; ld.shared.f32 %f2,[%r7]; ld.shared.f32 %f3,[%r3];\n"
    "add.f32 %f3,%f3,%f2; st.shared.f32 [%r3],%f3;\n"
    "NEXT: shr.u32 %r5,%r5,1; bra LOOP;\n"
    "DONE: setp.ne.u32 %p1,%r1,0; @%p1 ret; ld.shared.f32 %f1,[cells]; st.global.f32 [%rd2],%f1; ret; }\n"

    /* Sum of a warp by shuffles; every lane gets the number of odd values by a vote. */
    ".visible .entry warp(.param .u64 out) {\n"
    ".reg .u64 %rd<4>; .reg .u32 %r<8>; .reg .pred %p<3>;\n"
    "ld.param.u64 %rd1,[out]; mov.u32 %r1,%tid.x; mov.u32 %r2,%r1;\n"
    "shfl.sync.bfly.b32 %r3,%r2,16,31,-1; add.u32 %r2,%r2,%r3; shfl.sync.bfly.b32 %r3,%r2,8,31,-1; add.u32 %r2,%r2,%r3;\n"
    "shfl.sync.bfly.b32 %r3,%r2,4,31,-1; add.u32 %r2,%r2,%r3; shfl.sync.bfly.b32 %r3,%r2,2,31,-1; add.u32 %r2,%r2,%r3;\n"
    "shfl.sync.bfly.b32 %r3,%r2,1,31,-1; add.u32 %r2,%r2,%r3;\n"
    "shfl.sync.up.b32 %r4|%p1,%r1,1,0,-1; @!%p1 mov.u32 %r4,99;\n"
    "shfl.sync.down.b32 %r5,%r1,2,0x1c1f,-1;\n" /* segments of four lanes */
    "and.b32 %r6,%r1,1; setp.eq.u32 %p2,%r6,1; vote.sync.ballot.b32 %r6,%p2,-1; popc.b32 %r6,%r6;\n"
    "mul.wide.u32 %rd2,%r1,16; add.u64 %rd1,%rd1,%rd2; st.global.v4.u32 [%rd1],{%r2,%r4,%r5,%r6}; ret; }\n"

    /* Half of the warp shuffles within its own branch; bar.red counts the block. */
    ".visible .entry diverge(.param .u64 out) {\n"
    ".reg .u64 %rd<4>; .reg .u32 %r<8>; .reg .pred %p<4>;\n"
    "ld.param.u64 %rd1,[out]; mov.u32 %r1,%tid.x; mul.wide.u32 %rd2,%r1,8; add.u64 %rd1,%rd1,%rd2;\n"
    "and.b32 %r2,%r1,1; setp.eq.u32 %p1,%r2,1; @%p1 bra ODD;\n"
    "shfl.sync.idx.b32 %r3,%r1,4,31,0x55555555; bra JOIN;\n"
    "ODD: activemask.b32 %r3;\n"
    "JOIN: bar.red.popc.u32 %r4,0,%p1; bar.warp.sync -1; st.global.v2.u32 [%rd1],{%r3,%r4}; ret; }\n"

    ".visible .entry histogram(.param .u64 bins, .param .u64 sum) {\n"
    ".reg .u64 %rd<4>; .reg .u32 %r<6>; .reg .f32 %f1; .reg .f64 %d1;\n"
    "ld.param.u64 %rd1,[bins]; ld.param.u64 %rd3,[sum]; mov.u32 %r1,%tid.x; and.b32 %r2,%r1,7; mul.wide.u32 %rd2,%r2,4;\n"
    "add.u64 %rd1,%rd1,%rd2; red.global.add.u32 [%rd1],1; atom.global.max.s32 %r3,[%rd1+32],%r1;\n"
    "atom.global.inc.u32 %r4,[%rd1+64],2; mov.f32 %f1,0f3F800000; red.global.add.f32 [%rd3],%f1;\n"
    "cvt.f64.f32 %d1,%f1; atom.global.add.f64 %d1,[%rd3+8],%d1; ret; }\n"

    /* A spin lock between all threads of a block, which needs fair scheduling. */
    ".visible .entry lock(.param .u64 p) {\n"
    ".reg .u64 %rd1; .reg .u32 %r<4>; .reg .pred %p1;\n"
    "ld.param.u64 %rd1,[p];\n"
    "TAKE: atom.global.acquire.gpu.cas.b32 %r1,[%rd1],0,1; setp.ne.u32 %p1,%r1,0; @%p1 bra TAKE;\n"
    "ld.volatile.global.u32 %r2,[%rd1+4]; add.u32 %r2,%r2,1; st.volatile.global.u32 [%rd1+4],%r2;\n"
    "atom.global.release.gpu.exch.b32 %r1,[%rd1],0; ret; }\n"

    ".func (.param .b32 result) square(.param .b32 v) {\n"
    ".reg .b32 %r<3>; ld.param.b32 %r1,[v]; mul.lo.s32 %r2,%r1,%r1; st.param.b32 [result],%r2; ret; }\n"
    ".func (.reg .u32 out) factorial(.reg .u32 n) {\n"
    ".reg .u32 %r<3>; .reg .pred %p; mov.u32 out,1; setp.le.u32 %p,n,1; @%p ret;\n"
    "sub.u32 %r1,n,1; call (%r2),factorial,(%r1); mul.lo.u32 out,n,%r2; ret; }\n"
    ".func (.param .b32 r) active() { .reg .b32 %r1; activemask.b32 %r1; st.param.b32 [r],%r1; ret; }\n"
    /* One activemask, reached by two calls of a diverged warp: not one group. */
    ".visible .entry parted(.param .u64 out) {\n"
    ".reg .u64 %rd<3>; .reg .b32 %r<4>; .reg .pred %p1; .param .b32 b;\n"
    "ld.param.u64 %rd1,[out]; mov.u32 %r1,%tid.x; mul.wide.u32 %rd2,%r1,4; add.u64 %rd1,%rd1,%rd2;\n"
    "setp.lt.u32 %p1,%r1,8; @%p1 bra LOW; call (b),active; bra JOIN; LOW: call (b),active;\n"
    "JOIN: ld.param.b32 %r2,[b]; st.global.u32 [%rd1],%r2; ret; }\n"
    ".func (.param .b32 r) whoami() { .reg .b32 %r1; mov.u32 %r1,%tid.x; st.param.b32 [r],%r1; ret; }\n"
    ".visible .entry calls(.param .u64 out) {\n"
    ".local .align 4 .b8 array[40]; .reg .u64 %rd<6>; .reg .b32 %r<10>; .reg .pred %p1;\n"
    "ld.param.u64 %rd1,[out]; mov.u32 %r1,%tid.x; mul.wide.u32 %rd2,%r1,32; add.u64 %rd1,%rd1,%rd2;\n"
    "{ .param .b32 a; .param .b32 b; st.param.b32 [a],%r1; call.uni (b),square,(a); ld.param.b32 %r2,[b]; }\n"
    "call (%r3),factorial,(5);\n"
    "{ .param .b32 b; call.uni (b),whoami; ld.param.b32 %r4,[b]; }\n"
    "mov.u64 %rd3,array; mov.u32 %r5,0;\n"
    "FILL: st.local.u32 [%rd3],%r5; add.u64 %rd3,%rd3,4; add.u32 %r5,%r5,1; setp.lt.u32 %p1,%r5,10; @%p1 bra FILL;\n"
    "ld.local.u32 %r6,[array+28]; cvta.local.u64 %rd4,array; ld.u32 %r7,[%rd4+36];\n"
    "mov.u64 %rd5,pointer; ld.global.u64 %rd5,[%rd5]; ld.u32 %r8,[%rd5];\n"
    "ld.const.b32 %r9,[half];\n"
    "{ .param .b32 a; .param .b32 b; mov.u64 %rd5,square; st.param.b32 [a],9; call (b),%rd5,(a),PROTO;"
    " PROTO : .callprototype (.param .b32 _) _ (.param .b32 _); ld.param.b32 %r5,[b]; }\n"
    "st.global.v4.u32 [%rd1],{%r2,%r3,%r4,%r6}; st.global.v4.u32 [%rd1+16],{%r7,%r8,%r9,%r5}; ret; }\n"

    ".visible .entry window(.param .u64 out) {\n"
    ".reg .u64 %rd<4>; .reg .u32 %r<4>; ld.param.u64 %rd1,[out];\n"
    "mov.u64 %rd2,dynamic; cvta.shared.u64 %rd2,%rd2; st.u32 [%rd2+4],77; ld.shared.u32 %r1,[dynamic+4];\n"
    "mov.u32 %r2,%dynamic_smem_size; st.global.v2.u32 [%rd1],{%r1,%r2}; ret; }\n"

    ".visible .entry vector(.param .u64 out, .param .u32 at) {\n"
    ".reg .u64 %rd<3>; .reg .u32 %r<6>; ld.param.u64 %rd1,[out]; ld.param.u32 %r1,[at];\n"
    "cvt.u64.u32 %rd2,%r1; st.shared.u32 [dynamic+24],88;\n"
    "ld.shared.v4.u32 {%r2,%r3,%r4,%r5},[%rd2];\n"
    "mov.u32 %r1,%total_smem_size; st.global.v2.u32 [%rd1],{%r4,%r1}; ret; }\n"

    /* Elements by index, as values and as operands: of global, shared and local arrays. */
    ".visible .entry indexed(.param .u64 out) {\n"
    ".shared .align 16 .b8 bytes[64]; .local .align 8 .u64 own[4]; .shared .v2 .u32 pairs[4];\n"
    ".reg .u64 %rd<8>; .reg .u32 %r<8>; ld.param.u64 %rd1,[out];\n"
    "mov.u64 %rd2,table[2]; ld.global.u32 %r1,[%rd2]; ld.global.u32 %r2,table[3];\n"
    "mov.u64 %rd3,bytes[0]; mov.u64 %rd4,bytes[8]; sub.u64 %rd3,%rd4,%rd3; cvt.u32.u64 %r3,%rd3;\n"
    "mov.u64 %rd5,own[3]; st.local.u64 [%rd5],7; ld.local.u64 %rd6,own[3]; cvt.u32.u64 %r4,%rd6;\n"
    "st.global.v4.u32 [%rd1],{%r1,%r2,%r3,%r4}; st.shared.u32 pairs[1],5;\n"
    "ld.shared.u32 %r5,[pairs+8];\n"
    "mov.u64 %rd2,table[-1]; mov.u64 %rd3,table; sub.u64 %rd3,%rd3,%rd2; cvt.u32.u64 %r6,%rd3;\n"
    "st.global.v2.u32 [%rd1+16],{%r5,%r6}; ret; }\n"

    /* As LLVM writes pointers that are aligned to more than any variable is, and Triton one
       element. */
    ".visible .entry braced(.param .u64 .ptr .global .align 256 out) {\n"
    ".reg .u64 %rd1; .reg .b32 %r<3>; .reg .pred %p;\n"
    "ld.param.b64 %rd1,[out]; setp.eq.u64 %p,%rd1,0;\n"
    "@!%p st.global.b32 [ %rd1 + 0 ], { 41 };\n"
    "ld.global.b32 { %r1 }, [ %rd1 + 0 ]; add.u32 %r2,%r1,1;\n"
    "st.global.v2.b32 [ %rd1 + 8 ], { %r2, %r1 }; ret; }\n"

    ".visible .entry store(.param .u64 p) { .reg .u64 %rd1; ld.param.u64 %rd1,[p]; st.global.u32 [%rd1],1; ret; }\n"
    ".visible .entry endless() { L: bra L; }\n"
    ".visible .entry deep() { .reg .u32 %r<3>; call (%r1),factorial,(100000); ret; }\n"
    ".visible .entry stuck() { .reg .u32 %r1; .reg .pred %p; mov.u32 %r1,%tid.x; setp.eq.u32 %p,%r1,0;"
    " @%p bra A; bar.sync 1; ret; A: bar.sync 2; ret; }\n"
    ".visible .entry leaver() { .reg .u32 %r1; .reg .pred %p; mov.u32 %r1,%tid.x; setp.lt.u32 %p,%r1,5; @%p ret;"
    " bar.sync 0; ret; }\n"
    ".visible .entry trapped() { trap; }\n"
    ".visible .entry shaped() .reqntid 32, 2, 1 { ret; }\n"
    ".visible .entry small() .maxntid 64, 1, 1 { ret; }\n";

static egpu_ptx_module *m;

static void test_results(void) {
    enum { N = 1000 };
    float *x = device(N * 4), *y = device(N * 4);
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = 1;
    struct {
        uint64_t x, y;
        float a;
        uint32_t n;
    } s = {(uintptr_t)x, (uintptr_t)y, 2, N};
    CHECK(run_kernel(m, "saxpy", shape(4, 256, &s, sizeof s)) == EGPU_PTX_OK, "saxpy");
    for (int i = 0; i < N; i++) CHECK(y[i] == 2.0f * (float)i + 1, "saxpy[%d] = %g", i, y[i]);
    CHECK(last_stats.loads == 2 * N + 4 * 1024 && last_stats.stores == N, "loads %llu stores %llu",
          (unsigned long long)last_stats.loads, (unsigned long long)last_stats.stores);

    uint64_t r[2] = {(uintptr_t)x, (uintptr_t)y};
    CHECK(run_kernel(m, "reduce", shape(1, 256, r, sizeof r)) == EGPU_PTX_OK, "reduce");
    CHECK(y[0] == 255 * 128, "reduce gave %g", y[0]);
    CHECK(last_stats.barriers == 9, "barriers %llu", (unsigned long long)last_stats.barriers);

    uint32_t (*w)[4] = device(32 * 16);
    uint64_t out = (uintptr_t)w;
    CHECK(run_kernel(m, "warp", shape(1, 32, &out, 8)) == EGPU_PTX_OK, "warp");
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t down = i % 4 < 2 ? i + 2 : i;
        CHECK(w[i][0] == 496 && w[i][1] == (i ? i - 1 : 99) && w[i][2] == down && w[i][3] == 16,
              "warp lane %u: %u %u %u %u", i, w[i][0], w[i][1], w[i][2], w[i][3]);
    }

    uint32_t (*v)[2] = device(64 * 8);
    out = (uintptr_t)v;
    CHECK(run_kernel(m, "diverge", shape(1, 64, &out, 8)) == EGPU_PTX_OK, "diverge");
    for (uint32_t i = 0; i < 64; i++)
        CHECK(v[i][0] == (i & 1 ? 0xaaaaaaaa : i / 32 * 32 + 4) && v[i][1] == 32,
              "diverge %u: %x %u", i, v[i][0], v[i][1]);

    uint32_t *masks = device(32 * 4);
    out = (uintptr_t)masks;
    CHECK(run_kernel(m, "parted", shape(1, 32, &out, 8)) == EGPU_PTX_OK, "parted");
    CHECK(masks[0] == 0xff && masks[31] == 0xffffff00, "parted: %x %x", masks[0], masks[31]);

    uint32_t *bins = device(24 * 4);
    union {
        float f;
        double d;
    } *sum = device(16);
    uint64_t h[2] = {(uintptr_t)bins, (uintptr_t)sum};
    CHECK(run_kernel(m, "histogram", shape(2, 512, h, sizeof h)) == EGPU_PTX_OK, "histogram");
    for (unsigned i = 0; i < 8; i++)
        CHECK(bins[i] == 128 && bins[8 + i] == 504 + i && bins[16 + i] == 128 % 3,
              "bin %u: %u %u %u", i, bins[i], bins[8 + i], bins[16 + i]);
    CHECK(sum[0].f == 1024 && sum[1].d == 1024, "sums %g %g", sum[0].f, sum[1].d);

    uint32_t *lock = device(8);
    out = (uintptr_t)lock;
    CHECK(run_kernel(m, "lock", shape(3, 128, &out, 8)) == EGPU_PTX_OK, "lock");
    CHECK(lock[1] == 384, "lock counted %u", lock[1]);

    uint32_t (*c)[8] = device(8 * 32);
    out = (uintptr_t)c;
    CHECK(run_kernel(m, "calls", shape(1, 8, &out, 8)) == EGPU_PTX_OK, "calls: line %u",
          last_fault.line);
    for (uint32_t i = 0; i < 8; i++)
        CHECK(c[i][0] == i * i && c[i][1] == 120 && c[i][2] == i && c[i][3] == 7 && c[i][4] == 9 &&
                  c[i][5] == 30 && c[i][6] == 0x3f000000 && c[i][7] == 81,
              "calls %u: %u %u %u %u %u %u %x %u", i, c[i][0], c[i][1], c[i][2], c[i][3], c[i][4],
              c[i][5], c[i][6], c[i][7]);

    egpu_ptx_launch l = shape(1, 1, &out, 8);
    l.dynamic_shared_bytes = 64;
    CHECK(run_kernel(m, "window", l) == EGPU_PTX_OK && c[0][0] == 77 && c[0][1] == 64,
          "dynamic shared memory");
    struct {
        uint64_t out;
        uint32_t at;
    } vector = {out, 16};
    egpu_ptx_launch wide = shape(1, 1, &vector, sizeof vector);
    wide.dynamic_shared_bytes = 28; /* without the last of the four words */
    CHECK(run_kernel(m, "vector", wide) == EGPU_PTX_OK && c[0][0] == 88 && c[0][1] == 128,
          "a vector that begins in shared memory: %u of %u", c[0][0], c[0][1]);
    vector.at = 128;
    CHECK(run_kernel(m, "vector", wide) == EGPU_PTX_ILLEGAL_ADDRESS, "past the unit of its end");
    l.dynamic_shared_bytes = 0;
    CHECK(run_kernel(m, "braced", l) == EGPU_PTX_OK && c[0][0] == 41 && c[0][2] == 42 &&
              c[0][3] == 41,
          "a vector of one: %u %u %u", c[0][0], c[0][2], c[0][3]);
    CHECK(run_kernel(m, "indexed", l) == EGPU_PTX_OK, "elements by index");
    static const uint32_t elements[] = {30, 40, 8, 7, 5, 4};
    CHECK(memcmp(c[0], elements, sizeof elements) == 0, "%u %u %u %u %u %u", c[0][0], c[0][1],
          c[0][2], c[0][3], c[0][4], c[0][5]);
    CHECK(run_kernel(m, "window", l) == EGPU_PTX_ILLEGAL_ADDRESS, "past the end of shared memory");
}

static void *cancel_it(void *flag) {
    atomic_store((_Atomic int *)flag, 1);
    return NULL;
}

/* From another thread, while the kernel runs: with ThreadSanitizer this tests the flag. */
static egpu_ptx_status cancelled_meanwhile(egpu_ptx_launch l) {
    _Atomic int cancel = 0;
    pthread_t other;
    l.max_instructions = 0;
    l.cancel = &cancel;
    if (pthread_create(&other, NULL, cancel_it, &cancel) != 0) return EGPU_PTX_OK;
    egpu_ptx_status status = run_kernel(m, "endless", l);
    pthread_join(other, NULL);
    return status;
}

static void test_failures(void) {
    uint64_t p = 0x10;
    CHECK(run_kernel(m, "store", shape(1, 1, &p, 8)) == EGPU_PTX_ILLEGAL_ADDRESS &&
              last_fault.address == 0x10 && last_fault.write && last_fault.length == 4 &&
              last_fault.line > 0,
          "illegal address");
    char *buffer = device(16);
    p = (uintptr_t)buffer + 2;
    CHECK(run_kernel(m, "store", shape(1, 1, &p, 8)) == EGPU_PTX_MISALIGNED, "misaligned");
    p = (uintptr_t)buffer + 16;
    CHECK(run_kernel(m, "store", shape(1, 1, &p, 8)) == EGPU_PTX_ILLEGAL_ADDRESS,
          "one past the end");
    buffers[buffer_count - 1].writable = false;
    p = (uintptr_t)buffer;
    CHECK(run_kernel(m, "store", shape(1, 1, &p, 8)) == EGPU_PTX_ILLEGAL_ADDRESS, "read-only");
    egpu_ptx_launch l = shape(1, 1, NULL, 0);
    l.max_instructions = 100000;
    CHECK(run_kernel(m, "endless", l) == EGPU_PTX_TIMEOUT, "endless");
    CHECK(cancelled_meanwhile(l) == EGPU_PTX_CANCELLED, "cancelled");
    CHECK(run_kernel(m, "deep", shape(1, 1, NULL, 0)) == EGPU_PTX_STACK_OVERFLOW, "stack overflow");
    CHECK(run_kernel(m, "stuck", shape(1, 64, NULL, 0)) == EGPU_PTX_DEADLOCK,
          "mismatched barriers");
    CHECK(run_kernel(m, "leaver", shape(1, 64, NULL, 0)) == EGPU_PTX_OK,
          "those who left are not waited for");
    CHECK(run_kernel(m, "trapped", shape(1, 1, NULL, 0)) == EGPU_PTX_TRAP, "trap");
    CHECK(run_kernel(m, "shaped", shape(1, 64, NULL, 0)) == EGPU_PTX_INVALID_LAUNCH, "reqntid");
    CHECK(run_kernel(m, "small", shape(1, 65, NULL, 0)) == EGPU_PTX_INVALID_LAUNCH, "maxntid");
    CHECK(run_kernel(m, "small", shape(1, 64, NULL, 0)) == EGPU_PTX_OK, "maxntid");
    CHECK(run_kernel(m, "endless", shape(1, 1025, NULL, 0)) == EGPU_PTX_INVALID_LAUNCH,
          "1025 threads");
    CHECK(run_kernel(m, "endless", shape(0, 1, NULL, 0)) == EGPU_PTX_INVALID_LAUNCH,
          "an empty grid");
    CHECK(run_kernel(m, "store", shape(1, 1, NULL, 0)) == EGPU_PTX_INVALID_LAUNCH, "no parameters");
}

/* Compilers generate this when they unroll a loop. */
static void test_shared_addresses_of_32_bits_wrap_around(void) {
    static const char text[] = HEADER
        ".visible .entry k(.param .u64 out, .param .u32 first) {\n"
        ".shared .align 4 .b8 s[64];\n.reg .b32 %r<4>; .reg .b64 %d;\n"
        "ld.param.u64 %d,[out]; ld.param.u32 %r1,[first]; mov.u32 %r2,s; add.s32 %r1,%r2,%r1;\n"
        "st.shared.u32 [%r1+128],7; ld.shared.u32 %r3,[%r2]; st.global.u32 [%d],%r3; }\n";
    struct {
        uint32_t *out;
        int32_t first;
    } p = {device(4), -128};
    egpu_ptx_module *wrapping = load(text);
    CHECK(run_kernel(wrapping, "k", shape(1, 1, &p, sizeof p)) == EGPU_PTX_OK && *p.out == 7, "%u",
          *p.out);
    p.first = 64;
    CHECK(run_kernel(wrapping, "k", shape(1, 1, &p, sizeof p)) == EGPU_PTX_ILLEGAL_ADDRESS,
          "beyond it");
    egpu_ptx_unload(wrapping);
}

static void test_description(void) {
    const egpu_ptx_kernel_info *info = egpu_ptx_kernel_describe(egpu_ptx_find_kernel(m, "saxpy"));
    CHECK(info->param_count == 4 && info->param_bytes == 24 && info->params[2].offset == 16 &&
              info->params[3].offset == 20 && info->params[3].size == 4,
          "parameters of saxpy");
    CHECK(info->has_duration && info->duration_us == 12.5, "duration of saxpy");
    CHECK(egpu_ptx_kernel_describe(egpu_ptx_find_kernel(m, "reduce"))->static_shared_bytes == 1024,
          "shared bytes of reduce");
    CHECK(egpu_ptx_kernel_describe(egpu_ptx_find_kernel(m, "window"))->dynamic_shared,
          "dynamic shared memory of window");
    CHECK(egpu_ptx_kernel_describe(egpu_ptx_find_kernel(m, "small"))->max_threads == 64,
          "max threads");
    const egpu_ptx_global *table = egpu_ptx_find_global(m, "table");
    CHECK(table && table->size == 16 && ((uint32_t *)(uintptr_t)table->address)[2] == 30,
          "global table");
    CHECK(!egpu_ptx_find_kernel(m, "square"), "a device function is no kernel");
}

static void test_refusals(void) {
    static const struct {
        const char *body;
        egpu_ptx_status status;
        const char *says;
    } cases[] = {
        {".reg .b32 r; wmma.load.a.sync.aligned.row.m8n8k32.s4 {r},[r];", EGPU_PTX_UNSUPPORTED,
         "line 5: unsupported instruction 'wmma.load"},
        {".reg .b64 r; cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
         " [r],[r,{r,r}],[r];",
         EGPU_PTX_UNSUPPORTED, "line 5: unsupported instruction 'cp.async.bulk.tensor.2d"},
        {"tcgen05.fence::before_thread_sync;", EGPU_PTX_UNSUPPORTED,
         "line 5: unsupported instruction 'tcgen05.fence"},
        {".reg .b32 r; mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {r},{r},{r},{r};",
         EGPU_PTX_UNSUPPORTED, "mma.sync.aligned.m8n8k4"},
        {".reg .b32 r; mma.sync.aligned.m16n8k8.row.col.f32.bf16.f16.f32 {r},{r},{r},{r};",
         EGPU_PTX_UNSUPPORTED, "m16n8k8.row.col.f32.bf16.f16.f32"},
        {".reg .b32 r; mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {r},{r},{r},{r};",
         EGPU_PTX_UNSUPPORTED, "m16n8k64"},
        {".reg .b32 r; ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r},[r];",
         EGPU_PTX_UNSUPPORTED, "ldmatrix.sync.aligned.m16n16"},
        {".reg .b32 r; cp.async.cg.shared.global [r],[r],4;", EGPU_PTX_SYNTAX, "copies 16 bytes"},
        {".reg .b32 r; cvt.rn.e4m3x2.f32 r,r,r;", EGPU_PTX_UNSUPPORTED, "e4m3x2"},
        {".reg .b32 r; atom.global.min.noftz.f16x2 r,[r],r;", EGPU_PTX_UNSUPPORTED, "f16x2"},
        {".reg .b32 r; add.frob.u32 r,r,r;", EGPU_PTX_UNSUPPORTED, "add.frob.u32"},
        {".reg .b32 r; div.f16x2 r,r,r;", EGPU_PTX_UNSUPPORTED, "div.f16x2"},
        {".reg .b32 r; add.rz.f16x2 r,r,r;", EGPU_PTX_UNSUPPORTED, "add.rz.f16x2"},
        {"barrier.cluster.sync;", EGPU_PTX_UNSUPPORTED, "barrier.cluster.sync"},
        {".reg .b64 r; fence.proxy.tensormap::generic.acquire.gpu [r],128;", EGPU_PTX_UNSUPPORTED,
         "fence.proxy.tensormap"},
        {".reg .b32 r; shfl.bfly.b32 r,r,1,31;", EGPU_PTX_UNSUPPORTED, "shfl.bfly.b32"},
        {".reg .b32 r; .reg .pred p; vote.ballot.b32 r,p;", EGPU_PTX_UNSUPPORTED,
         "vote.ballot.b32"},
        {".reg .b32 r; vadd4.u32.u32.u32 r,r,r,r;", EGPU_PTX_UNSUPPORTED, "vadd4"},
        {".reg .b32 r; mov.u32 r,%envreg32;", EGPU_PTX_UNSUPPORTED, "%envreg32"},
        {".reg .b64 r; tex.2dms.v4.f32.s32 {r,r,r,r},[r,{r,r,r,r}];", EGPU_PTX_UNSUPPORTED,
         "tex.2dms"},
        {".reg .f32 f; add.u32 f,f,f;", EGPU_PTX_SYNTAX, "register 'f' is .f32"},
        {".reg .b128 r;", EGPU_PTX_UNSUPPORTED, "b128"},
        {".reg .b32 r; .reg .b64 d; add.u32 r,r,d;", EGPU_PTX_SYNTAX, "register 'd' is .b64"},
        {".reg .b32 r; add.u32 r,r,x;", EGPU_PTX_SYNTAX, "'x'"},
        {".reg .b32 r; add.u32 r,r;", EGPU_PTX_SYNTAX, "expected ','"},
        {".reg .b32 r; .reg .b32 r;", EGPU_PTX_SYNTAX, "declared twice"},
        {".reg .b64 r; mov.u64 r,grid[1];", EGPU_PTX_UNSUPPORTED, "an index into 'grid'"},
        {".reg .b64 r; mov.u64 r,one[0];", EGPU_PTX_UNSUPPORTED, "an index into 'one'"},
        {".reg .b32 r; ld.global.u32 r,one;", EGPU_PTX_SYNTAX, "'one' is not an address"},
        {"bra NOWHERE;", EGPU_PTX_SYNTAX, "NOWHERE"},
        {"call nobody;", EGPU_PTX_SYNTAX, "nobody"},
        {"call external;", EGPU_PTX_UNRESOLVED, "external"},
        {".pragma \"egpu.duration_us soon\";", EGPU_PTX_SYNTAX, "microseconds"},
        {"\x01", EGPU_PTX_SYNTAX, "0x01"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 HEADER
                 ".extern .func external; .global .u32 grid[2][2], one;\n.entry k() { %s\nret; }\n",
                 cases[i].body);
        egpu_ptx_module *module;
        egpu_ptx_status status =
            egpu_ptx_load(text, 0, &allocator, load_log, sizeof load_log, &module);
        CHECK(status == cases[i].status && !module && strstr(load_log, cases[i].says), "%s: %s: %s",
              cases[i].body, egpu_ptx_status_name(status), load_log);
    }
    egpu_ptx_module *module;
    CHECK(egpu_ptx_load("hello", 0, &allocator, load_log, sizeof load_log, &module) ==
              EGPU_PTX_SYNTAX,
          "no PTX");
    CHECK(egpu_ptx_load("", 0, &allocator, NULL, 0, &module) == EGPU_PTX_SYNTAX, "empty");
    CHECK(egpu_ptx_load(HEADER ".entry k() { ret; }\0\0", sizeof HEADER + 20, &allocator, NULL, 0,
                        &module) == EGPU_PTX_OK,
          "length with NULs");
    egpu_ptx_unload(module);
}

int main(void) {
    m = load(threads_ptx);
    if (m) {
        test_results();
        test_failures();
        test_shared_addresses_of_32_bits_wrap_around();
        test_description();
        egpu_ptx_unload(m);
    }
    test_refusals();
    return report("programs");
}
