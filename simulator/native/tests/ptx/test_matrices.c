/* mma, ldmatrix and stmatrix against a scalar loop over matrices, with the layout of fragments as
 * in the PTX ISA, element by element.
 */
#include "harness.h"

#include <math.h>

static uint64_t state = 7;
static uint32_t random_bits(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}

/* ---- elements ---- */

enum kind { F16, BF16, TF32, E4M3, E5M2, S8, U8, F64 };
static const char *const kind_names[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64"};
static const unsigned kind_bits[] = {16, 16, 32, 8, 8, 8, 8, 64};

/* sign, exponent and fraction, by the definition of such a format */
static double small_float(uint32_t bits, int exponent_bits, int fraction_bits, bool infinities) {
    int e = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1),
        top = (1 << exponent_bits) - 1;
    int f = (int)(bits & ((1u << fraction_bits) - 1)), bias = (1 << (exponent_bits - 1)) - 1;
    double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
    if (e == top && infinities) return f ? NAN : sign * INFINITY;
    if (e == top && f == (1 << fraction_bits) - 1) return NAN;
    if (e == 0) return sign * ldexp(f, 1 - bias - fraction_bits);
    return sign * ldexp(f + (1 << fraction_bits), e - bias - fraction_bits);
}

static double decode(enum kind kind, uint64_t bits) {
    switch (kind) {
    case F16: return small_float((uint32_t)bits, 5, 10, true);
    case BF16: return small_float((uint32_t)bits, 8, 7, true);
    case TF32: return small_float((uint32_t)bits >> 13, 8, 10, true);
    case E4M3: return small_float((uint32_t)bits, 4, 3, false);
    case E5M2: return small_float((uint32_t)bits, 5, 2, true);
    case S8: return (int8_t)bits;
    case U8: return (uint8_t)bits;
    case F64: break;
    }
    double d;
    memcpy(&d, &bits, 8);
    return d;
}

/* Small integers, whose products and sums need no rounding; or arbitrary bits. */
static uint64_t element(enum kind kind, bool wild) {
    static const uint16_t f16[] = {0, 0x3c00, 0xbc00, 0x4000, 0xc200, 0x4400},
                          bf16[] = {0, 0x3f80, 0xbf80, 0x4000, 0xc040, 0x4080},
                          e4m3[] = {0, 0x38, 0xb8, 0x40, 0xc4, 0x48},
                          e5m2[] = {0, 0x3c, 0xbc, 0x40, 0xc2, 0x44};
    uint32_t any = random_bits(), pick = any % 6;
    double d = (int)(any % 17) - 8;
    uint64_t bits;
    memcpy(&bits, &d, 8);
    switch (kind) {
    case F16: return wild ? any & 0xffff : f16[pick];
    case BF16: return wild ? any & 0xffff : bf16[pick];
    case TF32: return wild ? any : (uint32_t)bf16[pick] << 16 | (random_bits() & 0x1fff);
    case E4M3: return wild ? any & 0xff : e4m3[pick];
    case E5M2: return wild ? any & 0xff : e5m2[pick];
    case S8:
    case U8: return any & 0xff;
    case F64: break;
    }
    return bits;
}

/* ---- fragments: element i of a lane's a, b and c is in this row and column ---- */

struct place {
    unsigned row, column;
};

