/* Each instruction against results computed by hand or in C. A case is one line of PTX on inputs a,
 * b, c in registers %ra %rb %rc (32 bits), %ha… (16), %da… (64), %pa… (a, b, c ≠ 0), with its
 * result in %r, %h, %d or %p.
 */
#include "harness.h"

#include <math.h>

struct sample {
    const char *text;
    char answer; /* r, h, d or p: the register with the result */
    uint64_t a, b, c, expected;
};

static uint64_t f(float v) {
    union {
        float f;
        uint32_t u;
    } x = {.f = v};
    return x.u;
}
static uint64_t g(double v) {
    union {
        double f;
        uint64_t u;
    } x = {.f = v};
    return x.u;
}
#define NANF 0x7fc00000u
#define NAN64 UINT64_C(0x7ff8000000000000)
#define INFF 0x7f800000u
#define MIN32 0x80000000u
#define MIN64 UINT64_C(0x8000000000000000)
#define ONES32 0xffffffffu
#define ONES64 UINT64_MAX

static void try(const struct sample *s) {
    static const char *const stores[] = {"st.global.u32 [%out], %r;", "st.global.u16 [%out], %h;",
                                         "st.global.u64 [%out], %d;",
                                         "selp.u32 %r, 1, 0, %p; st.global.u32 [%out], %r;"};
    char text[4096];
    snprintf(
        text, sizeof text,
        HEADER
        ".visible .entry k(.param .u64 in, .param .u64 out) {\n"
        ".reg .b32 %%ra,%%rb,%%rc,%%r,%%r2,%%r3; .reg .b16 %%ha,%%hb,%%hc,%%h,%%h2; .reg .b64 %%da,%%db,%%dc,%%d,%%d2;"
        ".reg .b64 %%in,%%out; .reg .pred %%pa,%%pb,%%pc,%%p,%%q;\n"
        "ld.param.u64 %%in,[in]; ld.param.u64 %%out,[out];\n"
        "ld.global.u64 %%da,[%%in]; ld.global.u64 %%db,[%%in+8]; ld.global.u64 %%dc,[%%in+16];\n"
        "cvt.u32.u64 %%ra,%%da; cvt.u32.u64 %%rb,%%db; cvt.u32.u64 %%rc,%%dc;\n"
        "cvt.u16.u64 %%ha,%%da; cvt.u16.u64 %%hb,%%db; cvt.u16.u64 %%hc,%%dc;\n"
        "setp.ne.u64 %%pa,%%da,0; setp.ne.u64 %%pb,%%db,0; setp.ne.u64 %%pc,%%dc,0;\n%s\n%s\nret;\n}\n",
        s->text,
        stores[s->answer == 'r'   ? 0
               : s->answer == 'h' ? 1
               : s->answer == 'd' ? 2
                                  : 3]);
    egpu_ptx_module *module = load(text);
    if (!module) {
        printf("  in: %s\n", s->text);
        return;
    }
    uint64_t *memory = device(4 * 8);
    memory[0] = s->a, memory[1] = s->b, memory[2] = s->c;
    uint64_t params[2] = {(uintptr_t)memory, (uintptr_t)(memory + 3)};
    egpu_ptx_status status = run_kernel(module, "k", shape(1, 1, params, sizeof params));
    CHECK(status == EGPU_PTX_OK, "%s: %s", s->text, egpu_ptx_status_name(status));
    CHECK(memory[3] == s->expected, "%s (%#llx, %#llx, %#llx) gave %#llx, not %#llx", s->text,
          (unsigned long long)s->a, (unsigned long long)s->b, (unsigned long long)s->c,
          (unsigned long long)memory[3], (unsigned long long)s->expected);
    egpu_ptx_unload(module);
    device_free_all();
}

