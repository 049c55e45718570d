/* Bits, comparison and selection. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

/* ---- bits ---- */

void compile_logic(struct parser *p) {
    enum type t = next_type(p);
    if (t == TYPE_PRED) {
        uint16_t d = dst(p, t);
        comma(p);
        uint16_t a = src(p, t), b = 0;
        if (strcmp(p->base, "not") != 0) {
            comma(p);
            b = src(p, t);
        }
        emit(p, op_or_fail(p, p->base, "pred"), 0, d, a, b, 0, 0);
        finish(p);
        return;
    }
    if (!type_is_bits(t)) unknown(p);
    bool one = strcmp(p->base, "not") == 0 || strcmp(p->base, "cnot") == 0;
    same_type(p, op_or_fail(p, p->base, type_name(t)), t, one ? 1 : 2);
}

void compile_shift(struct parser *p) {
    enum type t = next_type(p);
    const char *suffix = p->base[2] == 'l'   ? type_name(t)
                         : type_is_signed(t) ? type_name(t)
                                             : unsigned_name(t);
    plain(p, op_or_fail(p, p->base, suffix), 0, t, t, TYPE_U32, TYPE_NONE);
}

void compile_shf(struct parser *p) {
    bool left = mod(p, "l"), clamp = mod(p, "clamp");
    if ((!left && !mod(p, "r")) || (!clamp && !mod(p, "wrap")) || next_type(p) != TYPE_B32)
        unknown(p);
    enum op op =
        left ? (clamp ? OP_shf_l_clamp : OP_shf_l_wrap) : (clamp ? OP_shf_r_clamp : OP_shf_r_wrap);
    plain(p, op, 0, TYPE_B32, TYPE_B32, TYPE_B32, TYPE_U32);
}

void compile_bfe(struct parser *p) {
    enum type t = next_type(p);
    plain(p, op_or_fail(p, "bfe", type_name(t)), 0, t, t, TYPE_U32, TYPE_U32);
}

void compile_bfi(struct parser *p) {
    enum type t = next_type(p);
    enum op op = op_or_fail(p, "bfi", type_name(t));
    uint16_t d = dst(p, t);
    comma(p);
    uint16_t a = src(p, t);
    comma(p);
    uint16_t b = src(p, t);
    comma(p);
    uint16_t position = src(p, TYPE_U32);
    comma(p);
    emit(p, op, 0, d, a, b, position, src(p, TYPE_U32));
    finish(p);
}

/* popc, clz: the result has 32 bits; brev: it is as wide as the operand */
void compile_count_bits(struct parser *p) {
    enum type t = next_type(p);
    plain(p, op_or_fail(p, p->base, type_name(t)), 0, strcmp(p->base, "brev") == 0 ? t : TYPE_U32,
          t, TYPE_NONE, TYPE_NONE);
}

void compile_bfind(struct parser *p) {
    enum type t = next_type(p);
    unsigned shiftamt = mod(p, "shiftamt");
    plain(p, op_or_fail(p, "bfind", type_name(t)), shiftamt, TYPE_U32, t, TYPE_NONE, TYPE_NONE);
}

static bool clamps(struct parser *p) {
    bool clamp = mod(p, "clamp");
    if (!clamp && !mod(p, "wrap")) unknown(p);
    return clamp;
}

void compile_bmsk(struct parser *p) {
    enum op op = clamps(p) ? OP_bmsk_clamp : OP_bmsk_wrap;
    if (next_type(p) != TYPE_B32) unknown(p);
    plain(p, op, 0, TYPE_B32, TYPE_U32, TYPE_U32, TYPE_NONE);
}

void compile_szext(struct parser *p) {
    bool clamp = clamps(p);
    enum type t = next_type(p);
    plain(p, op_or_fail(p, "szext", type_name(t)), clamp, t, t, TYPE_U32, TYPE_NONE);
}

void compile_fns(struct parser *p) {
    if (next_type(p) != TYPE_B32) unknown(p);
    plain(p, OP_fns_b32, 0, TYPE_B32, TYPE_B32, TYPE_B32, TYPE_S32);
}

void compile_prmt(struct parser *p) {
    static const char *const modes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16", NULL};
    if (next_type(p) != TYPE_B32) unknown(p);
    plain(p, OP_prmt_b32, (unsigned)(mod_of(p, modes) + 1), TYPE_B32, TYPE_B32, TYPE_B32, TYPE_B32);
}

