/* Work beside a thread: copies that are done when they are waited for and not earlier, and barriers
 * in shared memory that count arrivals and bytes.
 */
#include "harness.h"

static const char ptx[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".shared .align 16 .b8 tile[256]; .shared .align 8 .b64 bar; .shared .align 8 .b64 other;\n"

    /* Three groups; shared memory after each step is written out in order. */
    ".entry groups(.param .u64 in, .param .u64 out) { .reg .b64 %in,%out; .reg .b32 %r<9>,%t;\n"
    "ld.param.u64 %in,[in]; ld.param.u64 %out,[out]; mov.u32 %t,tile;\n"
    "cp.async.ca.shared.global [ %t + 0 ],[ %in + 0 ],0x4; cp.async.commit_group;\n"
    "cp.async.ca.shared.global.L2::128B [%t+8],[%in+8],8; cp.async.commit_group;\n"
    "cp.async.cg.shared.global [%t+16],[%in+16],16; cp.async.commit_group;\n"
    "cp.async.ca.shared::cta.global [%t+32],[%in+32],4;\n"
    "ld.shared.u32 %r0,[%t]; st.global.u32 [%out],%r0;\n"
    "cp.async.wait_group 4; ld.shared.u32 %r0,[%t]; st.global.u32 [%out+4],%r0;\n"
    "cp.async.wait_group 2; ld.shared.u32 %r0,[%t]; ld.shared.u32 %r1,[%t+8];"
    " st.global.v2.u32 [%out+8],{%r0,%r1};\n"
    "cp.async.wait_group 0; ld.shared.u32 %r0,[%t+12]; ld.shared.u32 %r1,[%t+28];"
    " ld.shared.u32 %r2,[%t+32];\n"
    "st.global.u32 [%out+16],%r0; st.global.u32 [%out+20],%r1; st.global.u32 [%out+24],%r2;\n"
    "cp.async.wait_all; ld.shared.u32 %r0,[%t+32]; st.global.u32 [%out+28],%r0; ret; }\n"

    /* Fewer bytes, none by a predicate, and cache policies; the source changes before it is waited
       for. */
    ".entry sizes(.param .u64 in, .param .u64 out, .param .u32 n) {\n"
    ".reg .b64 %in,%out,%pol; .reg .b32 %r<9>,%t,%n; .reg .pred %p;\n"
    "ld.param.u64 %in,[in]; ld.param.u64 %out,[out]; ld.param.u32 %n,[n]; mov.u32 %t,tile;"
    " setp.eq.u32 %p,%n,4;\n"
    "createpolicy.fractional.L2::evict_last.b64 %pol,1.0; mov.u32 %r0,-1;\n"
    "st.shared.v4.u32 [%t],{%r0,%r0,%r0,%r0}; st.shared.v4.u32 [%t+16],{%r0,%r0,%r0,%r0};\n"
    "cp.async.cg.shared.global.L2::cache_hint [%t],[%in],16,%n,%pol;\n"
    "cp.async.cg.shared.global.L2::cache_hint [%t+16],[%in],16,%pol;\n"
    "cp.async.ca.shared.global [%t+32],[1],4,0;\n"
    "cp.async.ca.shared.global [%t+16],[%in],4,%p;\n"
    "mov.u32 %r0,99; st.global.u32 [%in],%r0; cp.async.wait_all;\n"
    "ld.shared.v4.u32 {%r0,%r1,%r2,%r3},[%t]; ld.shared.v4.u32 {%r4,%r5,%r6,%r7},[%t+16];\n"
    "ld.global.L1::evict_last.L2::cache_hint.b32 { %r8 }, [ %in + 0 ], %pol;\n"
    "st.global.L2::cache_hint.v4.u32 [%out],{%r0,%r1,%r2,%r3},%pol;"
    " st.global.v4.u32 [%out+16],{%r4,%r5,%r6,%r8}; ret; }\n"

    /* Never waited for: thread 1, which comes later, finds nothing. */
    ".entry forgotten(.param .u64 in, .param .u64 out) { .reg .b64 %in,%out; .reg .b32 %r<3>,%t;"
    " .reg .pred %p;\n"
    "ld.param.u64 %in,[in]; ld.param.u64 %out,[out]; mov.u32 %r0,%tid.x; setp.ne.u32 %p,%r0,0;"
    " mov.u32 %t,tile;\n"
    "@!%p cp.async.ca.shared.global [%t],[%in],4; @!%p cp.async.commit_group; bar.sync 0;"
    " @!%p ret;\n"
    "cp.async.wait_all; ld.shared.u32 %r1,[%t]; st.global.u32 [%out],%r1; ret; }\n"
    ".entry outside(.param .u64 in) { .reg .b64 %in; .reg .b32 %t; ld.param.u64 %in,[in];"
    " mov.u32 %t,tile;\n"
    "cp.async.cg.shared.global [%t],[%in],16;\ncp.async.wait_all; ret; }\n"
    ".entry longer(.param .u64 in) { .reg .b64 %in; .reg .b32 %t,%n; ld.param.u64 %in,[in];"
    " mov.u32 %t,tile; mov.u32 %n,5;\n"
    "cp.async.ca.shared.global [%t],[%in],4,%n; ret; }\n"

    /* Thread 0 consumes the output of 33 others, twice; the barrier's phase changes. */
    ".entry phases(.param .u64 out) { .reg .b64 %out,%s,%g; .reg .b32 %r<6>,%b; .reg .pred %p<4>;\n"
    "ld.param.u64 %out,[out]; mov.u32 %r0,%tid.x; mov.u32 %b,bar; setp.eq.u32 %p0,%r0,0;"
    " @!%p0 bra SYNC;\n"
    "mbarrier.init.shared::cta.b64 [%b],33; fence.mbarrier_init.release.cluster;"
    " fence.proxy.async.shared::cta;\n"
    "SYNC: bar.sync 0; mov.u32 %r1,0; @!%p0 bra PRODUCE;\n"
    "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1,[%b],%r1; @!%p1 bra WAIT;\n"
    "ld.shared.u32 %r2,[tile]; mul.wide.u32 %g,%r1,4; add.u64 %g,%out,%g; st.global.u32 [%g],%r2;\n"
    "add.u32 %r1,%r1,1; bar.sync 1; setp.lt.u32 %p2,%r1,2; @%p2 bra WAIT;\n"
    "mbarrier.test_wait.parity.shared.b64 %p1,[%b],1; selp.u32 %r2,1,0,%p1;"
    " mbarrier.test_wait.parity.shared.b64 %p1,[%b],0;\n"
    "selp.u32 %r3,1,0,%p1; st.global.v2.u32 [%out+8],{%r2,%r3}; mbarrier.inval.shared.b64 [%b];"
    " ret;\n"
    "PRODUCE: red.shared.add.u32 [tile],%r0; cvt.u64.u32 %g,%b; cvta.shared.u64 %g,%g;"
    " mbarrier.arrive.b64 %s,[%g];\n"
    "bar.sync 1; add.u32 %r1,%r1,1; setp.lt.u32 %p2,%r1,2; @%p2 bra PRODUCE; ret; }\n"

    /* Bytes: a phase ends when the expected bytes have come, not just the arrivals. */
    ".entry bytes(.param .u64 out, .param .u64 in) { .reg .b64 %out,%in,%s<3>;"
    " .reg .b32 %r<9>,%b,%t; .reg .pred %p;\n"
    "ld.param.u64 %out,[out]; ld.param.u64 %in,[in]; mov.u32 %b,bar; mov.u32 %t,tile;"
    " mbarrier.init.shared.b64 [%b],2;\n"
    "mbarrier.arrive.expect_tx.shared.b64 %s0,[%b],64; mbarrier.arrive.shared.b64 %s1,[%b];\n"
    "mbarrier.test_wait.shared.b64 %p,[%b],%s0; selp.u32 %r0,1,0,%p;\n"
    "mbarrier.complete_tx.relaxed.cta.shared.b64 [%b],64;"
    " mbarrier.test_wait.shared.b64 %p,[%b],%s0; selp.u32 %r1,1,0,%p;\n"
    "mbarrier.init.shared.b64 [other],1; cp.async.ca.shared.global [%t],[%in],4;"
    " cp.async.mbarrier.arrive.noinc.shared.b64 [other];\n"
    "mbarrier.try_wait.parity.shared.b64 %p,[other],0,1000; selp.u32 %r2,1,0,%p;"
    " ld.shared.u32 %r3,[%t];\n"
    "st.global.v4.u32 [%out],{%r0,%r1,%r2,%r3};\n"
    "mbarrier.arrive_drop.shared.b64 _,[%b]; mbarrier.arrive.shared.b64 %s0,[%b],1;"
    " mbarrier.arrive.shared.b64 %s0,[%b];\n"
    "mbarrier.test_wait.shared.b64 %p,[%b],%s0; selp.u32 %r0,1,0,%p;"
    " st.global.u32 [%out+16],%r0; ret; }\n"
    ".entry many() { mbarrier.init.shared.b64 [bar],1;\nmbarrier.arrive.shared.b64 _,[bar],2;"
    " ret; }\n"
    ".entry none() {\nmbarrier.arrive.shared.b64 _,[bar]; ret; }\n"

    /* Instructions without effect on a simulated card. */
    ".entry hints(.param .u64 out) { .reg .b64 %out; .reg .b32 %r; ld.param.u64 %out,[out];"
    " setmaxnreg.inc.sync.aligned.u32 40;\n"
    "griddepcontrol.wait; griddepcontrol.launch_dependents; nanosleep.u32 20; mov.u32 %r,5;"
    " st.global.u32 [%out],%r; ret; }\n"
    ".entry wide(.param .u64 in, .param .u64 out) { .reg .b64 %a,%b,%c,%d; .reg .b32 %r<8>;"
    " ld.param.u64 %a,[in]; ld.param.u64 %d,[out];\n"
    "ld.global.v8.b32 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7},[%a];"
    " st.global.v8.b32 [%d],{%r7,%r6,%r5,%r4,%r3,%r2,%r1,%r0};\n"
    "add.u64 %d,%d,32; ld.global.v4.b64 {%a,%b,%c,_},[%a]; st.global.v4.b64 [%d],{%c,%b,%a,%a};"
    " ret; }\n";

static egpu_ptx_module *m;
static uint32_t *in, *out;

static egpu_ptx_status start(const char *name, uint64_t first, uint64_t second, uint32_t third,
                             unsigned threads) {
    struct {
        uint64_t first, second;
        uint32_t third;
    } p = {first, second, third};
    memset(out, 0, 256);
    for (uint32_t i = 0; i < 64; i++) in[i] = 100 + i;
    return run_kernel(m, name, shape(1, threads, &p, sizeof p));
}

static void is(const char *name, const uint32_t *expected, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        CHECK(out[i] == expected[i], "%s: word %u is %u, not %u", name, i, out[i], expected[i]);
}

static void test_copies(void) {
    uint64_t from = (uintptr_t)in, to = (uintptr_t)out;
    CHECK(start("groups", from, to, 0, 1) == EGPU_PTX_OK, "groups: line %u", last_fault.line);
    is("groups", (uint32_t[]){0, 0, 100, 0, 103, 107, 0, 108}, 8);
    CHECK(start("sizes", from, to, 8, 1) == EGPU_PTX_OK, "sizes: line %u", last_fault.line);
    is("eight bytes", (uint32_t[]){99, 101, 0, 0, 99, 101, 102, 99}, 8);
    CHECK(start("sizes", from, to, 4, 1) == EGPU_PTX_OK, "sizes: line %u", last_fault.line);
    is("four bytes and none", (uint32_t[]){99, 0, 0, 0, 0, 101, 102, 99}, 8);
    CHECK(start("sizes", from, to, 0, 1) == EGPU_PTX_OK, "sizes: line %u", last_fault.line);
    is("no bytes", (uint32_t[]){0, 0, 0, 0, 99, 101, 102, 99}, 8);
    CHECK(start("forgotten", from, to, 0, 64) == EGPU_PTX_OK, "forgotten");
    is("forgotten", (uint32_t[]){0}, 1);
    CHECK(start("outside", from + 256, 0, 0, 1) == EGPU_PTX_ILLEGAL_ADDRESS &&
              last_fault.length == 16 && !last_fault.write,
          "a copy from outside");
    uint32_t line = last_fault.line;
    CHECK(start("outside", from + 8, 0, 0, 1) == EGPU_PTX_MISALIGNED && last_fault.line == line,
          "a misaligned copy");
    CHECK(start("longer", from, 0, 0, 1) == EGPU_PTX_TRAP, "more than there is");
}

static void test_barriers(void) {
    uint64_t from = (uintptr_t)in, to = (uintptr_t)out;
    CHECK(start("phases", to, 0, 0, 34) == EGPU_PTX_OK, "phases: line %u", last_fault.line);
    is("phases", (uint32_t[]){561, 1122, 1, 0}, 4);
    CHECK(start("bytes", to, from, 0, 1) == EGPU_PTX_OK, "bytes: line %u", last_fault.line);
    is("bytes", (uint32_t[]){0, 1, 1, 100, 1}, 5);
    CHECK(start("many", 0, 0, 0, 1) == EGPU_PTX_TRAP, "two arrivals where one is expected");
    CHECK(start("none", 0, 0, 0, 1) == EGPU_PTX_TRAP, "no barrier");
}

static void test_others(void) {
    CHECK(start("hints", (uintptr_t)out, 0, 0, 1) == EGPU_PTX_OK && out[0] == 5, "hints");
    CHECK(start("wide", (uintptr_t)in, (uintptr_t)out, 0, 1) == EGPU_PTX_OK, "wide");
    is("wide", (uint32_t[]){107, 106, 105, 104, 103, 102, 101, 100, 104, 105, 102, 103, 100, 101},
       14);
}

int main(void) {
    m = load(ptx);
    in = device(256), out = device(256);
    if (m) {
        test_copies();
        test_barriers();
        test_others();
        egpu_ptx_unload(m);
    }
    return report("pending");
}
