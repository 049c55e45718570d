/* wgmma: descriptors of every kind and elements of every type, against a product in plain loops.
 * Matrices are put into shared memory chunk by chunk, following the figures of the PTX ISA. */
#include "harness.h"

#include <math.h>

struct kind {
    const char *name, *other, *sum; /* elements of a, of b, and of d */
    unsigned bytes, depth;
    bool transposes;
};

static const struct kind kinds[] = {
    {"f16", "f16", "f32", 2, 16, true},    {"f16", "f16", "f16", 2, 16, true},
    {"bf16", "bf16", "f32", 2, 16, true},  {"tf32", "tf32", "f32", 4, 8, false},
    {"e4m3", "e5m2", "f32", 1, 32, false}, {"e5m2", "e4m3", "f16", 1, 32, false},
    {"s8", "u8", "s32", 1, 32, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds, A_BYTES = 16384, SHARED = 49152, TEXT = 65536 };

static const unsigned widths[] = {16, 128, 64, 32}; /* by the descriptor's two highest bits */

static void put(const char *type, void *to, double value) {
    float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, 4);
    _Float16 half = (_Float16)value;
    uint16_t of_half;
    memcpy(&of_half, &half, 2);
    if (strcmp(type, "f16") == 0) memcpy(to, &half, 2);
    if (strcmp(type, "bf16") == 0) memcpy(to, (char *)&wide + 2, 2);
    if (strcmp(type, "tf32") == 0) memcpy(to, &wide, 4);
    if (strcmp(type, "e5m2") == 0) *(uint8_t *)to = (uint8_t)(of_half >> 8);
    if (strcmp(type, "e4m3") == 0)
        *(uint8_t *)to =
            (uint8_t)(value == 0 ? 0
                                 : bits >> 31 << 7 | ((bits >> 23 & 255) - 127 + 7) << 3 |
                                       (bits >> 20 & 7));
    if (type[1] == '8') *(uint8_t *)to = (uint8_t)(int)value;
}

/* Numbers that all types have. */
static double value(const char *type, unsigned seed) {
    int v = (int)(seed * 2654435761u >> 16) % 9 - 4;
    return type[0] == 'u' ? v + 4 : v;
}

struct layout {
    unsigned mode;
    bool transposed; /* neighbours in memory are not along the summed direction */
    unsigned leading, stride;
};

/* Return an element's place: its group of eight lines, its line, and its chunk. */
static unsigned place(const struct layout *l, unsigned bytes, unsigned outer, unsigned inner) {
    unsigned width = widths[l->mode];
    unsigned along = (l->transposed ? outer : inner) * bytes, line = l->transposed ? inner : outer;
    unsigned wide_group = along / width, high_group = line / 8;
    unsigned chunk = along % width / 16, row = line % 8;
    static const unsigned rows_of_a_change[] = {0, 1, 2, 4}; /* by mode: rows per chunk change */
    if (l->mode) chunk ^= row / rows_of_a_change[l->mode];
    bool other = l->mode == 0 && l->transposed; /* then the two strides are exchanged */
    unsigned wide = other ? l->stride : l->leading, high = other ? l->leading : l->stride;
    return wide_group * wide + high_group * high + row * width + chunk * 16 + along % 16;
}

static uint64_t descriptor(const struct layout *l, unsigned start) {
    return start >> 4 | (uint64_t)(l->leading >> 4) << 16 | (uint64_t)(l->stride >> 4) << 32 |
           (uint64_t)l->mode << 62;
}

static char text[TEXT];

static unsigned sums_of(const char *sum, unsigned n) {
    return strcmp(sum, "f16") == 0 ? n / 4 : n / 2;
}