static struct place place_of_a(unsigned bits, unsigned rows, unsigned k, unsigned lane,
                               unsigned i) {
    unsigned group = lane >> 2, in_group = lane & 3;
    if (bits == 8 && rows == 8) return (struct place){group, in_group * 4 + i};
    if (bits == 8 && k == 16)
        return (struct place){i < 4 ? group : group + 8, in_group * 4 + (i & 3)};
    if (bits == 8)
        return (struct place){i < 4 || (i >= 8 && i < 12) ? group : group + 8,
                              in_group * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
    if (bits == 16 && k == 8)
        return (struct place){i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
    if (bits == 16)
        return (struct place){i < 2 || (i >= 4 && i < 6) ? group : group + 8,
                              in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
    if (rows == 8) return (struct place){group, in_group};
    return (struct place){i % 2 == 0 ? group : group + 8, i / 2 * 4 + in_group};
}

static struct place place_of_b(unsigned bits, unsigned lane, unsigned i) {
    unsigned group = lane >> 2, in_group = lane & 3;
    if (bits == 8) return (struct place){in_group * 4 + (i & 3) + (i >= 4 ? 16 : 0), group};
    if (bits == 16) return (struct place){in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0), group};
    return (struct place){in_group + 4 * i, group};
}

static struct place place_of_c(unsigned lane, unsigned i) {
    return (struct place){(lane >> 2) + (i < 2 ? 0 : 8), (lane & 3) * 2 + (i & 1)};
}

/* ---- one instruction ---- */

struct shape {
    unsigned rows, k;
    enum kind a, b;
    const char *sum; /* f32, f16, s32 or f64 */
    bool saturate;
};

enum { LANE_BYTES = 128, REGISTERS = 8 };

static void put(uint8_t *lane, unsigned bits, unsigned i, uint64_t value) {
    memcpy(lane + i * bits / 8, &value, bits / 8);
}
static uint64_t get(const uint8_t *lane, unsigned bits, unsigned i) {
    uint64_t value = 0;
    memcpy(&value, lane + i * bits / 8, bits / 8);
    return value;
}

static size_t list(char *to, size_t room, char letter, unsigned count) {
    size_t n = (size_t)snprintf(to, room, "{");
    for (unsigned i = 0; i < count; i++)
        n += (size_t)snprintf(to + n, room - n, "%s%%%c%u", i ? ", " : " ", letter, i);
    return n + (size_t)snprintf(to + n, room - n, "}");
}

static size_t loads(char *to, size_t room, char letter, unsigned at, unsigned count, bool wide) {
    size_t n = 0;
    for (unsigned i = 0; i < count; i++)
        n += (size_t)snprintf(to + n, room - n, "ld.global.b%d %%%c%u,[%%p+%u];\n", wide ? 64 : 32,
                              letter, i, at + i * (wide ? 8 : 4));
    return n;
}

static egpu_ptx_module *compile(const struct shape *s, unsigned na, unsigned nb, unsigned nc) {
    char text[4096];
    bool wide = s->a == F64;
    const char *type = wide ? "b64" : "b32";
    size_t n =
        (size_t)snprintf(text, sizeof text,
                         ".version 8.7\n.target sm_90\n.address_size 64\n"
                         ".entry k(.param .u64 p) { .reg .b64 %%p,%%o; .reg .b32 %%t;\n"
                         ".reg .%s %%a<8>; .reg .%s %%b<8>; .reg .%s %%c<8>; .reg .%s %%d<8>;\n"
                         "ld.param.u64 %%p,[p]; mov.u32 %%t,%%tid.x; mul.wide.u32 %%o,%%t,512;"
                         " add.u64 %%p,%%p,%%o;\n",
                         type, type, type, type);
    n += loads(text + n, sizeof text - n, 'a', 0, na, wide);
    n += loads(text + n, sizeof text - n, 'b', LANE_BYTES, nb, wide);
    n += loads(text + n, sizeof text - n, 'c', 2 * LANE_BYTES, nc, wide);
    n += (size_t)snprintf(
        text + n, sizeof text - n, "mma.sync.aligned.m%un8k%u.row.col%s.%s.%s.%s.%s ", s->rows,
        s->k, s->saturate ? ".satfinite" : "", s->sum, kind_names[s->a], kind_names[s->b], s->sum);
    const char letters[] = "dabc";
    const unsigned counts[] = {nc, na, nb, nc};
    for (int i = 0; i < 4; i++) {
        n += list(text + n, sizeof text - n, letters[i], counts[i]);
        n += (size_t)snprintf(text + n, sizeof text - n, i < 3 ? ", " : ";\n");
    }
    for (unsigned i = 0; i < nc; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "st.global.%s [%%p+%u],%%d%u;\n", type,
                              3 * LANE_BYTES + i * (wide ? 8 : 4), i);
    snprintf(text + n, sizeof text - n, "ret; }\n");
    return load(text);
}

static double sum_of(const char *sum, uint64_t bits) {
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits};
    return sum[1] == '1'   ? small_float((uint32_t)bits, 5, 10, true)
           : sum[1] == '6' ? decode(F64, bits)
           : sum[0] == 's' ? (double)(int32_t)bits
                           : (double)v.f;
}

/* Check the result for `exact`, a sum whose terms' magnitudes add up to `size`. */
static bool right(const struct shape *s, double got, long double exact, long double size) {
    if (s->sum[0] == 's') {
        if (s->saturate)
            exact = exact > INT32_MAX ? INT32_MAX : exact < INT32_MIN ? INT32_MIN : exact;
        return (int32_t)got == (int32_t)(uint32_t)(int64_t)exact;
    }
    if (isnan(exact)) return isnan(got);
    bool half = s->sum[1] == '1';
    long double top = half ? 65520.0L : s->sum[1] == '3' ? 0x1.ffffffp127L : 0x1p1023L;
    if (isinf(got)) return fabsl(exact) >= top * (1 - 0x1p-9L) && (got > 0) == (exact > 0);
    long double unit = half ? 0x1p-11L : s->sum[1] == '3' ? 0x1p-24L : 0x1p-52L;
    long double tiny = half ? 0x1p-25L : s->sum[1] == '3' ? 0x1p-150L : 0;
    return fabsl(got - exact) <= unit * fabsl(exact) + tiny + 0x1p-50L * size;
}

static void try_mma(const struct shape *s, bool wild) {
    unsigned bits = kind_bits[s->a], each = bits == 64 ? 1 : 32 / bits;
    unsigned ea = s->rows * s->k / 32, eb = 8 * s->k / 32, ec = s->rows * 8 / 32;
    unsigned sum_bits = s->sum[1] == '1' ? 16 : s->a == F64 ? 64 : 32;
    egpu_ptx_module *m = compile(s, ea / each, eb / each, sum_bits == 16 ? ec / 2 : ec);
    if (!m) return;
    uint8_t (*memory)[4][LANE_BYTES] = device(32 * sizeof *memory);
    double a[16][32], b[32][8], c[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
        for (unsigned i = 0; i < ea; i++) {
            uint64_t v = element(s->a, wild);
            struct place at = place_of_a(bits, s->rows, s->k, lane, i);
            put(memory[lane][0], bits, i, v);
            a[at.row][at.column] = decode(s->a, v);
        }
        for (unsigned i = 0; i < eb; i++) {
            uint64_t v = element(s->b, wild);
            struct place at = place_of_b(bits, lane, i);
            put(memory[lane][1], bits, i, v);
            b[at.row][at.column] = decode(s->b, v);
        }
        for (unsigned i = 0; i < ec; i++) {
            struct place at = place_of_c(lane, i);
            uint64_t v = s->a == F64      ? element(F64, false)
                         : sum_bits == 16 ? element(F16, wild)
                         : s->saturate    ? (random_bits() & 0xfff) + 0x7ffff800u /* both ends */
                         : wild || s->sum[0] == 's' ? random_bits()
                                                    : element(BF16, false) << 16;
            put(memory[lane][2], sum_bits, i, v);
            c[at.row][at.column] = sum_of(s->sum, v);
        }
    }
    uint64_t p = (uintptr_t)memory;
    egpu_ptx_status status = run_kernel(m, "k", shape(1, 32, &p, 8));
    CHECK(status == EGPU_PTX_OK, "mma: %s", egpu_ptx_status_name(status));
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < ec; i++) {
            struct place at = place_of_c(lane, i);
            long double exact = c[at.row][at.column], size = fabsl(exact);
            for (unsigned k = 0; k < s->k; k++) {
                long double product = (long double)a[at.row][k] * b[k][at.column];
                exact += product;
                size += fabsl(product);
            }
            double got = sum_of(s->sum, get(memory[lane][3], sum_bits, i));
            CHECK(wild || s->sum[0] == 's' || sum_bits == 16 ? right(s, got, exact, size)
                                                             : got == exact,
                  "m%uk%u %s·%s+%s lane %u element %u: %.17g, not %.20Lg", s->rows, s->k,
                  kind_names[s->a], kind_names[s->b], s->sum, lane, i, got, exact);
        }
    egpu_ptx_unload(m);
    device_free_all();
}

