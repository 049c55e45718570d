/* wmma: every shape and type, by row and by column, against a product in plain loops. */
#include "harness.h"

#include <math.h>

struct kind {
    const char *name, *sum; /* elements of a and b; of c and d */
    unsigned bytes, sum_bytes;
    unsigned registers_a, registers_b, registers_sum;
    const char *shape;
    unsigned m, n, k;
};

static const struct kind kinds[] = {
    {"f16", "f32", 2, 4, 8, 8, 8, "m16n16k16", 16, 16, 16},
    {"f16", "f16", 2, 2, 8, 8, 4, "m16n16k16", 16, 16, 16},
    {"f16", "f32", 2, 4, 8, 8, 8, "m32n8k16", 32, 8, 16},
    {"f16", "f16", 2, 2, 8, 8, 4, "m8n32k16", 8, 32, 16},
    {"bf16", "f32", 2, 4, 4, 4, 8, "m16n16k16", 16, 16, 16},
    {"bf16", "f32", 2, 4, 8, 2, 8, "m32n8k16", 32, 8, 16},
    {"bf16", "f32", 2, 4, 2, 8, 8, "m8n32k16", 8, 32, 16},
    {"s8", "s32", 1, 4, 2, 2, 8, "m16n16k16", 16, 16, 16},
    {"u8", "s32", 1, 4, 4, 1, 8, "m32n8k16", 32, 8, 16},
    {"s8", "s32", 1, 4, 1, 4, 8, "m8n32k16", 8, 32, 16},
    {"tf32", "f32", 4, 4, 4, 4, 8, "m16n16k8", 16, 16, 8},
    {"f64", "f64", 8, 8, 1, 1, 2, "m8n8k4", 8, 8, 4},
};
enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 8192 };

static const char *registers(const char *type, const char *name, unsigned count, char *to) {
    char *end = to;
    end += sprintf(end, "{");
    for (unsigned i = 0; i < count; i++)
        end += sprintf(end, "%s%%%s%s%u", i ? "," : "", type, name, i);
    sprintf(end, "}");
    return to;
}

static const char *class_of(const char *element) {
    return strcmp(element, "f64") == 0 ? "d" : strcmp(element, "f32") == 0 ? "f" : "r";
}

/* Return its place in memory: by row with `stride` elements, or by column. */
static size_t place(unsigned row, unsigned column, unsigned stride, bool by_column) {
    return by_column ? (size_t)column * stride + row : (size_t)row * stride + column;
}

static void put(const char *element, void *memory, size_t at, double value) {
    if (strcmp(element, "f16") == 0) {
        _Float16 half = (_Float16)value;
        memcpy((char *)memory + 2 * at, &half, 2);
    } else if (strcmp(element, "bf16") == 0) {
        float wide = (float)value;
        memcpy((char *)memory + 2 * at, (char *)&wide + 2, 2);
    } else if (strcmp(element, "f32") == 0 || strcmp(element, "tf32") == 0)
        ((float *)memory)[at] = (float)value;
    else if (strcmp(element, "f64") == 0)
        ((double *)memory)[at] = value;
    else if (strcmp(element, "s32") == 0)
        ((int *)memory)[at] = (int)value;
    else
        ((unsigned char *)memory)[at] = (unsigned char)(int)value;
}

static double get(const char *element, const void *memory, size_t at) {
    if (strcmp(element, "f16") == 0) {
        _Float16 half;
        memcpy(&half, (const char *)memory + 2 * at, 2);
        return (double)half;
    }
    if (strcmp(element, "f32") == 0) return ((const float *)memory)[at];
    if (strcmp(element, "f64") == 0) return ((const double *)memory)[at];
    return ((const int *)memory)[at];
}

/* Small integers, which all types have: sums are exact. */
static double value(const struct kind *kind, unsigned seed) {
    int v = (int)(seed * 2654435761u >> 28) - 8;
    return kind->name[0] == 'u' ? v + 8 : v;
}

static char text[16384];

/* a from global memory by a generic address, b through shared memory, c and d in global memory; and
 * d once more without a distance of rows. */