/* Each thread writes out its registers. */
static void write_kernel(const struct kind *k, unsigned n, bool in_registers, const char *adds,
                         const char *flags, const char *saturates) {
    unsigned sums = sums_of(k->sum, n);
    const char *type = strcmp(k->sum, "f32") == 0   ? "f32"
                       : strcmp(k->sum, "s32") == 0 ? "s32"
                                                    : "b32";
    char *at = text;
    at += sprintf(
        at,
        ".version 8.0\n.target sm_90a\n.address_size 64\n.shared .align 1024 .b8 s[%d];\n"
        ".visible .entry k(.param .u64 in, .param .u64 out, .param .u64 a, .param .u64 b, "
        ".param .u64 regs) {\n"
        ".reg .b64 %%p<9>; .reg .b32 %%x<9>, %%a<4>; .reg .%s %%d<128>; .reg .pred %%q, %%adds;\n"
        "ld.param.u64 %%p1,[in]; ld.param.u64 %%p2,[out]; ld.param.u64 %%p3,[a];\n"
        "ld.param.u64 %%p4,[b]; ld.param.u64 %%p5,[regs]; mov.u32 %%x1,%%tid.x;\n"
        "shl.b32 %%x2,%%x1,2; mov.u32 %%x3,s; add.u32 %%x3,%%x3,%%x2; cvt.u64.u32 "
        "%%p6,%%x2; add.u64 %%p6,%%p6,%%p1; mov.u32 %%x4,0;\n"
        "L: ld.global.u32 %%x5,[%%p6]; st.shared.u32 [%%x3],%%x5; add.u64 %%p6,%%p6,512; "
        "add.u32 %%x3,%%x3,512; add.u32 %%x4,%%x4,1;\n"
        "setp.lt.u32 %%q,%%x4,%d; @%%q bra L; fence.proxy.async.shared::cta; bar.sync 0;\n"
        "mul.lo.u32 %%x6,%%x1,16; cvt.u64.u32 %%p7,%%x6; add.u64 %%p5,%%p5,%%p7;\n"
        "ld.global.v4.b32 {%%a0,%%a1,%%a2,%%a3},[%%p5];\n"
        "mul.lo.u32 %%x6,%%x1,%u; cvt.u64.u32 %%p7,%%x6; add.u64 %%p2,%%p2,%%p7;\n",
        SHARED, type, SHARED / 512, 4 * sums);
    for (unsigned i = 0; i < sums; i++)
        at += sprintf(at, "ld.global.%s %%d%u,[%%p2+%u];\n", type, i, 4 * i);
    at += sprintf(at,
                  "setp.ne.u32 %%adds,%s,0; wgmma.fence.sync.aligned;\n"
                  "wgmma.mma_async.sync.aligned.m64n%uk%u.%s.%s.%s%s {",
                  adds, n, k->depth, k->sum, k->name, k->other, saturates);
    for (unsigned i = 0; i < sums; i++) at += sprintf(at, "%s%%d%u", i ? "," : "", i);
    at += sprintf(at, "},%s,%%p4,%%adds%s;\n", in_registers ? "{%a0,%a1,%a2,%a3}" : "%p3", flags);
    at += sprintf(at, "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n");
    for (unsigned i = 0; i < sums; i++)
        at += sprintf(at, "st.global.%s [%%p2+%u],%%d%u;\n", type, 4 * i, i);
    sprintf(at, "}\n");
}

struct parameters {
    uint8_t *in, *out;
    uint64_t a, b;
    uint8_t *registers;
};

static egpu_ptx_status multiply(struct parameters *p) {
    egpu_ptx_module *module = load(text);
    if (!module) return EGPU_PTX_SYNTAX;
    egpu_ptx_status status = run_kernel(module, "k", shape(1, 128, p, sizeof *p));
    egpu_ptx_unload(module);
    return status;
}

static double sum_of(const struct kind *k, const uint8_t *out, unsigned n, unsigned row,
                     unsigned column) {
    unsigned lane = row % 8 * 4 + column % 8 / 2, thread = row / 16 * 32 + lane;
    unsigned below = row / 8 % 2, i = column % 2;
    unsigned r =
        strcmp(k->sum, "f16") == 0 ? column / 8 * 2 + below : column / 8 * 4 + 2 * below + i;
    const uint8_t *at = out + 4 * (thread * sums_of(k->sum, n) + r);
    if (strcmp(k->sum, "f32") == 0) {
        float f;
        return memcpy(&f, at, 4), (double)f;
    }
    if (strcmp(k->sum, "f16") == 0) {
        _Float16 h;
        return memcpy(&h, at + 2 * i, 2), (double)h;
    }
    int whole;
    return memcpy(&whole, at, 4), (double)whole;
}