static void test_mma(void) {
    static const struct shape shapes[] = {
        {16, 8, F16, F16, "f32", false},    {16, 16, F16, F16, "f32", false},
        {16, 8, F16, F16, "f16", false},    {16, 16, F16, F16, "f16", false},
        {16, 8, BF16, BF16, "f32", false},  {16, 16, BF16, BF16, "f32", false},
        {16, 4, TF32, TF32, "f32", false},  {16, 8, TF32, TF32, "f32", false},
        {16, 32, E4M3, E4M3, "f32", false}, {16, 32, E5M2, E4M3, "f32", false},
        {16, 16, E4M3, E5M2, "f16", false}, {8, 16, S8, S8, "s32", false},
        {16, 16, S8, U8, "s32", true},      {16, 32, U8, S8, "s32", false},
        {16, 32, S8, S8, "s32", true},      {8, 4, F64, F64, "f64", false},
        {16, 4, F64, F64, "f64", false},    {16, 8, F64, F64, "f64", false},
        {16, 16, F64, F64, "f64", false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        try_mma(&shapes[i], false);
        for (int round = 0; round < 4; round++) try_mma(&shapes[i], true);
    }
}

/* ---- to and from shared memory ---- */

static const char moves[] = HEADER
    ".shared .align 16 .b8 tile[1024];\n"
    /* Matrices of shared memory, row r of matrix m at 16·(8m + r), as loaded by ldmatrix. */
    ".entry load(.param .u64 in, .param .u64 out, .param .u32 at) {\n"
    ".reg .b64 %in,%out,%o; .reg .b32 %t,%w,%x,%at,%r<20>;\n"
    "ld.param.u64 %in,[in]; ld.param.u64 %out,[out]; ld.param.u32 %at,[at]; mov.u32 %t,%tid.x;\n"
    "mul.wide.u32 %o,%t,16; add.u64 %in,%in,%o; ld.global.v4.u32 {%r0,%r1,%r2,%r3},[%in];\n"
    "mov.u32 %w,tile; shl.b32 %x,%t,4; add.u32 %w,%w,%x; st.shared.v4.u32 [%w],{%r0,%r1,%r2,%r3};\n"
    "bar.sync 0; add.u32 %w,%w,%at;\n"
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3},[ %w + 0 ];\n"
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r4,%r5,%r6,%r7},[%w];\n"
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r8,%r9},[%w];\n"
    "cvt.u64.u32 %o,%w; cvta.shared.u64 %o,%o;\n"
    "ldmatrix.sync.aligned.m8n8.x1.b16 {%r10},[%o];\n"
    "mul.wide.u32 %o,%t,44; add.u64 %out,%out,%o;\n"
    "st.global.u32 [%out],%r0; st.global.u32 [%out+4],%r1; st.global.u32 [%out+8],%r2;"
    " st.global.u32 [%out+12],%r3;\n"
    "st.global.u32 [%out+16],%r4; st.global.u32 [%out+20],%r5; st.global.u32 [%out+24],%r6;"
    " st.global.u32 [%out+28],%r7;\n"
    "st.global.u32 [%out+32],%r8; st.global.u32 [%out+36],%r9; st.global.u32 [%out+40],%r10;"
    " ret; }\n"
    /* and back: stmatrix of what ldmatrix loaded, plain and transposed */
    ".entry store(.param .u64 in, .param .u64 out) {\n"
    ".reg .b64 %in,%out,%o; .reg .b32 %t,%w,%x,%r<8>;\n"
    "ld.param.u64 %in,[in]; ld.param.u64 %out,[out]; mov.u32 %t,%tid.x;\n"
    "mul.wide.u32 %o,%t,16; add.u64 %in,%in,%o; add.u64 %out,%out,%o;\n"
    "ld.global.v4.u32 {%r0,%r1,%r2,%r3},[%in]; mov.u32 %w,tile; shl.b32 %x,%t,4;"
    " add.u32 %w,%w,%x;\n"
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%w],{%r0,%r1,%r2,%r3};\n"
    "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%w+512],{%r0,%r1};\n"
    "bar.sync 0; ld.shared.v4.u32 {%r0,%r1,%r2,%r3},[%w];"
    " ld.shared.v4.u32 {%r4,%r5,%r6,%r7},[%w+512];\n"
    "st.global.v4.u32 [%out],{%r0,%r1,%r2,%r3}; st.global.v4.u32 [%out+512],{%r4,%r5,%r6,%r7};"
    " ret; }\n"
    ".entry part() { .reg .b32 %r<4>; mov.u32 %r1,tile;\n"
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2},[%r1]; ret; }\n";

