/* Halves alone and in pairs, and their conversions, on arbitrary bits: against double arithmetic
 * and a search of all numbers of the format for the nearest.
 */
#include "harness.h"

#include <math.h>

static uint64_t state = 11;
static uint32_t random_bits(void) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}

struct format {
    const char *name;
    int exponent, fraction;
    uint32_t greatest; /* its greatest finite number */
    bool infinity;     /* comes after it; otherwise larger numbers end there */
};
static const struct format f16 = {"f16", 5, 10, 0x7bff, true}, bf16 = {"bf16", 8, 7, 0x7f7f, true},
                           e4m3 = {"e4m3", 4, 3, 0x7e, false}, e5m2 = {"e5m2", 5, 2, 0x7b, false};

static double decode(const struct format *f, uint32_t bits) {
    int sign_at = f->exponent + f->fraction;
    uint32_t magnitude = bits & ((1u << sign_at) - 1);
    double sign = bits >> sign_at & 1 ? -1 : 1;
    if (magnitude > f->greatest)
        return (f->infinity || f == &e5m2) && magnitude == f->greatest + 1 ? sign * INFINITY : NAN;
    int e = (int)(magnitude >> f->fraction), m = (int)(magnitude & ((1u << f->fraction) - 1));
    int scale = 2 - (1 << (f->exponent - 1)) - f->fraction;
    return sign * (e ? ldexp(m + (1 << f->fraction), e - 1 + scale) : ldexp(m, scale));
}

/* Return the nearest number to v + rest, where rest is too small for v; of two, the even one. */
static uint32_t encode(const struct format *f, double v, double rest) {
    uint32_t sign = signbit(v) ? 1u << (f->exponent + f->fraction) : 0, low = 0,
             high = f->greatest + 1;
    if (isnan(v)) return f->infinity ? 0x7fff : 0x7f;
    double magnitude = fabs(v), more = sign ? -rest : rest;
    while (high - low > 1) { /* low is at most the magnitude, high above it */
        uint32_t middle = (low + high) / 2;
        double there = decode(f, middle);
        if (there < magnitude || (there == magnitude && more >= 0))
            low = middle;
        else
            high = middle;
    }
    double below = decode(f, low), above = 2 * decode(f, f->greatest) - decode(f, f->greatest - 1);
    if (high <= f->greatest) above = decode(f, high);
    double half = (below + above) / 2;
    bool up = magnitude > half || (magnitude == half && (more > 0 || (more == 0 && (low & 1))));
    uint32_t nearest = up ? high : low;
    if (nearest > f->greatest && !f->infinity) nearest = f->greatest;
    return sign | nearest;
}

static bool same(const struct format *f, uint32_t got, uint32_t expected) {
    return got == expected || (isnan(decode(f, got)) && isnan(decode(f, expected)));
}

/* ---- many threads with words a, b, c and one result ---- */

enum { N = 4096 };
static uint32_t (*words)[4];

static uint32_t interesting(void) {
    static const uint16_t halves[] = {0,      0x8000, 1,      0x8001, 0x3c00, 0xbc00,
                                      0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3f80, 0x7f80,
                                      0x7f7f, 0x0400, 0x03ff, 0x0080};
    uint32_t any = random_bits(), pick = random_bits();
    if (pick % 4 == 0) any = (any & 0xffff0000u) | halves[pick >> 8 & 15];
    if (pick % 8 < 2) any = (any & 0xffff) | (uint32_t)halves[pick >> 16 & 15] << 16;
    if (pick % 8 == 5) any = 0x38003800u + (any & 0x0fff0fffu); /* near one: sums that cancel */
    if (pick % 16 == 9) any = (any & ~0x1fffu) | 0x1000;        /* halfway between two of tf32 */
    return any;
}

