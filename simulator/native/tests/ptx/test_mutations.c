/* The parser and the interpreter on damaged input: bytes flipped, pieces cut out, doubled and
 * moved. Accepted text runs for a moment. Nothing may crash (the suite builds this with sanitizers
 * if it can); a fixed seed makes it repeatable. Usage: test_mutations [ROUNDS [SEED]]
 */
#include "harness.h"

static const char *const seeds[] = {
    HEADER
    ".const .align 4 .b32 c[3] = {1, -2, 0x3};\n.global .align 8 .u64 g = generic(c)+4;\n.extern .shared .b8 s[];\n"
    ".func (.param .b32 r) f(.param .b32 a, .reg .u32 b) { .reg .b32 %r<4>; ld.param.b32 %r1,[a]; add.u32 %r1,%r1,b;"
    " st.param.b32 [r],%r1; ret; }\n"
    ".visible .entry k(.param .u64 p, .param .align 8 .b8 q[16]) .maxntid 64,1,1 {\n"
    ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .f32 %f<4>; .reg .b64 %rd<5>; .local .align 8 .b8 l[32]; .shared .f32 t[8];\n"
    ".pragma \"egpu.duration_us 3\"; .loc 1 2 3\n"
    "ld.param.u64 %rd1,[p]; ld.param.v2.u32 {%r1,%r2},[q+8]; mov.u32 %r3,%tid.x; mov.f32 %f1,0f3F800000;\n"
    "@!%p1 mad.lo.s32 %r4,%r3,4,%r1; setp.lt.and.u32 %p1|%p2,%r3,7,!%p3; @%p1 bra $L1;\n"
    "mov.u64 %rd2,l; st.local.v4.u32 [%rd2+16],{%r1,%r2,%r3,%r4}; cvta.to.global.u64 %rd3,%rd1;\n"
    "$L1: { .param .b32 x; .param .b32 y; st.param.b32 [x],7; call.uni (y),f,(x,%r3); ld.param.b32 %r5,[y]; }\n"
    "cvt.rn.f32.s32 %f2,%r5; fma.rn.ftz.f32 %f3,%f1,%f2,0.5; mov.b64 {%r6,%r7},%rd1; prmt.b32 %r6,%r7,%r6,0x1234;\n"
    "st.shared.f32 [t+4],%f3; bar.sync 0; bar.red.popc.u32 %r6,1,%p1; shfl.sync.bfly.b32 %r7|%p2,%r6,1,31,-1;\n"
    "atom.shared.add.u32 %r8,[t],1; vote.sync.ballot.b32 %r8,%p1,-1; activemask.b32 %r8; st.global.u32 [%rd1],%r5;\n"
    "T: .branchtargets $L2,$L3; brx.idx %r3,T; $L2: ret; $L3: exit; }\n",
    HEADER
    ".entry e(.param .u64 a) { .reg .u64 %d<9>; .reg .u32 %r<9>; .reg .pred p; ld.param.u64 %d1,[a];\n"
    "mul.wide.u32 %d2,%r1,4; L: add.cc.u32 %r1,%r2,1; addc.u32 %r3,%r4,%r5; bfi.b32 %r1,%r2,%r3,4,5; lop3.b32 %r1,%r2,%r3,%r4,0xe8;\n"
    "cvt.sat.u8.s32 %r5,%r6; shf.l.wrap.b32 %r1,%r2,%r3,%r4; div.s64 %d3,%d2,%d1; popc.b64 %r1,%d3; setp.ne.u32 p,%r1,%r1;\n"
    "@p bra L; st.u32 [%d1+-4],%r1; trap; }\n",
    HEADER
    ".shared .align 16 .b8 s[1024]; .shared .align 8 .b64 b;\n"
    ".entry m(.param .u64 a) .reqntid 32 { .reg .b64 %d<9>; .reg .b32 %r<20>; .reg .b16 %h<4>;"
    " .reg .pred %p<3>; ld.param.u64 %d1,[a];\n"
    "mov.u32 %r1,s; mov.u32 %r2,%tid.x; shl.b32 %r2,%r2,4; add.u32 %r1,%r1,%r2;"
    " setp.ne.u32 %p1,%r2,0; mov.u32 %r19,8;\n"
    "cp.async.cg.shared.global [%r1+0],[%d1+16],16,%r19;"
    " cp.async.ca.shared.global [%r1],[%d1],4,%p1; cp.async.commit_group;\n"
    "@!%p1 mbarrier.init.shared.b64 [b],32; bar.sync 0; cp.async.wait_group 1;"
    " mbarrier.arrive.expect_tx.shared.b64 %d2,[b],8;\n"
    "mbarrier.complete_tx.shared.b64 [b],8; mbarrier.try_wait.parity.shared.b64 %p2,[b],0;"
    " cp.async.mbarrier.arrive.noinc.shared.b64 [b];\n"
    "cp.async.wait_all; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
    "{%r3,%r4,%r5,%r6},[%r1+16];\n"
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{%r7,%r8,%r9,%r10},{%r3,%r4,%r5,%r6},{%r3,%r4},{%r7,%r8,%r9,%r10};\n"
    "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 "
    "{%r7,%r8,%r9,%r10},{%r3,%r4,%r5,%r6},{%r3,%r4},{%r7,%r8,%r9,%r10};\n"
    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1],{%r7,%r8};"
    " fma.rn.relu.f16x2 %r11,%r7,%r8,%r9; add.bf16x2 %r12,%r11,%r7;\n"
    "set.nan.f16x2.f16x2 %r13,%r11,%r12; setp.gtu.bf16x2 %p1|%p2,%r11,%r12;"
    " cvt.rn.satfinite.e4m3x2.f32 %h1,%r7,%r8;\n"
    "cvt.rn.f16x2.e5m2x2 %r14,%h1; cvt.rna.tf32.f32 %r15,%r7;"
    " ld.global.v8.b32 {%r3,%r4,%r5,%r6,%r7,%r8,%r9,%r10},[%d1];\n"
    "createpolicy.fractional.L2::evict_first.b64 %d3;"
    " st.global.L2::cache_hint.v2.b32 [%d1+8],{%r14,%r15},%d3; ret; }\n",
};
enum { SEEDS = sizeof seeds / sizeof *seeds };