static void write_kernel(const struct kind *k, bool a_column, bool b_column, bool d_column,
                         const char *more) {
    const char *of = class_of(k->name), *sum = class_of(k->sum);
    char a[256], b[256], c[256], d[256];
    registers(of, "a", k->registers_a, a), registers(of, "b", k->registers_b, b);
    registers(sum, "c", k->registers_sum, c), registers(sum, "d", k->registers_sum, d);
    bool halves = strcmp(k->name, "f16") == 0;
    char types[64];
    snprintf(types, sizeof types, halves ? "%s.%s" : "%s.%s.%s.%s", k->sum,
             halves ? k->sum : k->name, k->name, k->sum);
    static const char *const layout[] = {"row", "col"};
    const char *A = layout[a_column], *B = layout[b_column], *D = layout[d_column];
    snprintf(text, sizeof text,
             HEADER
             ".shared .align 32 .b8 s[4096];\n"
             ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d, .param "
             ".u64 e) {\n"
             ".reg .b64 %%p<9>; .reg .b32 %%x<9>, %%ra<8>, %%rb<8>, %%rc<8>, %%rd<8>; .reg .f32 "
             "%%fc<8>, %%fd<8>;\n"
             ".reg .f64 %%da<8>, %%db<8>, %%dc<8>, %%dd<8>; .reg .pred %%q;\n"
             "ld.param.u64 %%p1,[a]; ld.param.u64 %%p2,[b]; ld.param.u64 %%p3,[c];\n"
             "ld.param.u64 %%p4,[d]; ld.param.u64 %%p5,[e];\n"
             "mov.u32 %%x1,%%tid.x; shl.b32 %%x1,%%x1,2; mov.u32 %%x2,s; add.u32 %%x2,%%x2,%%x1;\n"
             "cvt.u64.u32 %%p6,%%x1; add.u64 %%p6,%%p6,%%p2; mov.u32 %%x3,0;\n"
             "L: ld.global.u32 %%x4,[%%p6]; st.shared.u32 [%%x2],%%x4; add.u64 %%p6,%%p6,128;\n"
             "add.u32 %%x2,%%x2,128; add.u32 %%x3,%%x3,1; setp.lt.u32 %%q,%%x3,32; @%%q bra L;\n"
             "bar.sync 0; mov.u32 %%x5,s; mov.u32 %%x6,40;\n"
             "wmma.load.a.sync.aligned.%s.%s.%s %s,[%%p1],%%x6;\n"
             "wmma.load.b.sync.aligned.%s.%s.shared.%s %s,[%%x5],40;\n"
             "wmma.load.c.sync.aligned.%s.%s.global.%s %s,[%%p3],40;\n"
             "wmma.mma.sync.aligned.%s.%s.%s.%s%s %s,%s,%s,%s;\n"
             "wmma.store.d.sync.aligned.%s.%s.global.%s [%%p4],%s,40;\n"
             "wmma.store.d.sync.aligned.%s.%s.%s [%%p5],%s;\n}\n",
             A, k->shape, k->name, a, B, k->shape, k->name, b, D, k->shape, k->sum, c, A, B,
             k->shape, types, more, d, a, b, c, D, k->shape, k->sum, d, D, k->shape, k->sum, d);
}

struct matrices {
    void *a, *b, *c, *d, *e;
};

static egpu_ptx_status run_product(struct matrices *m) {
    egpu_ptx_module *module = load(text);
    if (!module) return EGPU_PTX_SYNTAX;
    egpu_ptx_status status = run_kernel(module, "k", shape(1, 32, m, sizeof *m));
    egpu_ptx_unload(module);
    return status;
}

static void product(const struct kind *k, bool a_column, bool b_column, bool d_column) {
    struct matrices m = {device(MOST), device(MOST), device(MOST), device(MOST), device(MOST)};
    for (unsigned i = 0; i < k->m; i++)
        for (unsigned j = 0; j < k->k; j++)
            put(k->name, m.a, place(i, j, 40, a_column), value(k, 100 * i + j));
    for (unsigned i = 0; i < k->k; i++)
        for (unsigned j = 0; j < k->n; j++)
            put(k->name, m.b, place(i, j, 40, b_column), value(k, 7000 + 100 * i + j));
    for (unsigned i = 0; i < k->m; i++)
        for (unsigned j = 0; j < k->n; j++)
            put(k->sum, m.c, place(i, j, 40, d_column), i + 2.0 * j);
    write_kernel(k, a_column, b_column, d_column, "");
    egpu_ptx_status status = run_product(&m);
    CHECK(status == EGPU_PTX_OK, "%s %s: %s", k->name, k->shape, egpu_ptx_status_name(status));
    unsigned wrong = 0, wrong_close = 0;
    for (unsigned i = 0; i < k->m; i++)
        for (unsigned j = 0; j < k->n; j++) {
            double sum = i + 2.0 * j;
            for (unsigned x = 0; x < k->k; x++)
                sum += value(k, 100 * i + x) * value(k, 7000 + 100 * x + j);
            wrong += get(k->sum, m.d, place(i, j, 40, d_column)) != sum;
            wrong_close += get(k->sum, m.e, place(i, j, d_column ? k->m : k->n, d_column)) != sum;
        }
    CHECK(wrong == 0 && wrong_close == 0, "%s %s %d%d%d: %u and %u are wrong", k->name, k->shape,
          a_column, b_column, d_column, wrong, wrong_close);
    device_free_all();
}