/* With .or or .and a second result: whether any bit is set, combined with a predicate. */
void compile_lop3(struct parser *p) {
    bool both = mod(p, "and"), either = mod(p, "or");
    if (next_type(p) != TYPE_B32 || (both && either)) unknown(p);
    uint16_t s[4] = {dst(p, TYPE_B32)}, q = 0;
    if (both || either) {
        expect(p, '|');
        q = dst(p, TYPE_PRED);
    }
    for (int i = 1; i < 4; i++) {
        comma(p);
        s[i] = src(p, TYPE_B32);
    }
    comma(p);
    uint64_t table = expect_integer(p, "a table of 8 bits");
    if (table > 255) syntax(p, "lop3's table has 8 bits");
    emit(p, OP_lop3_b32, (unsigned)table, s[0], s[1], s[2], s[3], 0);
    if (both || either) {
        uint16_t any = temporary(p, SCRATCH);
        emit(p, OP_setp_ne_u32, 0, any, s[0], constant(p, 0), 0, 0);
        comma(p);
        emit(p, both ? OP_and_pred : OP_or_pred, 0, q, any, predicate(p), 0, 0);
    }
    finish(p);
}

/* ---- comparison and selection ---- */

/* In the order of enum comparison. */
static const char *const comparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "lo",
                                          "ls",  "hi",  "hs",  "equ", "neu", "ltu", "leu",
                                          "gtu", "geu", "num", "nan", NULL};
static const char *const booleans[] = {"and", "or", "xor", NULL};

static enum op comparison(struct parser *p, int which, enum type t, enum type *compared) {
    const char *name = comparisons[which], *suffix = type_name(t);
    char full[16];
    *compared = type_is_half(t) ? TYPE_F32 : t;
    if (which <= 1 && !type_is_float(t))
        suffix = unsigned_name(t);
    else if (which >= 6 && which <= 9) {
        name = comparisons[which - 4];
        if (type_is_float(t) || type_is_signed(t)) unknown(p);
        suffix = unsigned_name(t);
    } else {
        suffix = type_name(*compared);
    }
    snprintf(full, sizeof full, "setp_%s", name);
    return op_or_fail(p, full, suffix);
}

/* a, b [, c] of setp and set: put the result, combined with c, in `d`, and on request its
 * complement first in `q`. */
static void emit_comparison(struct parser *p, int which, int boolean, enum type t, bool ftz,
                            uint16_t d, bool has_q, uint16_t q) {
    enum type wide;
    enum op op = comparison(p, which, t, &wide);
    uint16_t a = widened(p, src(p, t), t, wide, ftz, 0);
    comma(p);
    uint16_t b = widened(p, src(p, t), t, wide, ftz, 1);
    uint16_t raw = boolean < 0 && !has_q ? d : temporary(p, SCRATCH);
    uint16_t c = 0;
    emit(p, op, 0, raw, a, b, 0, 0);
    if (boolean >= 0) {
        comma(p);
        c = predicate(p);
    }
    if (has_q) {
        uint16_t opposite = temporary(p, SCRATCH2);
        emit(p, OP_not_pred, 0, opposite, raw, 0, 0, 0);
        static const enum op combine[] = {OP_and_pred, OP_or_pred, OP_xor_pred};
        if (boolean >= 0) { /* c may be d or q: read it before either is written */
            emit(p, combine[boolean], 0, opposite, opposite, c, 0, 0);
            emit(p, combine[boolean], 0, raw, raw, c, 0, 0);
        }
        emit(p, OP_mov, 0, d, raw, 0, 0, 0);
        emit(p, OP_mov, 0, q, opposite, 0, 0, 0);
    } else if (boolean >= 0) {
        static const enum op combine[] = {OP_and_pred, OP_or_pred, OP_xor_pred};
        emit(p, combine[boolean], 0, d, raw, c, 0, 0);
    }
}

/* Two halves each: both results in the low bits of RESULT, the lower halves' first. */
static void emit_packed_comparison(struct parser *p, int which, bool ftz, bool bfloat) {
    if (which < 0 || (which >= COMPARE_LO && which <= COMPARE_HS)) unknown(p);
    uint16_t a = src(p, TYPE_B32);
    comma(p);
    uint16_t b = src(p, TYPE_B32);
    emit(p, OP_half_compare, (unsigned)which | (bfloat ? HALF_BFLOAT : 0u) | (ftz ? HALF_FTZ : 0u),
         temporary(p, RESULT), a, b, 0, 0);
}