static bool run_all(const char *instruction) {
    char text[2048];
    snprintf(
        text, sizeof text,
        ".version 8.6\n.target sm_90\n.address_size 64\n"
        ".entry k(.param .u64 p) { .reg .b64 %%p,%%o; .reg .b32 %%i,%%n,%%a,%%b,%%c,%%d,%%e;"
        " .reg .pred %%x,%%y;\n"
        ".reg .b16 %%ha,%%hb,%%hc,%%h,%%g;\n"
        "ld.param.u64 %%p,[p]; mov.u32 %%i,%%ctaid.x; mov.u32 %%n,%%tid.x;"
        " mad.lo.u32 %%i,%%i,256,%%n;\n"
        "mul.wide.u32 %%o,%%i,16; add.u64 %%p,%%p,%%o; ld.global.v2.u32 {%%a,%%b},[%%p];"
        " ld.global.u32 %%c,[%%p+8];\n"
        "mov.b32 {%%ha,%%g},%%a; mov.b32 {%%hb,%%g},%%b; mov.b32 {%%hc,%%g},%%c; mov.b16 %%h,0;"
        " mov.u32 %%d,0;\n"
        "%s\nst.global.u32 [%%p+12],%%d; ret; }\n",
        instruction);
    egpu_ptx_module *m = load(text);
    if (!m) {
        printf("  in: %s\n", instruction);
        return false;
    }
    words = device(N * sizeof *words);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 3; k++) words[i][k] = interesting();
    uint64_t p = (uintptr_t)words;
    egpu_ptx_status status = run_kernel(m, "k", shape(N / 256, 256, &p, 8));
    CHECK(status == EGPU_PTX_OK, "%s: %s", instruction, egpu_ptx_status_name(status));
    egpu_ptx_unload(m);
    return status == EGPU_PTX_OK;
}

/* ---- arithmetic ---- */

enum operation { ADD, SUB, MUL, FMA, MIN, MAX, MIN_NAN, MAX_NAN, ABS, NEG };
struct arithmetic {
    const char *text; /* with one %s for the type */
    enum operation what;
    bool ftz, sat, relu;
};

static double smaller(double a, double b) {
    if (a == 0 && b == 0) return signbit(a) ? a : b;
    return isnan(a) ? b : isnan(b) ? a : a < b ? a : b;
}

static double flushed(const struct format *f, const struct arithmetic *t, uint32_t bits) {
    double v = decode(f, bits), normal = ldexp(1, 2 - (1 << (f->exponent - 1)));
    return t->ftz && fabs(v) < normal ? copysign(0, v) : v;
}

static uint32_t answer(const struct format *f, const struct arithmetic *t, uint32_t a_bits,
                       uint32_t b_bits, uint32_t c_bits) {
    double a = flushed(f, t, a_bits), b = flushed(f, t, b_bits), c = flushed(f, t, c_bits), v = 0,
           e = 0;
    bool nan = isnan(a) || isnan(b);
    switch (t->what) {
    case SUB: b = -b; /* fall through */
    case ADD: v = a + b; break;
    case MUL: v = a * b; break;
    case FMA: { /* the sum, and its rounding error (exact for the larger operand) */
        double product = a * b;
        v = product + c;
        e = fabs(product) > fabs(c) ? c - (v - product) : product - (v - c);
        if (!isfinite(v)) e = 0;
        break;
    }
    case MIN: v = smaller(a, b); break;
    case MAX: v = -smaller(-a, -b); break;
    case MIN_NAN: v = nan ? NAN : smaller(a, b); break;
    case MAX_NAN: v = nan ? NAN : -smaller(-a, -b); break;
    case ABS: v = fabs(a); break;
    case NEG: v = -a; break;
    }
    if (t->sat && (isnan(v) || v <= 0)) v = e = 0;
    if (t->sat && v >= 1) v = 1, e = 0;
    if (t->relu && v <= 0) v = e = 0;
    uint32_t bits = encode(f, v, e);
    if (t->ftz && (bits & 0x7fff) < (1u << f->fraction)) bits &= 0x8000;
    return bits;
}

static void test_arithmetic(void) {
    static const struct arithmetic tests[] = {
        {"add.%s", ADD, false, false, false},         {"sub.%s", SUB, false, false, false},
        {"mul.%s", MUL, false, false, false},         {"fma.rn.%s", FMA, false, false, false},
        {"fma.rn.relu.%s", FMA, false, false, true},  {"min.%s", MIN, false, false, false},
        {"max.%s", MAX, false, false, false},         {"min.NaN.%s", MIN_NAN, false, false, false},
        {"max.NaN.%s", MAX_NAN, false, false, false}, {"abs.%s", ABS, false, false, false},
        {"neg.%s", NEG, false, false, false},         {"add.rn.ftz.sat.%s", ADD, true, true, false},
        {"mul.ftz.%s", MUL, true, false, false},      {"fma.rn.ftz.%s", FMA, true, false, false},
    };
    for (size_t i = 0; i < 4 * (sizeof tests / sizeof *tests); i++) {
        const struct arithmetic *t = &tests[i / 4];
        const struct format *f = i & 1 ? &bf16 : &f16;
        bool pair = i & 2;
        char type[16], name[64], text[160];
        snprintf(type, sizeof type, "%s%s", f->name, pair ? "x2" : "");
        snprintf(name, sizeof name, t->text, type); /* NOLINT: the formats are above */
        const char *operands = t->what >= ABS ? "" : t->what == FMA ? "2" : "1";
        if (pair)
            snprintf(text, sizeof text, "%s %%d,%%a%s;", name,
                     *operands == '2' ? ",%b,%c"
                     : *operands      ? ",%b"
                                      : "");
        else
            snprintf(text, sizeof text, "%s %%h,%%ha%s; mov.b32 %%d,{%%h,%%h};", name,
                     *operands == '2' ? ",%hb,%hc"
                     : *operands      ? ",%hb"
                                      : "");
        if (!run_all(text)) continue;
        for (int k = 0; k < N; k++) {
            uint32_t a = words[k][0], b = words[k][1], c = words[k][2], got = words[k][3];
            uint32_t low = answer(f, t, a & 0xffff, b & 0xffff, c & 0xffff);
            uint32_t high = pair ? answer(f, t, a >> 16, b >> 16, c >> 16) : low;
            CHECK(same(f, got & 0xffff, low) && same(f, got >> 16, high),
                  "%s of %08x %08x %08x: %08x, not %04x%04x", name, a, b, c, got, high, low);
        }
        device_free_all();
    }
}