static uint64_t state;
static uint32_t next(uint32_t below) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % below);
}

static size_t mutate(char *text, size_t length, size_t room) {
    static const char spice[] = "%rdfp0129-+.,;:[]{}()@!<>=\"/*_ \n$x";
    for (uint32_t n = next(3) ? 1 : 1 + next(4); n; n--) {
        size_t at = next((uint32_t)length), piece = 1 + next(24);
        if (piece > length - at) piece = length - at;
        /* mostly small changes that leave a valid program: another number or letter */
        switch (next(9)) {
        case 5:
        case 6:
        case 7:
        case 8:
            for (; at < length && (text[at] < '0' || text[at] > '9'); at++) {
            }
            if (at < length) text[at] = (char)('0' + next(10));
            break;
        case 0: text[at] = spice[next(sizeof spice - 1)]; break;
        case 1: text[at] = (char)next(256); break;
        case 2:
            memmove(text + at, text + at + piece, length - at - piece);
            length -= piece;
            break;
        case 3:
            if (length + piece < room) {
                memmove(text + at + piece, text + at, length - at);
                length += piece;
            }
            break;
        default: {
            size_t from = next((uint32_t)length);
            if (from + piece <= length) memmove(text + at, text + from, piece);
        }
        }
        if (length < 8) return length;
    }
    return length;
}

int main(int argc, char **argv) {
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000, accepted = 0;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (unsigned i = 0; i < SEEDS; i++)
        egpu_ptx_unload(load(seeds[i])); /* they are valid before they are damaged */
    char text[8192];
    for (unsigned long i = 0; i < rounds; i++) {
        const char *seed = seeds[next(SEEDS)];
        size_t length = strlen(seed);
        memcpy(text, seed, length);
        length = mutate(text, length, sizeof text);
        char *exact = malloc(length + 1); /* so that reads past the end are detected */
        memcpy(exact, text, length);
        egpu_ptx_module *module = NULL;
        egpu_ptx_status status =
            egpu_ptx_load(exact, length, &allocator, load_log, sizeof load_log, &module);
        CHECK((status == EGPU_PTX_OK) == (module != NULL), "status and module disagree");
        CHECK(status == EGPU_PTX_OK || load_log[0], "a refusal without a reason");
        free(exact);
        for (size_t k = 0; module && k < egpu_ptx_kernel_count(module); k++) {
            uint64_t params[64] = {0};
            params[0] = (uintptr_t)device(4096);
            egpu_ptx_launch launch = shape(1, 40, params, sizeof params);
            launch.max_instructions = 20000;
            const egpu_ptx_kernel *kernel = egpu_ptx_kernel_at(module, k);
            if (egpu_ptx_kernel_describe(kernel)->param_bytes <= sizeof params)
                egpu_ptx_run(kernel, &launch, NULL, NULL);
            accepted++;
            module_release(NULL, params[0], 4096);
        }
        egpu_ptx_unload(module);
    }
    printf("%lu of %lu still ran\n", accepted, rounds);
    return report("mutations");
}
