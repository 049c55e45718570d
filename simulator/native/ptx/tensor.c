/* Warp operations on matrices in registers: mma, ldmatrix, stmatrix, wmma, wgmma. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

enum { FACTORS = 8, NO_ELEMENT = 15 }; /* types of factors; an unknown name */

static unsigned element_named(const char *name) {
    static const char *const names[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64"};
    unsigned i = 0;
    while (i < FACTORS && strcmp(names[i], name) != 0) i++;
    return i < FACTORS ? i : NO_ELEMENT;
}

static int sum_named(const char *name) {
    static const char *const names[] = {"f32", "f16", "s32", "f64"};
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* Read the last four words of the mnemonic: the types of d, a, b, c. */
static void last_words(struct parser *p, char words[4][8]) {
    const char *end = p->mnemonic + strlen(p->mnemonic);
    for (int i = 3; i >= 0; i--) {
        const char *start = end;
        while (start > p->mnemonic && start[-1] != '.') start--;
        if (start == p->mnemonic || end - start >= 8) unknown(p);
        snprintf(words[i], 8, "%.*s", (int)(end - start), start);
        mod(p, words[i]);
        end = start - 1;
    }
    p->types_used = p->type_count;
}

struct product {
    unsigned a, b, rows, k;
    int sum;
};

static bool exists(const struct product *m) {
    bool tall = m->rows == 16;
    switch ((enum element)m->a) {
    case ELEMENT_F16: return tall && m->b == m->a && m->sum <= SUM_F16 && (m->k == 8 || m->k == 16);
    case ELEMENT_BF16:
        return tall && m->b == m->a && m->sum == SUM_F32 && (m->k == 8 || m->k == 16);
    case ELEMENT_TF32: return tall && m->b == m->a && m->sum == SUM_F32 && (m->k == 4 || m->k == 8);
    case ELEMENT_E4M3:
    case ELEMENT_E5M2:
        return tall && (m->b == ELEMENT_E4M3 || m->b == ELEMENT_E5M2) && m->sum <= SUM_F16 &&
               (m->k == 16 || m->k == 32);
    case ELEMENT_S8:
    case ELEMENT_U8:
        return (m->b == ELEMENT_S8 || m->b == ELEMENT_U8) && m->sum == SUM_S32 &&
               (m->k == 16 || (tall && m->k == 32));
    case ELEMENT_F64:
        return m->b == m->a && m->sum == SUM_F64 &&
               (m->k == 4 || (tall && (m->k == 8 || m->k == 16)));
    case ELEMENT_F32:
    case ELEMENT_S32: break;
    }
    return false;
}

static void registers(struct parser *p, enum type t, bool write, uint16_t *slots, unsigned count) {
    bool braces = accept(p, '{');
    if (!braces && count > 1) syntax(p, "expected a vector, found %s", describe(p));
    for (unsigned i = 0; i < count; i++) {
        if (i) comma(p);
        slots[i] = write ? dst(p, t) : src(p, t);
    }
    if (braces) expect(p, '}');
}

void compile_mma(struct parser *p) {
    static const char *const shapes[] = {"m8n8k4",   "m8n8k16",  "m16n8k4", "m16n8k8",
                                         "m16n8k16", "m16n8k32", NULL};
    static const unsigned rows[] = {8, 8, 16, 16, 16, 16}, depths[] = {4, 16, 4, 8, 16, 32};
    char words[4][8];
    if (!mod(p, "sync") || !mod(p, "aligned") || !mod(p, "row") || !mod(p, "col")) unknown(p);
    int shape = mod_of(p, shapes);
    bool saturate = mod(p, "satfinite");
    last_words(p, words);
    if (shape < 0 || strcmp(words[0], words[3]) != 0) unknown(p);
    struct product m = {element_named(words[1]), element_named(words[2]), rows[shape],
                        depths[shape], sum_named(words[0])};
    if (m.a == NO_ELEMENT || m.b == NO_ELEMENT || m.sum < 0 || !exists(&m)) unknown(p);
    if (saturate && m.sum != SUM_S32) unknown(p);
    mod(p, "rn");

    static const enum type sums[] = {TYPE_F32, TYPE_B32, TYPE_S32, TYPE_F64};
    enum type of_sum = sums[m.sum], of_element = m.a == ELEMENT_F64 ? TYPE_F64 : TYPE_B32;
    unsigned each = 32 * elements_of_register((enum element)m.a);
    unsigned in_sum = m.rows * 8 / 32 / (m.sum == SUM_F16 ? 2 : 1);
    uint16_t d[4] = {0}, a[8] = {0}, b[4] = {0}, c[4] = {0};
    registers(p, of_sum, true, d, in_sum);
    comma(p);
    registers(p, of_element, false, a, m.rows * m.k / each);
    comma(p);
    registers(p, of_element, false, b, 8 * m.k / each);
    comma(p);
    registers(p, of_sum, false, c, in_sum);
    unsigned aux = MMA_AUX(m.a, m.b, m.sum, m.rows == 16, saturate, __builtin_ctz(m.k));
    emit(p, OP_mma, aux, d[0], d[1], d[2], d[3], 0);
    emit(p, OP_ext, 0, 0, constant(p, UINT32_MAX), 0, 0, 0);
    emit(p, OP_ext, 0, a[0], a[1], a[2], a[3], 0);
    emit(p, OP_ext, 0, a[4], a[5], a[6], a[7], 0);
    emit(p, OP_ext, 0, b[0], b[1], b[2], b[3], 0);
    emit(p, OP_ext, 0, c[0], c[1], c[2], c[3], 0);
    finish(p);
}

void compile_ldmatrix(struct parser *p) {
    static const char *const counts[] = {"x1", "x2", "x4", NULL};
    bool load = p->base[0] == 'l', transposed = mod(p, "trans"), shared = shared_space(p);
    if (!mod(p, "sync") || !mod(p, "aligned") || !mod(p, "m8n8")) unknown(p);
    int which = mod_of(p, counts);
    if (which < 0 || next_type(p) != TYPE_B16) unknown(p);
    unsigned count = 1u << which;
    uint16_t r[4] = {0}, a = 0;
    int32_t offset;
    if (load) {
        registers(p, TYPE_B32, true, r, count);
        comma(p);
    }
    a = shared_address(p, shared, &offset);
    if (!load) {
        comma(p);
        registers(p, TYPE_B32, false, r, count);
    }
    emit(p, load ? OP_ldmatrix : OP_stmatrix, count | (transposed ? MATRIX_TRANSPOSED : 0u), 0, a,
         0, 0, offset);
    emit(p, OP_ext, 0, 0, constant(p, UINT32_MAX), 0, 0, 0);
    emit(p, OP_ext, 0, r[0], r[1], r[2], r[3], 0);
    finish(p);
}

/* ---- fragments ---- */

static int fragment_element(const char *name) {
    return strcmp(name, "f32") == 0   ? ELEMENT_F32
           : strcmp(name, "s32") == 0 ? ELEMENT_S32
                                      : (int)element_named(name);
}

/* Return whether a shape has such parts with such elements. */
static bool fragment_exists(int shape, enum part part, int type) {
    bool sums = type == ELEMENT_F32 || type == ELEMENT_S32;
    if (shape < 0 || type == NO_ELEMENT || (sums && part != PART_SUM)) return false;
    if (strcmp(wmma_shapes[shape].name, "m8n8k4") == 0) return type == ELEMENT_F64;
    if (strcmp(wmma_shapes[shape].name, "m16n16k8") == 0)
        return type == (part == PART_SUM ? ELEMENT_F32 : ELEMENT_TF32);
    if (part == PART_SUM) return sums || type == ELEMENT_F16;
    return type == ELEMENT_F16 || type == ELEMENT_BF16 || type == ELEMENT_S8 || type == ELEMENT_U8;
}

static void fragment(struct parser *p, int shape, enum part part, int type, bool write,
                     uint16_t slots[8]) {
    enum type t = type == ELEMENT_F64   ? TYPE_F64
                  : type == ELEMENT_F32 ? TYPE_F32
                  : type == ELEMENT_S32 ? TYPE_S32
                                        : TYPE_B32;
    memset(slots, 0, 8 * sizeof *slots);
    registers(p, t, write, slots,
              fragment_registers(&wmma_shapes[shape], part, (enum element)type));
}

static void emit_fragment(struct parser *p, const uint16_t r[8]) {
    emit(p, OP_ext, 0, r[0], r[1], r[2], r[3], 0);
    emit(p, OP_ext, 0, r[4], r[5], r[6], r[7], 0);
}

static int wmma_shape(struct parser *p) {
    for (int i = 0; i < WMMA_SHAPES; i++)
        if (mod(p, wmma_shapes[i].name)) return i;
    return -1;
}

/* Read the `count` elements at the end of the mnemonic; a rounding mode may follow. */
static void fragment_elements(struct parser *p, int *types, unsigned count) {
    const char *end = p->mnemonic + strlen(p->mnemonic);
    while (count > 0) {
        const char *start = end;
        char word[12];
        while (start > p->mnemonic && start[-1] != '.') start--;
        if (start == p->mnemonic || end - start >= (int)sizeof word) unknown(p);
        snprintf(word, sizeof word, "%.*s", (int)(end - start), start);
        end = start - 1;
        if (strcmp(word, "satfinite") == 0 || strcmp(word, "rn") == 0) continue;
        mod(p, word);
        types[--count] = fragment_element(word);
    }
    p->types_used = p->type_count;
}

static bool by_column(struct parser *p) {
    bool column = mod(p, "col");
    if (!column && !mod(p, "row")) unknown(p);
    return column;
}

static void compile_fragment_move(struct parser *p, bool load) {
    static const char *const parts[] = {"a", "b", "c", NULL};
    int part = load ? mod_of(p, parts) : mod(p, "d") ? PART_SUM : -1, type;
    if (part < 0 || !mod(p, "sync") || !mod(p, "aligned")) unknown(p);
    bool column = by_column(p);
    int shape = wmma_shape(p);
    bool shared = mod(p, "shared") || mod(p, "shared::cta"), global = !shared && mod(p, "global");
    fragment_elements(p, &type, 1);
    if (!fragment_exists(shape, (enum part)part, type)) unknown(p);
    uint16_t r[8];
    struct address at;
    int32_t offset;
    if (load) {
        fragment(p, shape, (enum part)part, type, true, r);
        comma(p);
    }
    if (shared) {
        at.slot = shared_address(p, true, &offset);
        at.imm = offset;
    } else {
        at = address(p);
        if (at.symbol &&
            (at.symbol->kind != SYM_VARIABLE || at.symbol->variable->kind != VAR_GLOBAL))
            syntax(p, "'%s' is not in global memory", at.symbol->name);
    }
    if (!load) {
        comma(p);
        fragment(p, shape, (enum part)part, type, false, r);
    }
    const struct wmma_shape *s = &wmma_shapes[shape];
    uint64_t high = part == PART_B ? s->k : s->m, wide = part == PART_A ? s->k : s->n;
    uint16_t stride = accept(p, ',') ? src(p, TYPE_B32) : constant(p, column ? high : wide);
    enum space space = shared ? SPACE_SHARED : global ? SPACE_GLOBAL : SPACE_GENERIC;
    emit(p, load ? OP_wmma_load : OP_wmma_store, FRAGMENT_AUX(shape, part, type, column, space), 0,
         at.slot, stride, 0, at.imm);
    emit(p, OP_ext, 0, 0, constant(p, UINT32_MAX), 0, 0, 0);
    emit_fragment(p, r);
    finish(p);
}

/* Factors have types of sums of their own; for halves both sums may be halves or floats. */
static bool sums_exist(int type, int d, int c) {
    if (type == ELEMENT_F16)
        return (d == ELEMENT_F16 || d == ELEMENT_F32) && (c == ELEMENT_F16 || c == ELEMENT_F32);
    return c == d && d == (type == ELEMENT_F64                        ? ELEMENT_F64
                           : type == ELEMENT_S8 || type == ELEMENT_U8 ? ELEMENT_S32
                                                                      : ELEMENT_F32);
}

void compile_wmma(struct parser *p) {
    bool load = mod(p, "load");
    if (load || mod(p, "store")) {
        compile_fragment_move(p, load);
        return;
    }
    if (!mod(p, "mma") || !mod(p, "sync") || !mod(p, "aligned")) unknown(p);
    by_column(p), by_column(p); /* the order of a and b when loaded: fragments are the same */
    int shape = wmma_shape(p), types[4] = {0};
    bool saturate = mod(p, "satfinite"), rounded = mod(p, "rn");
    /* For halves it names only d and c. */
    bool halves = p->type_count == 2 && !strstr(p->mnemonic, ".tf32");
    if (halves) {
        fragment_elements(p, types, 2);
        types[3] = types[1];
        types[1] = types[2] = ELEMENT_F16;
    } else {
        fragment_elements(p, types, 4);
    }
    bool there = fragment_exists(shape, PART_A, types[1]) && types[2] == types[1] &&
                 sums_exist(types[1], types[0], types[3]);
    if (!there || halves != (types[1] == ELEMENT_F16) || (saturate && types[0] != ELEMENT_S32) ||
        (rounded && types[0] != ELEMENT_F64))
        unknown(p);
    uint16_t d[8], a[8], b[8], c[8];
    fragment(p, shape, PART_SUM, types[0], true, d);
    comma(p);
    fragment(p, shape, PART_A, types[1], false, a);
    comma(p);
    fragment(p, shape, PART_B, types[2], false, b);
    comma(p);
    fragment(p, shape, PART_SUM, types[3], false, c);
    emit(p, OP_wmma, WMMA_AUX(shape, types[1], types[0], types[3], saturate), 0, 0, 0, 0, 0);
    emit(p, OP_ext, 0, 0, constant(p, UINT32_MAX), 0, 0, 0);
    emit_fragment(p, d);
    emit_fragment(p, a);
    emit_fragment(p, b);
    emit_fragment(p, c);
    finish(p);
}

/* ---- warpgroups ---- */

static bool warpgroup_exists(int a, int b, int d, unsigned n, unsigned k) {
    bool whole = a == ELEMENT_S8 || a == ELEMENT_U8;
    if (a == NO_ELEMENT || a > ELEMENT_U8 || k != 8 * elements_of_register((enum element)a))
        return false;
    if (whole) /* integers have fewer widths */
        return (b == ELEMENT_S8 || b == ELEMENT_U8) && d == ELEMENT_S32 &&
               (n % 16 == 0 || n == 8 || n == 24);
    bool quarters = a == ELEMENT_E4M3 || a == ELEMENT_E5M2;
    if (quarters ? b != ELEMENT_E4M3 && b != ELEMENT_E5M2 : b != a) return false;
    return d == ELEMENT_F32 || (d == ELEMENT_F16 && (quarters || a == ELEMENT_F16));
}

static bool warpgroup_shape(struct parser *p, unsigned *n, unsigned *k) {
    static const unsigned depths[] = {8, 16, 32};
    char name[16];
    for (*n = 8; *n <= 256; *n += 8)
        for (unsigned i = 0; i < 3; i++) {
            *k = depths[i];
            snprintf(name, sizeof name, "m64n%uk%u", *n, *k);
            if (mod(p, name)) return true;
        }
    return false;
}

/* After a comma: 1 or `other`; return whether it is `other`. */
static bool one_or(struct parser *p, uint64_t other) {
    comma(p);
    bool negative = accept(p, '-');
    uint64_t value = expect_integer(p, "1, 0 or -1");
    if (negative) value = -value;
    if (value != 1 && value != other) syntax(p, "invalid flag of '%s'", p->mnemonic);
    return value == other;
}

static void compile_warpgroup_product(struct parser *p) {
    int types[3];
    unsigned n, k;
    if (!mod(p, "sync") || !mod(p, "aligned") || !warpgroup_shape(p, &n, &k)) unknown(p);
    bool saturate = mod(p, "satfinite");
    fragment_elements(p, types, 3);
    if (!warpgroup_exists(types[1], types[2], types[0], n, k)) unknown(p);
    if (saturate && types[0] != ELEMENT_S32) unknown(p);
    enum sum sum = types[0] == ELEMENT_F32 ? SUM_F32 : types[0] == ELEMENT_F16 ? SUM_F16 : SUM_S32;
    static const enum type of_sum[] = {TYPE_F32, TYPE_B32, TYPE_S32};
    uint16_t d[128] = {0}, a[4] = {0}, a_descriptor = 0;
    unsigned sums = wgmma_sums(n, sum);
    registers(p, of_sum[sum], true, d, sums);
    comma(p);
    bool a_shared = !is_punct(p, '{');
    if (a_shared)
        a_descriptor = src(p, TYPE_B64);
    else
        registers(p, TYPE_B32, false, a, 4);
    comma(p);
    uint16_t b_descriptor = src(p, TYPE_B64);
    comma(p);
    uint16_t adds = predicate(p);
    bool negated = false, a_transposed = false, b_transposed = false;
    if (sum != SUM_S32) {
        negated = one_or(p, UINT64_MAX);
        negated ^= one_or(p, UINT64_MAX);
    }
    if (types[1] == ELEMENT_F16 || types[1] == ELEMENT_BF16) {
        if (a_shared) a_transposed = !one_or(p, 0);
        b_transposed = !one_or(p, 0);
    }
    emit(
        p, OP_wgmma,
        WGMMA_AUX(types[1], types[2], sum, a_shared, a_transposed, b_transposed, negated, saturate),
        0, a_descriptor, b_descriptor, adds, 0);
    emit(p, OP_ext, 0, 0, constant(p, UINT32_MAX), 0, 0, (int32_t)n);
    emit(p, OP_ext, 0, a[0], a[1], a[2], a[3], 0);
    for (unsigned i = 0; i < sums; i += 4)
        emit(p, OP_ext, 0, d[i], d[i + 1], d[i + 2], d[i + 3], 0);
    finish(p);
}

/* Products are computed when they start, so waiting does nothing. */
void compile_wgmma(struct parser *p) {
    if (mod(p, "mma_async")) {
        compile_warpgroup_product(p);
        return;
    }
    bool waits = mod(p, "wait_group");
    if ((!waits && !mod(p, "fence") && !mod(p, "commit_group")) || !mod(p, "sync") ||
        !mod(p, "aligned"))
        unknown(p);
    if (waits) expect_integer(p, "a number of groups");
    emit(p, OP_nop, 0, 0, 0, 0, 0, 0);
    finish(p);
}