static void packed_setp(struct parser *p, int which, int boolean, bool ftz, bool bfloat) {
    static const enum op combine[] = {OP_and_pred, OP_or_pred, OP_xor_pred};
    uint16_t d[2] = {dst(p, TYPE_PRED), temporary(p, SINK)};
    if (accept(p, '|')) d[1] = dst(p, TYPE_PRED);
    comma(p);
    emit_packed_comparison(p, which, ftz, bfloat);
    uint16_t one = constant(p, 1), half[2] = {temporary(p, SCRATCH), temporary(p, SCRATCH2)};
    for (int i = 0; i < 2; i++) emit(p, OP_extract, 0, half[i], temporary(p, RESULT), one, 0, i);
    if (boolean >= 0) {
        comma(p);
        uint16_t c = predicate(p);
        for (int i = 0; i < 2; i++) emit(p, combine[boolean], 0, half[i], half[i], c, 0, 0);
    }
    for (int i = 0; i < 2; i++) emit(p, OP_mov, 0, d[i], half[i], 0, 0, 0);
    finish(p);
}

/* 1.0 or 0 in each half */
static void packed_set(struct parser *p, int which, bool ftz, bool bfloat) {
    if (!mod(p, bfloat ? "bf16x2" : "f16x2")) unknown(p);
    uint16_t d = dst(p, TYPE_B32), yes = constant(p, bfloat ? 0x3f80 : 0x3c00);
    comma(p);
    emit_packed_comparison(p, which, ftz, bfloat);
    uint16_t half[2] = {temporary(p, SCRATCH), temporary(p, SCRATCH2)};
    for (int i = 0; i < 2; i++) {
        emit(p, OP_extract, 0, half[i], temporary(p, RESULT), constant(p, 1), 0, i);
        emit(p, OP_selp, 0, half[i], yes, constant(p, 0), half[i], 0);
    }
    emit(p, OP_pack_16, 0, d, half[0], half[1], 0, 0);
    finish(p);
}

void compile_setp(struct parser *p) {
    int which = mod_of(p, comparisons), boolean = mod_of(p, booleans);
    bool ftz = mod(p, "ftz"), bfloat = mod(p, "bf16x2");
    if (bfloat || mod(p, "f16x2")) {
        packed_setp(p, which, boolean, ftz, bfloat);
        return;
    }
    enum type t = next_type(p);
    if (which < 0) unknown(p);
    uint16_t d = dst(p, TYPE_PRED), q = 0;
    bool has_q = accept(p, '|');
    if (has_q) q = dst(p, TYPE_PRED);
    comma(p);
    emit_comparison(p, which, boolean, t, ftz, d, has_q, q);
    finish(p);
}

void compile_set(struct parser *p) {
    int which = mod_of(p, comparisons), boolean = mod_of(p, booleans);
    bool ftz = mod(p, "ftz"), bfloat = mod(p, "bf16x2");
    if (bfloat || mod(p, "f16x2")) {
        if (boolean >= 0) unknown(p);
        packed_set(p, which, ftz, bfloat);
        return;
    }
    enum type to = next_type(p), t = next_type(p);
    if (which < 0 || (type_bytes(to) != 4 && type_bytes(to) != 2)) unknown(p);
    uint16_t d = dst(p, to), answer = temporary(p, RESULT);
    comma(p);
    emit_comparison(p, which, boolean, t, ftz, answer, false, 0);
    uint16_t yes = constant(p, to == TYPE_F32        ? 0x3f800000u
                               : to == TYPE_F16      ? 0x3c00
                               : to == TYPE_BF16     ? 0x3f80
                               : type_bytes(to) == 2 ? UINT16_MAX
                                                     : UINT32_MAX);
    emit(p, OP_selp, 0, d, yes, constant(p, 0), answer, 0);
    finish(p);
}

void compile_selp(struct parser *p) {
    enum type t = next_type(p);
    uint16_t d = dst(p, t);
    comma(p);
    uint16_t a = src(p, t);
    comma(p);
    uint16_t b = src(p, t);
    comma(p);
    emit(p, OP_selp, 0, d, a, b, predicate(p), 0);
    finish(p);
}

void compile_slct(struct parser *p) {
    enum type t = next_type(p), by = next_type(p);
    (void)(by == TYPE_F32 && mod(p, "ftz"));
    plain(p, op_or_fail(p, "slct", type_name(by)), 0, t, t, t, by);
}

void compile_testp(struct parser *p) {
    static const char *const which[] = {"finite", "infinite",  "number", "notanumber",
                                        "normal", "subnormal", NULL};
    int i = mod_of(p, which);
    enum type t = next_type(p);
    if (i < 0) unknown(p);
    plain(p, op_or_fail(p, "testp", type_name(t)), (unsigned)i, TYPE_PRED, t, TYPE_NONE, TYPE_NONE);
}

void compile_copysign(struct parser *p) {
    enum type t = next_type(p);
    same_type(p, op_or_fail(p, "copysign", type_name(t)), t, 2);
}