static void product(const struct kind *k, unsigned n, struct layout a, struct layout b,
                    bool in_registers, bool adds, bool negated) {
    struct parameters p = {device(SHARED), device(128 * 4 * 128), descriptor(&a, 0),
                           descriptor(&b, A_BYTES), device(128 * 16)};
    for (unsigned i = 0; i < 64; i++)
        for (unsigned x = 0; x < k->depth; x++) {
            double v = value(k->name, 100 * i + x);
            put(k->name, p.in + place(&a, k->bytes, i, x), v);
            /* of four neighbours in the rows of eight, as in mma */
            unsigned each = 4 / k->bytes, lane = i % 8 * 4 + x / each % 4;
            unsigned r = x / each / 4 * 2 + i / 8 % 2;
            put(k->name, p.registers + 16 * (i / 16 * 32 + lane) + 4 * r + x % each * k->bytes, v);
        }
    for (unsigned j = 0; j < n; j++)
        for (unsigned x = 0; x < k->depth; x++)
            put(k->other, p.in + A_BYTES + place(&b, k->bytes, j, x),
                value(k->other, 9000 + 100 * j + x));
    char flags[64] = "";
    if (strcmp(k->sum, "s32") != 0) strcat(flags, negated ? ",-1,1" : ",1,1");
    if (k->transposes && !in_registers) strcat(flags, a.transposed ? ",1" : ",0");
    if (k->transposes) strcat(flags, b.transposed ? ",1" : ",0");
    for (unsigned i = 0; i < 128 * sums_of(k->sum, n); i++) {
        uint32_t two = strcmp(k->sum, "f32") == 0   ? 0x40000000
                       : strcmp(k->sum, "s32") == 0 ? 2
                                                    : 0x40004000;
        memcpy(p.out + 4 * i, &two, 4);
    }
    write_kernel(k, n, in_registers, adds ? "1" : "0", flags, "");
    egpu_ptx_status status = multiply(&p);
    unsigned wrong = 0;
    for (unsigned i = 0; i < 64; i++)
        for (unsigned j = 0; j < n; j++) {
            double expected = 0;
            for (unsigned x = 0; x < k->depth; x++)
                expected += value(k->name, 100 * i + x) * value(k->other, 9000 + 100 * j + x);
            if (negated) expected = -expected;
            wrong += sum_of(k, p.out, n, i, j) != expected + (adds ? 2 : 0);
        }
    CHECK(status == EGPU_PTX_OK && wrong == 0,
          "%s·%s n%u a: mode %u%s%s b: mode %u%s: %s, %u wrong", k->name, k->other, n, a.mode,
          a.transposed ? "t" : "", in_registers ? " in registers" : "", b.mode,
          b.transposed ? "t" : "", egpu_ptx_status_name(status), wrong);
    device_free_all();
}

/* Groups are apart, so that each stride matters. */
static struct layout layout(unsigned mode, bool transposed, unsigned rows) {
    unsigned group = 8 * widths[mode] * (rows > 64 ? 1 : 2);
    if (mode == 0) /* chunks of eight rows, in two directions */
        return transposed ? (struct layout){mode, true, group * ((rows + 7) / 8), group}
                          : (struct layout){mode, false, group * ((rows + 7) / 8), group};
    if (!transposed) return (struct layout){mode, false, 16, group};
    unsigned atoms = (2 * rows + widths[mode] - 1) / widths[mode];
    return (struct layout){mode, true, group, group * atoms};
}

static void test_products(void) {
    static const unsigned columns[] = {8, 24, 64, 128};
    for (unsigned i = 0; i < KINDS; i++)
        for (unsigned mode = 0; mode < 4; mode++)
            for (unsigned how = 0; how < (kinds[i].transposes ? 4u : 1u); how++) {
                unsigned n = columns[(i + mode + how) % 4], other = (mode + how) % 4;
                struct layout a = layout(mode, how & 1, 64), b = layout(other, how >> 1, n);
                product(&kinds[i], n, a, b, false, mode % 2, mode == 3 && i < 6);
                product(&kinds[i], n, (struct layout){0}, b, true, !(mode % 2), false);
            }
    product(&kinds[0], 256, layout(1, true, 64), layout(1, true, 256), false, true, false);
}