/* Sums at the limits of their types, and elements that are changed in registers. */
static void test_saturation(void) {
    const struct kind *k = &kinds[7];
    for (int saturate = 0; saturate < 2; saturate++) {
        struct matrices m = {device(MOST), device(MOST), device(MOST), device(MOST), device(MOST)};
        memset(m.a, 127, MOST), memset(m.b, 127, MOST);
        for (unsigned i = 0; i < MOST / 4; i++) ((int *)m.c)[i] = 0x7fffffff;
        write_kernel(k, false, false, false, saturate ? ".satfinite" : "");
        CHECK(run_product(&m) == EGPU_PTX_OK, "saturation");
        int expected = saturate ? 0x7fffffff : (int)(0x7fffffffu + 16u * 127 * 127);
        CHECK(((int *)m.d)[0] == expected, "%d", ((int *)m.d)[0]);
        device_free_all();
    }
    write_kernel(&kinds[11], false, false, false, ".rn");
    struct matrices m = {device(MOST), device(MOST), device(MOST), device(MOST), device(MOST)};
    CHECK(run_product(&m) == EGPU_PTX_OK, "rounding said");
    device_free_all();
}

static void test_faults(void) {
    struct matrices m = {device(64), device(MOST), device(MOST), device(MOST), device(MOST)};
    write_kernel(&kinds[0], false, false, false, "");
    CHECK(run_product(&m) == EGPU_PTX_ILLEGAL_ADDRESS, "a matrix that is not there");
    device_free_all();
    m = (struct matrices){device(MOST), device(MOST), device(MOST), device(MOST), device(MOST)};
    m.a = (char *)m.a + 1;
    CHECK(run_product(&m) == EGPU_PTX_MISALIGNED, "between elements");
    device_free_all();
}

static void refused(const char *instruction, egpu_ptx_status expected) {
    snprintf(text, sizeof text,
             HEADER
             ".visible .entry k(.param .u64 a) {\n.reg .b32 %%r<9>; .reg .f32 %%f<9>; .reg .f64 "
             "%%d<9>; .reg .b64 %%p; ld.param.u64 %%p,[a];\n%s }\n",
             instruction);
    egpu_ptx_module *module;
    egpu_ptx_status status = egpu_ptx_load(text, 0, &allocator, load_log, sizeof load_log, &module);
    CHECK(status == expected, "%s: %s", instruction, egpu_ptx_status_name(status));
    egpu_ptx_unload(module);
}

#define FOUR "{%r0,%r1,%r2,%r3}"
#define EIGHT "{%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}"
#define FLOATS "{%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7}"
static void test_refusals(void) {
    refused("wmma.load.a.sync.aligned.row.m8n8k32.s4 {%r0},[%p],32;", EGPU_PTX_UNSUPPORTED);
    refused("wmma.load.a.sync.aligned.row.m16n16k8.f16 " EIGHT ",[%p],32;", EGPU_PTX_UNSUPPORTED);
    refused("wmma.load.a.sync.aligned.row.m16n16k16.s32 " EIGHT ",[%p],32;", EGPU_PTX_UNSUPPORTED);
    refused("wmma.load.a.sync.aligned.m16n16k16.f16 " EIGHT ",[%p],32;", EGPU_PTX_UNSUPPORTED);
    refused("wmma.load.a.sync.aligned.row.m16n16k16.f16 " FOUR ",[%p],32;", EGPU_PTX_SYNTAX);
    refused("wmma.store.a.sync.aligned.row.m16n16k16.f16 [%p]," EIGHT ",32;", EGPU_PTX_UNSUPPORTED);
    refused("wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 " EIGHT
            ",{%r0,%r1},{%r0,%r1}," EIGHT ";",
            EGPU_PTX_UNSUPPORTED);
    refused("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite " FLOATS "," EIGHT "," EIGHT
            "," FLOATS ";",
            EGPU_PTX_UNSUPPORTED);
    refused("wmma.mma.and.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 "
            "{%r0,%r1},{%r2},{%r3},{%r0,%r1};",
            EGPU_PTX_UNSUPPORTED);
    refused("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16 " FLOATS "," EIGHT "," EIGHT "," FOUR
            ";",
            EGPU_PTX_OK); /* floats from halves */
}

int main(void) {
    for (unsigned i = 0; i < KINDS; i++)
        for (unsigned how = 0; how < 8; how++)
            product(&kinds[i], how & 1, how >> 1 & 1, how >> 2 & 1);
    test_saturation();
    test_faults();
    test_refusals();
    return report("fragments");
}