int main(void) {
    const struct sample samples[] = {
        /* integer arithmetic */
        {"add.u32 %r,%ra,%rb;", 'r', ONES32, 2, 0, 1},
        {"add.s64 %d,%da,%db;", 'd', ONES64, 2, 0, 1},
        {"add.u16 %h,%ha,%hb;", 'h', 0xffff, 2, 0, 1},
        {"add.sat.s32 %r,%ra,%rb;", 'r', 0x7fffffff, 1, 0, 0x7fffffff},
        {"sub.sat.s32 %r,%ra,%rb;", 'r', MIN32, 1, 0, MIN32},
        {"sub.s32 %r,%ra,%rb;", 'r', 1, 2, 0, ONES32},
        {"add.cc.u32 %r2,%ra,%rb; addc.u32 %r,%rc,0;", 'r', ONES32, 1, 5, 6},
        {"sub.cc.u32 %r2,%ra,%rb; subc.u32 %r,%rc,0;", 'r', 0, 1, 5, 4},
        {"add.cc.u64 %d2,%da,%db; addc.u64 %d,%dc,0;", 'd', ONES64, 1, 5, 6},
        {"mad.lo.cc.u32 %r2,%ra,%rb,1; madc.hi.u32 %r,%ra,%rb,0;", 'r', ONES32, ONES32, 0,
         0xfffffffe},
        {"mul.lo.u32 %r,%ra,%rb;", 'r', 0x10001, 0x10001, 0, 0x20001},
        {"mul.hi.u32 %r,%ra,%rb;", 'r', ONES32, ONES32, 0, 0xfffffffe},
        {"mul.hi.s32 %r,%ra,%rb;", 'r', ONES32, ONES32, 0, 0},
        {"mul.hi.u64 %d,%da,%db;", 'd', ONES64, ONES64, 0, ONES64 - 1},
        {"mul.hi.s64 %d,%da,%db;", 'd', ONES64, 5, 0, ONES64},
        {"mul.wide.s32 %d,%ra,%rb;", 'd', ONES32, 3, 0, (uint64_t)-3},
        {"mul.wide.u32 %d,%ra,%rb;", 'd', ONES32, 3, 0, UINT64_C(0x2fffffffd)},
        {"mul.wide.s16 %r,%ha,%hb;", 'r', 0xffff, 3, 0, (uint32_t)-3},
        {"mul24.lo.s32 %r,%ra,%rb;", 'r', 0xffffff, 3, 0, (uint32_t)-3},
        {"mad.lo.s32 %r,%ra,%rb,%rc;", 'r', 7, 6, 5, 47},
        {"mad.wide.s32 %d,%ra,%rb,%dc;", 'd', ONES32, 3, 10, 7},
        {"mad.hi.u32 %r,%ra,%rb,%rc;", 'r', ONES32, ONES32, 3, 1},
        {"div.s32 %r,%ra,%rb;", 'r', (uint32_t)-7, 2, 0, (uint32_t)-3},
        {"div.u32 %r,%ra,%rb;", 'r', (uint32_t)-7, 2, 0, 0x7ffffffc},
        {"div.s32 %r,%ra,%rb;", 'r', MIN32, ONES32, 0, MIN32},
        {"div.s64 %d,%da,%db;", 'd', MIN64, ONES64, 0, MIN64},
        {"div.u32 %r,%ra,%rb;", 'r', 5, 0, 0, ONES32},
        {"div.s32 %r,%ra,%rb;", 'r', 5, 0, 0, ONES32},
        {"rem.s32 %r,%ra,%rb;", 'r', (uint32_t)-7, 2, 0, ONES32},
        {"rem.s32 %r,%ra,%rb;", 'r', MIN32, ONES32, 0, 0},
        {"rem.u64 %d,%da,%db;", 'd', 17, 5, 0, 2},
        {"rem.u32 %r,%ra,%rb;", 'r', 17, 0, 0, 17},
        {"abs.s32 %r,%ra;", 'r', (uint32_t)-5, 0, 0, 5},
        {"abs.s64 %d,%da;", 'd', MIN64, 0, 0, MIN64},
        {"neg.s16 %h,%ha;", 'h', 5, 0, 0, 0xfffb},
        {"min.s32 %r,%ra,%rb;", 'r', ONES32, 1, 0, ONES32},
        {"min.u32 %r,%ra,%rb;", 'r', ONES32, 1, 0, 1},
        {"max.s16 %h,%ha,%hb;", 'h', 0xffff, 1, 0, 1},
        {"max.u64 %d,%da,%db;", 'd', ONES64, 1, 0, ONES64},
        {"sad.s32 %r,%ra,%rb,%rc;", 'r', ONES32, 2, 10, 13},
        {"dp4a.s32.s32 %r,%ra,%rb,%rc;", 'r', 0x01ff0203, 0x01010101, 10, 15},
        {"dp4a.u32.u32 %r,%ra,%rb,%rc;", 'r', 0x01ff0203, 0x01010101, 10, 271},
        {"dp2a.lo.s32.s32 %r,%ra,%rb,%rc;", 'r', 0x0002ffff, 0x0304fe05, 10,
         (uint32_t)(10 - 5 - 4)},
        {"dp2a.hi.u32.u32 %r,%ra,%rb,%rc;", 'r', 0x00020003, 0x0405ffff, 10, 10 + 3 * 5 + 2 * 4},
        {"dp2a.lo.u32.s32 %r,%ra,%rb,%rc;", 'r', 0x0001ffff, 0x000000ff, 0, (uint32_t)-65535},
        {"add.u16x2 %r,%ra,%rb;", 'r', 0x0001ffff, 0x00020001, 0, 0x00030000},
        {"min.s16x2 %r,%ra,%rb;", 'r', 0xffff0005, 0x00010004, 0, 0xffff0004},
        {"min.u16x2 %r,%ra,%rb;", 'r', 0xffff0005, 0x00010006, 0, 0x00010005},
        {"max.s16x2 %r,%ra,%rb;", 'r', 0xffff0005, 0x00010004, 0, 0x00010005},
        {"max.u16x2 %r,%ra,%rb;", 'r', 0xffff0005, 0x00010004, 0, 0xffff0005},
        {"min.s16x2.relu %r,%ra,%rb;", 'r', 0xffff0005, 0x00010004, 0, 4},
        /* masks and fields */
        {"bmsk.clamp.b32 %r,%ra,%rb;", 'r', 4, 8, 0, 0xff0},
        {"bmsk.clamp.b32 %r,%ra,%rb;", 'r', 28, 8, 0, 0xf0000000},
        {"bmsk.clamp.b32 %r,%ra,%rb;", 'r', 0, 32, 0, ONES32},
        {"bmsk.clamp.b32 %r,%ra,%rb;", 'r', 4, 0, 0, 0},
        {"bmsk.clamp.b32 %r,%ra,%rb;", 'r', 32, 4, 0, 0},
        {"bmsk.wrap.b32 %r,1,2;", 'r', 0, 0, 0, 6},
        {"bmsk.wrap.b32 %r,%ra,%rb;", 'r', 33, 34, 0, 6},
        {"bmsk.wrap.b32 %r,%ra,%rb;", 'r', 0, 32, 0, 0},
        {"szext.clamp.u32 %r,%ra,%rb;", 'r', 0x1ff, 8, 0, 0xff},
        {"szext.clamp.s32 %r,%ra,%rb;", 'r', 0x1ff, 8, 0, ONES32},
        {"szext.clamp.s32 %r,%ra,%rb;", 'r', 0x17f, 8, 0, 0x7f},
        {"szext.clamp.s32 %r,%ra,%rb;", 'r', MIN32, 32, 0, MIN32},
        {"szext.wrap.s32 %r,%ra,%rb;", 'r', 0x1ff, 40, 0, ONES32},
        {"szext.wrap.u32 %r,%ra,%rb;", 'r', ONES32, 32, 0, 0},
        {"szext.wrap.s32 %r,%ra,%rb;", 'r', ONES32, 0, 0, 0},
        {"fns.b32 %r,%ra,%rb,%rc;", 'r', 0xaaaaaaaa, 3, 1, 3},
        {"fns.b32 %r,%ra,%rb,%rc;", 'r', 0xaaaaaaaa, 3, (uint32_t)-1, 3},
        {"fns.b32 %r,%ra,%rb,%rc;", 'r', 0xaaaaaaaa, 4, 2, 7},
        {"fns.b32 %r,%ra,%rb,%rc;", 'r', 0xaaaaaaaa, 4, (uint32_t)-2, 1},
        {"fns.b32 %r,%ra,%rb,%rc;", 'r', 0xaaaaaaaa, 4, (uint32_t)-3, ONES32},
        {"fns.b32 %r,%ra,%rb,%rc;", 'r', 0xaaaaaaaa, 4, 0, ONES32},
        {"fns.b32 %r,%ra,%rb,%rc;", 'r', 0xaaaaaaaa, 5, 0, 5},
        {"lop3.or.b32 %r|%p,%ra,%rb,%rc,0x80,%pa;", 'r', 6, 3, 2, 2},
        {"lop3.or.b32 %r|%p,%ra,%rb,%rc,0x80,!%pa;", 'p', 6, 3, 2, 1},
        {"lop3.and.b32 _|%p,%ra,%rb,%rc,0x80,%pa;", 'p', 6, 1, 2, 0},
        {"cvt.pack.sat.u16.s32 %r,%ra,%rb;", 'r', (uint32_t)-1, 70000, 0, 0xffff},
        {"cvt.pack.sat.s16.s32 %r,%ra,%rb;", 'r', (uint32_t)-1, 70000, 0, 0xffff7fff},
        {"cvt.pack.sat.u8.s32.b32 %r,%ra,%rb,%rc;", 'r', 300, (uint32_t)-1, 0x1234, 0x1234ff00},
        {"cvt.pack.sat.s8.s32.b32 %r,%ra,%rb,%rc;", 'r', (uint32_t)-200, 7, 0x1234, 0x12348007},
        {"cvt.pack.sat.u4.s32.b32 %r,%ra,%rb,%rc;", 'r', 20, 3, 0x123456, 0x123456f3},
        {"cvt.pack.sat.s2.s32.b32 %r,%ra,%rb,%rc;", 'r', (uint32_t)-9, 9, 0x1, 0x19},
        {"applypriority.global.L2::evict_normal [%in],128; discard.global.L2 [%in],128;"
         " pmevent 7; pmevent.mask 3; mov.u32 %r,5;",
         'r', 0, 0, 0, 5},
        /* special registers; without a cooperative launch there is no workspace */
        {"mov.b32 %r,%envreg1; mov.b32 %r2,%envreg2; or.b32 %r,%r,%r2;", 'r', 0, 0, 0, 0},
        {"mov.b32 %r,%envreg0; mov.b32 %r2,%envreg31; or.b32 %r,%r,%r2;", 'r', 0, 0, 0, 0},
        {"mov.u32 %r,%pm7; mov.u64 %d,%pm3_64; mov.u64 %d2,%current_graph_exec;", 'r', 0, 0, 0, 0},
        {"mov.u32 %r,%smid; mov.u32 %r2,%nsmid; mad.lo.u32 %r,%r,16,%r2;", 'r', 0, 0, 0, 1},
        {"mov.u32 %r,%total_smem_size; mov.u32 %r2,%aggr_smem_size;"
         " sub.u32 %r,%r2,%r;",
         'r', 0, 0, 0, 1024},
        {"mov.u32 %r,%reserved_smem_offset_begin; mov.u32 %r2,%reserved_smem_offset_end;"
         " sub.u32 %r,%r2,%r;",
         'r', 0, 0, 0, 1024},
        {"mov.u32 %r,%reserved_smem_offset_cap;", 'r', 0, 0, 0, 1024},
        {"mov.u32 %r2,%reserved_smem_offset_1; st.shared.u32 [%r2+284],%ra;"
         " ld.shared.u32 %r,[%r2+284];",
         'r', 77, 0, 0, 77},
        /* bits */
        {"and.b32 %r,%ra,%rb;", 'r', 0xff00, 0x0ff0, 0, 0x0f00},
        {"or.b64 %d,%da,%db;", 'd', 1, MIN64, 0, MIN64 | 1},
        {"xor.b16 %h,%ha,%hb;", 'h', 0xffff, 0x0f0f, 0, 0xf0f0},
        {"not.b32 %r,%ra;", 'r', 0, 0, 0, ONES32},
        {"cnot.b32 %r,%ra;", 'r', 0, 0, 0, 1},
        {"lop3.b32 %r,%ra,%rb,%rc,0x96;", 'r', 0xf0, 0xcc, 0xaa, 0x96},
        {"shl.b32 %r,%ra,%rb;", 'r', 1, 31, 0, MIN32},
        {"shl.b32 %r,%ra,%rb;", 'r', 1, 32, 0, 0},
        {"shl.b64 %d,%da,%rb;", 'd', 1, 64, 0, 0},
        {"shr.u32 %r,%ra,%rb;", 'r', MIN32, 33, 0, 0},
        {"shr.s32 %r,%ra,%rb;", 'r', MIN32, 33, 0, ONES32},
        {"shr.s64 %d,%da,%rb;", 'd', MIN64, 1000, 0, ONES64},
        {"shr.u16 %h,%ha,%rb;", 'h', 0x8000, 15, 0, 1},
        {"shf.l.wrap.b32 %r,%ra,%rb,%rc;", 'r', 0x80000000, 0x00000001, 33, 3},
        {"shf.l.clamp.b32 %r,%ra,%rb,%rc;", 'r', 0x12345678, 1, 40, 0x12345678},
        {"shf.r.wrap.b32 %r,%ra,%rb,%rc;", 'r', 0x12345678, 0x9abcdef0, 8, 0xf0123456},
        {"shf.r.clamp.b32 %r,%ra,%rb,%rc;", 'r', 0x12345678, 0x9abcdef0, 99, 0x9abcdef0},
        {"bfe.u32 %r,%ra,%rb,%rc;", 'r', 0x12345678, 8, 8, 0x56},
        {"bfe.s32 %r,%ra,%rb,%rc;", 'r', 0x0000f000, 12, 4, ONES32},
        {"bfe.u32 %r,%ra,%rb,%rc;", 'r', ONES32, 40, 8, 0},
        {"bfe.s32 %r,%ra,%rb,%rc;", 'r', MIN32, 28, 8, 0xfffffff8},
        {"bfe.s64 %d,%da,%rb,%rc;", 'd', MIN64, 60, 4, (uint64_t)-8},
        {"bfi.b32 %r,%ra,%rb,8,4;", 'r', 0xf, 0, 0, 0xf00},
        {"bfi.b32 %r,%ra,%rb,%rc,4;", 'r', 0xf, 0x1234, 32, 0x1234},
        {"popc.b32 %r,%ra;", 'r', 0xf0f0, 0, 0, 8},
        {"popc.b64 %r,%da;", 'r', ONES64, 0, 0, 64},
        {"clz.b32 %r,%ra;", 'r', 0, 0, 0, 32},
        {"clz.b64 %r,%da;", 'r', 1, 0, 0, 63},
        {"brev.b32 %r,%ra;", 'r', 1, 0, 0, MIN32},
        {"brev.b64 %d,%da;", 'd', 2, 0, 0, UINT64_C(1) << 62},
        {"bfind.u32 %r,%ra;", 'r', 0x100, 0, 0, 8},
        {"bfind.s32 %r,%ra;", 'r', ONES32, 0, 0, ONES32},
        {"bfind.shiftamt.u32 %r,%ra;", 'r', 0x100, 0, 0, 23},
        {"prmt.b32 %r,%ra,%rb,0x7604;", 'r', 0x33221100, 0x77665544, 0, 0x77660044},
        {"prmt.b32 %r,%ra,%rb,0x000b;", 'r', 0x80000000, 0, 0, 0x000000ff},
        {"prmt.b32.f4e %r,%ra,%rb,1;", 'r', 0x33221100, 0x77665544, 0, 0x44332211},
        {"prmt.b32.rc16 %r,%ra,%rb,1;", 'r', 0x33221100, 0, 0, 0x33223322},
        /* floats */
        {"add.f32 %r,%ra,%rb;", 'r', f(1.5f), f(2.25f), 0, f(3.75f)},
        {"add.rz.f32 %r,%ra,%rb;", 'r', f(1), f(0x1.fp-24f), 0, f(1)},
        {"add.rp.f32 %r,%ra,%rb;", 'r', f(1), f(0x1p-30f), 0, f(1 + 0x1p-23f)},
        {"add.rm.f32 %r,%ra,%rb;", 'r', f(-1), f(-0x1p-30f), 0, f(-1 - 0x1p-23f)},
        {"add.f32 %r,%ra,%rb;", 'r', f(1), f(0x1p-30f), 0, f(1)},
        {"sub.sat.f32 %r,%ra,%rb;", 'r', f(1), f(3), 0, 0},
        {"mul.ftz.f32 %r,%ra,%rb;", 'r', f(0x1p-130f), f(4), 0, 0},
        {"mul.f32 %r,%ra,%rb;", 'r', f(0x1p-130f), f(4), 0, f(0x1p-128f)},
        {"fma.rn.f32 %r,%ra,%rb,%rc;", 'r', f(1 + 0x1p-12f), f(1 + 0x1p-12f), f(-1 - 0x1p-11f),
         f(0x1p-24f)},
        {"fma.rn.f64 %d,%da,%db,%dc;", 'd', g(3), g(4), g(5), g(17)},
        {"mad.rn.f32 %r,%ra,%rb,%rc;", 'r', f(3), f(4), f(5), f(17)},
        {"div.rn.f32 %r,%ra,%rb;", 'r', f(1), f(3), 0, f(1.0f / 3)},
        {"div.rn.f64 %d,%da,%db;", 'd', g(1), g(0), 0, g(INFINITY)},
        {"div.approx.f32 %r,%ra,%rb;", 'r', f(1), f(4), 0, f(0.25f)},
        {"neg.f32 %r,%ra;", 'r', 0, 0, 0, MIN32},
        {"abs.f64 %d,%da;", 'd', g(-2), 0, 0, g(2)},
        {"min.f32 %r,%ra,%rb;", 'r', NANF, f(3), 0, f(3)},
        {"max.f32 %r,%ra,%rb;", 'r', f(3), NANF, 0, f(3)},
        {"min.NaN.f32 %r,%ra,%rb;", 'r', f(3), NANF, 0, NANF},
        {"min.f32 %r,%ra,%rb;", 'r', 0, MIN32, 0, MIN32},
        {"max.f64 %d,%da,%db;", 'd', NAN64, g(-1), 0, g(-1)},
        {"copysign.f32 %r,%ra,%rb;", 'r', f(-1), f(3), 0, f(-3)},
        {"sqrt.rn.f32 %r,%ra;", 'r', f(9), 0, 0, f(3)},
        {"sqrt.rn.f64 %d,%da;", 'd', g(2), 0, 0, g(1.4142135623730951)},
        {"rcp.rn.f32 %r,%ra;", 'r', f(8), 0, 0, f(0.125f)},
        {"rsqrt.approx.f32 %r,%ra;", 'r', f(16), 0, 0, f(0.25f)},
        {"ex2.approx.f32 %r,%ra;", 'r', f(10), 0, 0, f(1024)},
        {"lg2.approx.f32 %r,%ra;", 'r', f(0.125f), 0, 0, f(-3)},
        {"sin.approx.f32 %r,%ra;", 'r', 0, 0, 0, 0},
        {"cos.approx.f32 %r,%ra;", 'r', 0, 0, 0, f(1)},
        {"tanh.approx.f32 %r,%ra;", 'r', f(40), 0, 0, f(1)},
        {"testp.subnormal.f32 %p,%ra;", 'p', 1, 0, 0, 1},
        {"testp.finite.f64 %p,%da;", 'p', g(INFINITY), 0, 0, 0},
        {"testp.notanumber.f32 %p,%ra;", 'p', NANF, 0, 0, 1},
        {"add.f16 %h,%ha,%hb;", 'h', 0x3c00, 0x4000, 0, 0x4200},
        {"fma.rn.f16 %h,%ha,%hb,%hc;", 'h', 0x4000, 0x4200, 0x3c00, 0x4700},
        {"neg.f16 %h,%ha;", 'h', 0x3c00, 0, 0, 0xbc00},
        /* comparison and selection */
        {"setp.lt.s32 %p,%ra,%rb;", 'p', ONES32, 1, 0, 1},
        {"setp.lt.u32 %p,%ra,%rb;", 'p', ONES32, 1, 0, 0},
        {"setp.hi.u32 %p,%ra,%rb;", 'p', ONES32, 1, 0, 1},
        {"setp.eq.f32 %p,%ra,%rb;", 'p', NANF, NANF, 0, 0},
        {"setp.ne.f32 %p,%ra,%rb;", 'p', NANF, f(1), 0, 0},
        {"setp.neu.f32 %p,%ra,%rb;", 'p', NANF, f(1), 0, 1},
        {"setp.ltu.f64 %p,%da,%db;", 'p', NAN64, g(1), 0, 1},
        {"setp.equ.f32 %p,%ra,%rb;", 'p', f(1), f(2), 0, 0},
        {"setp.geu.f32 %p,%ra,%rb;", 'p', f(1), f(2), 0, 0},
        {"setp.num.f32 %p,%ra,%rb;", 'p', f(1), f(2), 0, 1},
        {"setp.nan.f32 %p,%ra,%rb;", 'p', f(1), NANF, 0, 1},
        {"setp.lt.ftz.f32 %p,%ra,%rb;", 'p', 0, 1, 0, 0},
        {"setp.lt.and.s32 %p,%ra,%rb,!%pc;", 'p', 1, 2, 0, 1},
        {"setp.lt.s32 %q|%p,%ra,%rb;", 'p', 1, 2, 0, 0},
        {"setp.gt.or.s32 %q|%p,%ra,%rb,%pc;", 'p', 1, 2, 0, 1},
        {"set.lt.u32.s32 %r,%ra,%rb;", 'r', 1, 2, 0, ONES32},
        {"set.lt.f32.s32 %r,%ra,%rb;", 'r', 1, 2, 0, f(1)},
        {"selp.b64 %d,%da,%db,%pc;", 'd', 1, 2, 0, 2},
        {"selp.f32 %r,0f3F800000,%rb,%pa;", 'r', 1, 2, 0, f(1)},
        {"slct.s32.s32 %r,%ra,%rb,%rc;", 'r', 1, 2, MIN32, 2},
        {"slct.b32.f32 %r,%ra,%rb,%rc;", 'r', 1, 2, f(0), 1},
        {"and.pred %p,%pa,%pb;", 'p', 1, 0, 0, 0},
        {"not.pred %p,%pa;", 'p', 0, 0, 0, 1},
        {"mov.pred %p,-1;", 'p', 0, 0, 0, 1},
        /* moves and conversions */
        {"mov.b64 %d,{%ra,%rb};", 'd', 1, 2, 0, UINT64_C(0x200000001)},
        {"mov.b64 {%r2,%r},%da;", 'r', UINT64_C(0x700000001), 0, 0, 7},
        {"mov.b32 %r,{%ha,%hb};", 'r', 0x1111, 0x2222, 0, 0x22221111},
        {"mov.b32 {%h2,%h},%ra;", 'h', 0x22221111, 0, 0, 0x2222},
        {"mov.u32 %r,WARP_SZ;", 'r', 0, 0, 0, 32},
        {"cvt.s64.s32 %d,%ra;", 'd', ONES32, 0, 0, ONES64},
        {"cvt.u64.u32 %d,%ra;", 'd', ONES32, 0, 0, ONES32},
        {"cvt.u32.u8 %r,%ra;", 'r', 0x1ff, 0, 0, 0xff},
        {"cvt.s32.s8 %r,%ra;", 'r', 0x80, 0, 0, 0xffffff80},
        {"cvt.s8.s32 %r,%ra;", 'r', 0x180, 0, 0, 0xffffff80},
        {"cvt.s32.s64 %d,%da;", 'd', ONES32, 0, 0, ONES64},
        {"cvt.sat.u8.s32 %r,%ra;", 'r', 300, 0, 0, 255},
        {"cvt.sat.u8.s32 %r,%ra;", 'r', ONES32, 0, 0, 0},
        {"cvt.sat.s8.s32 %r,%ra;", 'r', (uint32_t)-300, 0, 0, 0xffffff80},
        {"cvt.sat.s32.u32 %r,%ra;", 'r', ONES32, 0, 0, 0x7fffffff},
        {"cvt.rzi.s32.f32 %r,%ra;", 'r', f(-2.7f), 0, 0, (uint32_t)-2},
        {"cvt.rni.s32.f32 %r,%ra;", 'r', f(2.5f), 0, 0, 2},
        {"cvt.rmi.s32.f32 %r,%ra;", 'r', f(-2.1f), 0, 0, (uint32_t)-3},
        {"cvt.rpi.s32.f64 %r,%da;", 'r', g(2.1), 0, 0, 3},
        {"cvt.rzi.s32.f32 %r,%ra;", 'r', f(1e20f), 0, 0, 0x7fffffff},
        {"cvt.rzi.s32.f32 %r,%ra;", 'r', f(-1e20f), 0, 0, MIN32},
        {"cvt.rzi.u32.f32 %r,%ra;", 'r', f(-5), 0, 0, 0},
        {"cvt.rzi.s32.f32 %r,%ra;", 'r', NANF, 0, 0, 0},
        {"cvt.rzi.u64.f64 %d,%da;", 'd', g(1e19), 0, 0, UINT64_C(10000000000000000000)},
        {"cvt.rzi.u64.f32 %d,%ra;", 'd', INFF, 0, 0, ONES64},
        {"cvt.rn.f32.s32 %r,%ra;", 'r', 16777217, 0, 0, f(16777216)},
        {"cvt.rp.f32.u32 %r,%ra;", 'r', 16777217, 0, 0, f(16777218)},
        {"cvt.rn.f64.u64 %d,%da;", 'd', ONES64, 0, 0, g(18446744073709551616.0)},
        {"cvt.rn.f32.f64 %r,%da;", 'r', g(0.1), 0, 0, f(0.1f)},
        {"cvt.rz.f32.f64 %r,%da;", 'r', g(1 + 0x1.8p-24), 0, 0, f(1)},
        {"cvt.f64.f32 %d,%ra;", 'd', f(0.5f), 0, 0, g(0.5)},
        {"cvt.rni.f32.f32 %r,%ra;", 'r', f(3.5f), 0, 0, f(4)},
        {"cvt.sat.f32.f32 %r,%ra;", 'r', NANF, 0, 0, 0},
        {"cvt.rn.f16.f32 %h,%ra;", 'h', f(65504), 0, 0, 0x7bff},
        {"cvt.rn.f16.f32 %h,%ra;", 'h', f(65520), 0, 0, 0x7c00},
        {"cvt.rz.f16.f32 %h,%ra;", 'h', f(65535), 0, 0, 0x7bff},
        {"cvt.rn.f16.f32 %h,%ra;", 'h', f(0x1p-24f), 0, 0, 1},
        {"cvt.rn.f16.f32 %h,%ra;", 'h', f(0x1p-25f), 0, 0, 0},
        {"cvt.rn.f16.f32 %h,%ra;", 'h', f(1 + 0x1p-11f), 0, 0, 0x3c00},
        {"cvt.f32.f16 %r,%ha;", 'r', 0x0001, 0, 0, f(0x1p-24f)},
        {"cvt.f32.f16 %r,%ha;", 'r', 0xc000, 0, 0, f(-2)},
        {"cvt.rn.bf16.f32 %h,%ra;", 'h', f(1.00390625f), 0, 0, 0x3f80},
        {"cvt.f32.bf16 %r,%ha;", 'r', 0x4040, 0, 0, f(3)},
        {"cvt.rn.f16x2.f32 %r,%ra,%rb;", 'r', f(1), f(2), 0, 0x3c004000},
        {"cvt.rn.f16.s32 %h,%ra;", 'h', 7, 0, 0, 0x4700},
        {"cvt.rzi.s32.f16 %r,%ha;", 'r', 0x4700, 0, 0, 7},
        /* predication and control */
        {"mov.u32 %r,1; @%pa mov.u32 %r,2;", 'r', 1, 0, 0, 2},
        {"mov.u32 %r,1; @!%pa mov.u32 %r,2;", 'r', 1, 0, 0, 1},
        {"mov.u32 %r,0; L: add.u32 %r,%r,%ra; setp.lt.u32 %p,%r,100; @%p bra L;", 'r', 7, 0, 0,
         105},
        {"{ .reg .u32 %r; mov.u32 %r,5; } mov.u32 %r,6;", 'r', 0, 0, 0, 6},
        {"T: .branchtargets X0,X1; brx.idx %ra,T; X0: mov.u32 %r,10; bra E; X1: mov.u32 %r,11; E:",
         'r', 1, 0, 0, 11},
        {"mov.u32 %r,%clock; mov.u32 %r2,%clock; setp.gt.u32 %p,%r2,%r;", 'p', 0, 0, 0, 1},
        {"mov.u64 %d,%globaltimer; setp.gt.u64 %p,%d,1000;", 'p', 0, 0, 0, 1},
        {"mov.u32 %r,%lanemask_le;", 'r', 0, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) try(&samples[i]);
    return report("instructions");
}