/* ---- comparison ---- */

static bool holds(const char *name, double a, double b) {
    bool nan = isnan(a) || isnan(b);
    size_t n = strlen(name);
    if (strcmp(name, "num") == 0 || strcmp(name, "nan") == 0) return nan == (name[1] == 'a');
    if (nan) return n == 3;
    bool less = a < b, equal = a == b;
    switch (name[0]) {
    case 'e': return equal;
    case 'n': return !equal;
    case 'l': return less || (name[1] == 'e' && equal);
    default: return (!less && !equal) || (name[1] == 'e' && equal);
    }
}

static void test_comparison(void) {
    static const char *const names[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                        "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int kind = 0; kind < 2; kind++) {
            const struct format *f = kind ? &bf16 : &f16;
            char text[256];
            snprintf(text, sizeof text,
                     "set.%s.%sx2.%sx2 %%d,%%a,%%b; setp.%s.%sx2 %%x|%%y,%%a,%%b;"
                     " selp.b32 %%e,1,0,%%x;\n"
                     "or.b32 %%d,%%d,%%e; selp.b32 %%e,0x10000,0,%%y; or.b32 %%d,%%d,%%e;",
                     names[i], f->name, f->name, names[i], f->name);
            if (!run_all(text)) continue;
            uint32_t one = kind ? 0x3f81 : 0x3c01; /* and its low bit, for setp */
            for (int k = 0; k < N; k++) {
                uint32_t a = words[k][0], b = words[k][1];
                uint32_t low =
                    holds(names[i], decode(f, a & 0xffff), decode(f, b & 0xffff)) ? one : 0;
                uint32_t high = holds(names[i], decode(f, a >> 16), decode(f, b >> 16)) ? one : 0;
                CHECK(words[k][3] == (high << 16 | low), "%s.%s of %08x %08x: %08x", names[i],
                      f->name, a, b, words[k][3]);
            }
            device_free_all();
        }
}

/* ---- conversion ---- */

static double as_float(uint32_t bits) {
    union {
        uint32_t u;
        float f;
    } v = {.u = bits};
    return v.f;
}

static void test_narrowing(void) {
    static const struct format *const formats[] = {&f16, &bf16, &e4m3, &e5m2};
    for (int i = 0; i < 8; i++) {
        const struct format *f = formats[i / 2];
        bool relu = i & 1, quarter = f->greatest < 256;
        char text[160];
        snprintf(text, sizeof text, "cvt.rn%s%s.%sx2.f32 %s,%%a,%%b;%s",
                 quarter ? ".satfinite" : "", relu ? ".relu" : "", f->name, quarter ? "%h" : "%d",
                 quarter ? "cvt.u32.u16 %d,%h;" : "");
        if (!run_all(text)) continue;
        for (int k = 0; k < N; k++) {
            double a = as_float(words[k][0]), b = as_float(words[k][1]);
            if (relu && a <= 0) a = 0;
            if (relu && b <= 0) b = 0;
            uint32_t high = encode(f, a, 0), low = encode(f, b, 0), bits = quarter ? 8 : 16;
            uint32_t mask = quarter ? 0xff : 0xffff, got = words[k][3];
            CHECK(same(f, got >> bits, high) && same(f, got & mask, low),
                  "%s of %08x %08x: %08x, not %x %x", text, words[k][0], words[k][1], got, high,
                  low);
        }
        device_free_all();
    }
}