static void test_moves(void) {
    egpu_ptx_module *m = load(moves);
    if (!m) return;
    uint16_t (*in)[8][8] = device(4 * sizeof *in); /* matrix, row, column */
    for (int i = 0; i < 256; i++) in[i / 64][i / 8 % 8][i % 8] = (uint16_t)random_bits();
    uint32_t (*out)[11] = device(32 * sizeof *out);
    struct {
        uint64_t in, out;
        uint32_t at;
    } p = {(uintptr_t)in, (uintptr_t)out, 0};
    CHECK(run_kernel(m, "load", shape(1, 32, &p, sizeof p)) == EGPU_PTX_OK, "ldmatrix: line %u",
          last_fault.line);
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned r = 0; r < 11; r++) {
            unsigned matrix = r < 8    ? r % 4
                              : r < 10 ? r - 8
                                       : 0,
                     row = lane / 4, column = lane % 4 * 2;
            bool turned = r >= 4 && r < 10;
            uint32_t low = turned ? in[matrix][column][row] : in[matrix][row][column];
            uint32_t high = turned ? in[matrix][column + 1][row] : in[matrix][row][column + 1];
            CHECK(out[lane][r] == (high << 16 | low), "ldmatrix lane %u register %u: %08x", lane, r,
                  out[lane][r]);
        }
    p.at = 8;
    CHECK(run_kernel(m, "load", shape(1, 32, &p, sizeof p)) == EGPU_PTX_MISALIGNED &&
              last_fault.line == 11 && last_fault.thread[0] == 0 && !last_fault.write,
          "a misaligned row: line %u", last_fault.line);
    p.at = 1024 - 16 * 31;
    CHECK(run_kernel(m, "load", shape(1, 32, &p, sizeof p)) == EGPU_PTX_ILLEGAL_ADDRESS &&
              last_fault.thread[0] == 31,
          "a row outside: thread %u", last_fault.thread[0]);
    CHECK(run_kernel(m, "part", shape(1, 31, NULL, 0)) == EGPU_PTX_TRAP && last_fault.line == 30,
          "31 threads: line %u", last_fault.line);
    CHECK(run_kernel(m, "part", shape(1, 64, NULL, 0)) == EGPU_PTX_OK, "two warps");

    uint32_t (*words)[4] = device(1024);
    p.out = (uintptr_t)words;
    CHECK(run_kernel(m, "store", shape(1, 32, &p, 16)) == EGPU_PTX_OK, "stmatrix");
    const uint16_t (*straight)[8][8] = (void *)words, (*turned)[8][8] = (void *)(words + 32);
    const uint32_t (*lanes)[4] = (void *)in;
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned r = 0; r < 4; r++)
            for (unsigned i = 0; i < 2; i++) {
                uint16_t v = (uint16_t)(lanes[lane][r] >> 16 * i);
                unsigned row = lane / 4, column = lane % 4 * 2 + i;
                CHECK(straight[r][row][column] == v && (r > 1 || turned[r][column][row] == v),
                      "stmatrix lane %u register %u", lane, r);
            }
    egpu_ptx_unload(m);
    device_free_all();
}

int main(void) {
    test_mma();
    test_moves();
    return report("matrices");
}
