/* Measures the interpreter's speed: thread-instructions per second on one core. */
#include "harness.h"

#include <time.h>

static const char ptx[] = HEADER
    ".visible .entry loop(.param .u64 out, .param .u32 n) {\n"
    ".reg .pred %p; .reg .b32 %n,%x,%y; .reg .b64 %o; ld.param.u64 %o,[out]; ld.param.u32 %n,[n]; mov.u32 %x,%tid.x; mov.u32 %y,1;\n"
    "L: mad.lo.u32 %x,%x,1664525,1013904223; xor.b32 %y,%y,%x; add.u32 %y,%y,7; sub.u32 %n,%n,1; setp.ne.u32 %p,%n,0; @%p bra L;\n"
    "st.global.u32 [%o],%y; ret; }\n"
    ".visible .entry fma(.param .u64 out, .param .u32 n) {\n"
    ".reg .pred %p; .reg .b32 %n; .reg .f32 %x,%y; .reg .b64 %o; ld.param.u64 %o,[out]; ld.param.u32 %n,[n]; mov.f32 %x,0f3F800000; mov.f32 %y,%x;\n"
    "L: fma.rn.f32 %x,%x,%y,%y; mul.f32 %x,%x,0f3F000000; add.f32 %y,%y,%x; sub.u32 %n,%n,1; setp.ne.u32 %p,%n,0; @%p bra L;\n"
    "st.global.f32 [%o],%y; ret; }\n"
    ".visible .entry vectoradd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) {\n"
    ".reg .pred %p; .reg .f32 %x,%y; .reg .b32 %i,%n,%t; .reg .b64 %a,%b,%c,%o;\n"
    "ld.param.u64 %a,[a]; ld.param.u64 %b,[b]; ld.param.u64 %c,[c]; ld.param.u32 %n,[n]; mov.u32 %i,%ctaid.x; mov.u32 %t,%ntid.x;\n"
    "mul.lo.u32 %i,%i,%t; mov.u32 %t,%tid.x; add.u32 %i,%i,%t; setp.ge.u32 %p,%i,%n; @%p ret; mul.wide.u32 %o,%i,4;\n"
    "add.u64 %a,%a,%o; add.u64 %b,%b,%o; add.u64 %c,%c,%o; ld.global.f32 %x,[%a]; ld.global.f32 %y,[%b]; add.f32 %x,%x,%y;\n"
    "st.global.f32 [%c],%x; ret; }\n"
    ".visible .entry mma(.param .u64 out, .param .u32 n) {\n"
    ".reg .pred %p; .reg .b32 %n,%a<4>,%b<2>,%c<4>; .reg .b64 %o; ld.param.u64 %o,[out];"
    " ld.param.u32 %n,[n]; mov.u32 %a0,0x3c003c00;\n"
    "mov.u32 %a1,%a0; mov.u32 %a2,%a0; mov.u32 %a3,%a0; mov.u32 %b0,%a0; mov.u32 %b1,%a0;"
    " mov.u32 %c0,0; mov.u32 %c1,0; mov.u32 %c2,0; mov.u32 %c3,0;\n"
    "L: mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{%c0,%c1,%c2,%c3},{%a0,%a1,%a2,%a3},{%b0,%b1},{%c0,%c1,%c2,%c3};\n"
    "sub.u32 %n,%n,1; setp.ne.u32 %p,%n,0; @%p bra L; st.global.u32 [%o],%c0; ret; }\n"
    ".visible .entry halves(.param .u64 out, .param .u32 n) {\n"
    ".reg .pred %p; .reg .b32 %n,%x,%y; .reg .b64 %o; ld.param.u64 %o,[out];"
    " ld.param.u32 %n,[n]; mov.u32 %x,0x3c003c00; mov.u32 %y,%x;\n"
    "L: fma.rn.f16x2 %x,%x,%y,%y; mul.f16x2 %x,%x,0x38003800; add.f16x2 %y,%y,%x;"
    " sub.u32 %n,%n,1; setp.ne.u32 %p,%n,0; @%p bra L;\n"
    "st.global.u32 [%o],%y; ret; }\n";

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure(const egpu_ptx_module *m, const char *name, egpu_ptx_launch l) {
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double start = now();
        if (run_kernel(m, name, l) != EGPU_PTX_OK) exit(1);
        double rate = (double)last_stats.instructions / (now() - start) / 1e6;
        best = rate > best ? rate : best;
    }
    printf("%-10s %6.0f million thread-instructions/s (%llu of them)\n", name, best,
           (unsigned long long)last_stats.instructions);
}

int main(void) {
    egpu_ptx_module *m = load(ptx);
    enum { N = 1 << 20 };
    struct {
        void *out;
        uint32_t n;
    } p = {device(64), 2000};
    egpu_ptx_launch l = shape(16, 256, &p, sizeof p);
    l.max_instructions = UINT64_MAX;
    measure(m, "loop", l);
    measure(m, "fma", l);
    measure(m, "mma", l);
    measure(m, "halves", l);
    struct {
        void *a, *b, *c;
        uint32_t n;
    } v = {device(N * 4), device(N * 4), device(N * 4), N};
    measure(m, "vectoradd", shape(N / 256, 256, &v, sizeof v));
    egpu_ptx_unload(m);
    return report("speed");
}