static void test_quarters(void) {
    for (int kind = 0; kind < 2; kind++) {
        const struct format *f = kind ? &e5m2 : &e4m3;
        char text[160];
        snprintf(text, sizeof text, "cvt.rn.f16x2.%sx2 %%d,%%ha;", f->name);
        if (run_all(text))
            for (int k = 0; k < N; k++) {
                uint32_t a = words[k][0], got = words[k][3];
                for (int i = 0; i < 2; i++) {
                    double v = decode(f, a >> 8 * i & 0xff),
                           g = decode(&f16, got >> 16 * i & 0xffff);
                    CHECK(v == g || (isnan(v) && isnan(g)), "%s of %04x: %08x", text, a & 0xffff,
                          got);
                }
            }
        device_free_all();
        snprintf(text, sizeof text, "cvt.rn.satfinite.%sx2.f16x2 %%h,%%a; cvt.u32.u16 %%d,%%h;",
                 f->name);
        if (run_all(text))
            for (int k = 0; k < N; k++)
                for (int i = 0; i < 2; i++) {
                    uint32_t a = words[k][0] >> 16 * i & 0xffff, got = words[k][3] >> 8 * i & 0xff;
                    CHECK(same(f, got, encode(f, decode(&f16, a), 0)), "%s of %04x: %02x", text, a,
                          got);
                }
        device_free_all();
    }
}

static void test_tf32(void) {
    static const char *const texts[] = {"cvt.rna.tf32.f32 %d,%a;", "cvt.rn.tf32.f32 %d,%a;",
                                        "cvt.rn.relu.tf32.f32 %d,%a;"};
    for (int kind = 0; kind < 3; kind++) {
        if (!run_all(texts[kind])) continue;
        for (int k = 0; k < N; k++) {
            uint32_t a = words[k][0];
            if (kind == 2 && a >> 31 && !isnan(as_float(a))) a = 0;
            double v = as_float(a), got = as_float(words[k][3]);
            if (isnan(v)) {
                CHECK(isnan(got), "a NaN");
                continue;
            }
            /* The two neighbours with ten bits: truncated, and one unit more. */
            double below = as_float(a & ~0x1fffu), above = as_float((a & ~0x1fffu) + 0x2000);
            if (isinf(above)) above = copysign(0x1p128, v);
            double to_below = fabs(v - below), to_above = fabs(above - v);
            bool up = to_above < to_below || (to_above == to_below && (kind == 0 || (a & 0x2000)));
            double expected = isinf(v) ? v : up ? above : below;
            if (fabs(expected) == 0x1p128) expected = copysign(INFINITY, v);
            CHECK(got == expected, "%s of %08x: %08x", texts[kind], a, words[k][3]);
        }
        device_free_all();
    }
}

/* 16-bit atomics, and functions that are more exact than a card's. */
static void test_others(void) {
    egpu_ptx_module *m = load(
        ".version 8.6\n.target sm_90\n.address_size 64\n"
        ".entry k(.param .u64 p) { .reg .b64 %p; .reg .b16 %h; .reg .b32 %r; .reg .pred %q;\n"
        "ld.param.u64 %p,[p]; mov.b16 %h,0x3c00; mov.b32 %r,0x40003c00;\n"
        "atom.global.gpu.acq_rel.add.noftz.f16 %h,[ %p + 2 ],%h;"
        " red.global.add.noftz.f16x2 [%p+4],%r;\n"
        "mov.b16 %h,0x3f80; atom.global.add.noftz.bf16 %h,[%p+10],%h; mov.b32 %r,0x40003f80;\n"
        "red.global.add.noftz.bf16x2 [%p+12],%r; mov.b32 %r,0x3c004000; ex2.approx.f16x2 %r,%r;\n"
        "st.global.u32 [%p+16],%r; mov.b16 %h,0xfc00; tanh.approx.f16 %h,%h;"
        " st.global.u16 [%p+20],%h;\n"
        "set.gt.f16.f32 %h,0f40000000,0f3F800000; st.global.u16 [%p+22],%h; ret; }\n");
    if (!m) return;
    uint16_t *memory = device(64);
    memory[0] = 0x1234;
    uint64_t p = (uintptr_t)memory;
    CHECK(run_kernel(m, "k", shape(1, 3, &p, 8)) == EGPU_PTX_OK, "others");
    static const uint16_t expected[] = {0x1234, 0x4200, 0x4200, 0x4600, 0,      0x4040,
                                        0x4040, 0x40c0, 0x4400, 0x4000, 0xbc00, 0x3c00};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        CHECK(memory[i] == expected[i], "others: %zu is %04x, not %04x", i, memory[i], expected[i]);
    egpu_ptx_unload(m);
}

int main(void) {
    test_arithmetic();
    test_comparison();
    test_narrowing();
    test_quarters();
    test_tf32();
    test_others();
    return report("halves");
}