static void test_saturation(void) {
    struct parameters p = {device(SHARED), device(128 * 4 * 128), 0, 0, device(128 * 16)};
    struct layout plain = layout(1, false, 64);
    p.a = descriptor(&plain, 0), p.b = descriptor(&plain, A_BYTES);
    memset(p.in, 127, SHARED);
    for (int saturates = 0; saturates < 2; saturates++) {
        for (unsigned i = 0; i < 128 * 4; i++) ((int *)p.out)[i] = 0x7fffffff;
        write_kernel(&kinds[6], 8, false, "1", "", saturates ? ".satfinite" : "");
        int expected = saturates ? 0x7fffffff : (int)(0x7fffffffu + 32 * 127 * 127);
        CHECK(multiply(&p) == EGPU_PTX_OK && ((int *)p.out)[0] == expected, "%d",
              ((int *)p.out)[0]);
    }
    device_free_all();
}

static void test_failures(void) {
    struct parameters p = {device(SHARED), device(128 * 4 * 128), 0, 0, device(128 * 16)};
    struct layout plain = layout(1, false, 64);
    write_kernel(&kinds[0], 64, false, "0", ",1,1,0,0", "");
    p.a = descriptor(&plain, 0), p.b = descriptor(&plain, SHARED);
    CHECK(multiply(&p) == EGPU_PTX_ILLEGAL_ADDRESS, "beyond shared memory");
    p.b = descriptor(&plain, 0) | UINT64_C(1) << 49;
    CHECK(multiply(&p) == EGPU_PTX_TRAP, "a pattern that begins elsewhere");
    device_free_all();
}

static void refused(const char *instruction, egpu_ptx_status expected) {
    snprintf(
        text, sizeof text,
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {\n.reg .b32 %%r<9>; "
        ".reg .f32 %%f<9>; .reg .b64 %%p; .reg .pred %%q;\n%s }\n",
        instruction);
    egpu_ptx_module *module;
    egpu_ptx_status status = egpu_ptx_load(text, 0, &allocator, load_log, sizeof load_log, &module);
    CHECK(status == expected, "%s: %s: %s", instruction, egpu_ptx_status_name(status), load_log);
    egpu_ptx_unload(module);
}

#define F4 "{%f0,%f1,%f2,%f3}"
#define R4 "{%r0,%r1,%r2,%r3}"
static void test_refusals(void) {
#define PRODUCT "wgmma.mma_async.sync.aligned."
    refused(PRODUCT "m64n8k16.f32.f16.f16 " F4 ",%p,%p,%q,1,-1,0,1;", EGPU_PTX_OK);
    refused(PRODUCT "m64n8k16.f32.f16.f16 " F4 ",%p,%p,%q,1,2,0,1;", EGPU_PTX_SYNTAX);
    refused(PRODUCT "m64n8k16.f32.f16.bf16 " F4 ",%p,%p,%q,1,1,0,1;", EGPU_PTX_UNSUPPORTED);
    refused(PRODUCT "m64n8k8.f32.f16.f16 " F4 ",%p,%p,%q,1,1,0,1;", EGPU_PTX_UNSUPPORTED);
    refused(PRODUCT "m64n12k16.f32.f16.f16 " F4 ",%p,%p,%q,1,1,0,1;", EGPU_PTX_UNSUPPORTED);
    refused(PRODUCT "m64n40k32.s32.s8.s8 " R4 ",%p,%p,%q;", EGPU_PTX_UNSUPPORTED);
    refused(PRODUCT "m64n8k256.s32.b1.b1.and.popc " R4 ",%p,%p,%q;", EGPU_PTX_UNSUPPORTED);
    refused("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 " F4 ",%p,%p,%r0,0,%q,1,1,0,1;",
            EGPU_PTX_UNSUPPORTED);
    refused("wgmma.wait_group.sync.aligned;", EGPU_PTX_SYNTAX);
}

int main(void) {
    test_products();
    test_saturation();
    test_failures();
    test_refusals();
    return report("warpgroups");
}
