/* What a warp does with matrices in its registers: mma, ldmatrix, stmatrix. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

enum { NO_ELEMENT = 8 };

static unsigned element_named(const char *name) {
    static const char *const names[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "f64"};
    unsigned i = 0;
    while (i < NO_ELEMENT && strcmp(names[i], name) != 0) i++;
    return i;
}

static int sum_named(const char *name) {
    static const char *const names[] = {"f32", "f16", "s32", "f64"};
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* The last four words of the mnemonic: the types of d, a, b, c. */
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
