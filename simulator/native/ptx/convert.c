/* mov and cvt. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

static enum op move_of(enum type t) {
    unsigned bytes = type_bytes(t);
    return bytes == 4 ? OP_mov_b32 : bytes == 2 ? OP_mov_b16 : OP_mov;
}

static enum type element_type(struct parser *p, enum type whole, unsigned count) {
    unsigned bytes = count ? type_bytes(whole) / count : 0;
    if ((count != 2 && count != 4) || bytes == 0) unknown(p);
    return bytes == 1 ? TYPE_B8 : bytes == 2 ? TYPE_B16 : TYPE_B32;
}

/* counts the list that starts at the token, without consuming it */
static unsigned count_elements(struct parser *p) {
    unsigned n = 1;
    for (const char *c = p->cursor; c < p->end && *c != '}' && *c != ';'; c++) n += *c == ',';
    return n;
}

void compile_mov(struct parser *p) {
    enum type t = next_type(p);
    if (is_punct(p, '{')) {
        enum type e = element_type(p, t, count_elements(p));
        struct vector v = vector_of(p, e, true, true);
        comma(p);
        uint16_t a = src(p, t);
        unsigned bits = 8 * type_bytes(e);
        uint16_t whole = temporary(p, RESULT); /* an element may be the source itself */
        emit(p, move_of(t), 0, whole, a, 0, 0, 0);
        for (unsigned i = 0; i < v.count; i++)
            emit(p, OP_extract, 0, v.slot[i], whole, constant(p, (UINT64_C(1) << bits) - 1), 0,
                 (int32_t)(i * bits));
        finish(p);
        return;
    }
    uint16_t d = dst(p, t);
    comma(p);
    if (is_punct(p, '{')) {
        enum type e = element_type(p, t, count_elements(p));
        struct vector v = vector_of(p, e, false, true);
        enum op pack = type_bytes(e) == 1   ? OP_pack_8
                       : type_bytes(e) == 2 ? OP_pack_16
                                            : OP_pack_32;
        if (v.count == 2) {
            emit(p, pack, 0, d, v.slot[0], v.slot[1], 0, 0);
        } else {
            uint16_t low = temporary(p, SCRATCH), high = temporary(p, SCRATCH2);
            emit(p, pack, 0, low, v.slot[0], v.slot[1], 0, 0);
            emit(p, pack, 0, high, v.slot[2], v.slot[3], 0, 0);
            emit(p, pack == OP_pack_8 ? OP_pack_16 : OP_pack_32, 0, d, low, high, 0, 0);
        }
    } else {
        emit(p, move_of(t), 0, d, src(p, t), 0, 0, 0);
    }
    finish(p);
}

enum { PAIR_F16, PAIR_BF16, PAIR_E4M3, PAIR_E5M2 };
static const char *const pair_names[] = {"f16x2", "bf16x2", "e4m3x2", "e5m2x2", NULL};

/* Two floats, or two halves in a register → a register of two halves or quarters. The first float,
 * or the upper half, becomes the upper part. */
static void pair_from(struct parser *p, int to, int from) {
    static const enum op narrow[] = {OP_cvt_f16_f32, OP_cvt_bf16_f32, OP_cvt_e4m3_f32,
                                     OP_cvt_e5m2_f32},
                         widen[] = {OP_cvt_f32_f16, OP_cvt_f32_bf16, OP_cvt_f32_e4m3,
                                    OP_cvt_f32_e5m2};
    bool relu = mod(p, "relu"), quarters = to >= PAIR_E4M3;
    enum round round = rounding(p);
    if (mod(p, "satfinite") != quarters || (quarters && round != ROUND_NEAREST)) unknown(p);
    uint16_t d = dst(p, quarters ? TYPE_B16 : TYPE_B32);
    uint16_t part[2] = {temporary(p, SCRATCH2), temporary(p, SCRATCH)}; /* low, high */
    comma(p);
    if (from < 0) {
        if (next_type(p) != TYPE_F32) unknown(p);
        uint16_t high = src(p, TYPE_F32);
        comma(p);
        emit(p, OP_mov, 0, part[0], src(p, TYPE_F32), 0, 0, 0);
        emit(p, OP_mov, 0, part[1], high, 0, 0, 0);
    } else {
        unsigned bits = from >= PAIR_E4M3 ? 8 : 16;
        uint16_t whole = src(p, bits == 8 ? TYPE_B16 : TYPE_B32);
        for (unsigned i = 0; i < 2; i++) {
            emit(p, OP_extract, 0, part[i], whole, constant(p, (1u << bits) - 1), 0,
                 (int32_t)(i * bits));
            emit(p, widen[from], 0, part[i], part[i], 0, 0, 0);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        if (relu) emit(p, OP_relu_f32, 0, part[i], part[i], 0, 0, 0);
        emit(p, narrow[to], round, part[i], part[i], 0, 0, 0);
    }
    emit(p, quarters ? OP_pack_8 : OP_pack_16, 0, d, part[0], part[1], 0, 0);
    finish(p);
}

/* In order: a pair's names may come twice. False: it does not convert pairs. */
static bool convert_pair(struct parser *p) {
    int kinds[2] = {-1, -1}, count = 0;
    for (uint32_t i = 0; i < p->modifier_count; i++)
        for (int k = 0; pair_names[k]; k++)
            if (strcmp(p->modifiers[i], pair_names[k]) == 0) {
                if (count == 2) unknown(p);
                kinds[count++] = k;
                p->modifier_used[i] = true;
            }
    if (count == 0) return false;
    bool halves = kinds[1] == PAIR_F16, quarters = kinds[1] >= PAIR_E4M3;
    if (count == 2 && !(kinds[0] >= PAIR_E4M3 ? halves : kinds[0] == PAIR_F16 && quarters))
        unknown(p);
    pair_from(p, kinds[0], kinds[1]);
    return true;
}

static bool convert_tf32(struct parser *p) {
    if (!mod(p, "tf32")) return false;
    bool away = mod(p, "rna"), relu = mod(p, "relu");
    if ((!away && !mod(p, "rn")) || next_type(p) != TYPE_F32) unknown(p);
    uint16_t d = dst(p, TYPE_B32), v = temporary(p, RESULT);
    comma(p);
    emit(p, relu ? OP_relu_f32 : OP_mov, 0, v, src(p, TYPE_F32), 0, 0, 0);
    emit(p, OP_cvt_tf32_f32, away, d, v, 0, 0, 0);
    finish(p);
    return true;
}

/* Two integers, saturated, in the low bits of a register; above them, for fewer than 16 bits each,
 * the low bits of a third operand. */
static bool convert_pack(struct parser *p) {
    static const char *const small[] = {"u2", "s2", "u4", "s4", NULL};
    static const unsigned small_aux[] = {4, 5, 8, 9};
    if (!mod(p, "pack")) return false;
    int which = mod_of(p, small);
    enum type to = which < 0 ? next_type(p) : TYPE_NONE;
    if (!mod(p, "sat") || next_type(p) != TYPE_S32 || type_is_bits(to) || type_bytes(to) > 2)
        unknown(p);
    unsigned aux = which < 0 ? 16 * type_bytes(to) | type_is_signed(to) : small_aux[which];
    bool merged = aux < 32;
    if (merged && next_type(p) != TYPE_B32) unknown(p);
    plain(p, OP_pack, aux, TYPE_B32, TYPE_S32, TYPE_S32, merged ? TYPE_B32 : TYPE_NONE);
    return true;
}

void compile_cvt(struct parser *p) {
    if (convert_pack(p) || convert_pair(p) || convert_tf32(p)) return;
    static const char *const whole[] = {"rni", "rzi", "rmi", "rpi", NULL};
    int to_whole = mod_of(p, whole);
    bool ftz = mod(p, "ftz"), saturate = mod(p, "sat"), relu = mod(p, "relu");
    enum type to = next_type(p), from = next_type(p), actual = TYPE_NONE;
    enum round round = rounding(p);
    bool to_float = type_is_float(to), from_float = type_is_float(from);
    if (to == TYPE_PRED || from == TYPE_PRED || type_is_bits(to) || type_is_bits(from) ||
        (relu && !type_is_half(to)))
        unknown(p);
    uint16_t d = dst_wider(p, to, &actual, true);
    comma(p);
    uint16_t a = src_wider(p, from, true);
    if (ftz && from == TYPE_F32) a = widened(p, a, from, from, true, 0);

    if (!to_float && !from_float) {
        if (saturate) {
            uint16_t wide = temporary(p, RESULT);
            const char *name = type_is_signed(from) ? "cvt_s64" : "cvt_u64";
            emit(p, op_or_fail(p, name, type_name(from)), 0, wide, a, 0, 0, 0);
            emit(p, type_is_signed(from) ? OP_satcvt_s64 : OP_satcvt_u64,
                 8 * type_bytes(to) | type_is_signed(to), d, wide, 0, 0, 0);
        } else {
            emit(p, op_named("cvt_%s_%s", type_name(to), type_name(from)), 0, d, a, 0, 0, 0);
        }
    } else if (!to_float) {
        if (to_whole < 0 && !type_is_half(from))
            syntax(p, "'%s' needs .rni, .rzi, .rmi or .rpi", p->mnemonic);
        enum type wide = type_is_half(from) ? TYPE_F32 : from;
        a = widened(p, a, from, wide, false, 0);
        emit(p, op_named("cvt_%s_%s", type_name(to), type_name(wide)),
             (unsigned)(to_whole < 0 ? 0 : to_whole), d, a, 0, 0, 0);
    } else {
        bool half = type_is_half(to);
        enum type wide = half ? (from == TYPE_F32 || type_is_half(from) ? TYPE_F32 : TYPE_F64) : to;
        uint16_t v = half ? temporary(p, RESULT) : d;
        enum round bracket = half ? ROUND_NEAREST : round;
        if (bracket != ROUND_NEAREST) emit(p, OP_round_set, bracket, 0, 0, 0, 0, 0);
        if (wide == from)
            emit(p, move_of(wide), 0, v, a, 0, 0, 0);
        else
            emit(p, op_named("cvt_%s_%s", type_name(wide), type_name(from)), 0, v, a, 0, 0, 0);
        if (bracket != ROUND_NEAREST) emit(p, OP_round_set, ROUND_NEAREST, 0, 0, 0, 0, 0);
        if (to_whole >= 0)
            emit(p, op_or_fail(p, "rint", type_name(wide)), (unsigned)to_whole, v, v, 0, 0, 0);
        if (saturate) emit(p, op_or_fail(p, "sat", type_name(wide)), 0, v, v, 0, 0, 0);
        if (relu) emit(p, op_or_fail(p, "relu", type_name(wide)), 0, v, v, 0, 0, 0);
        if (half)
            emit(p, op_named("cvt_%s_%s", type_name(to), type_name(wide)), round, d, v, 0, 0, 0);
        else if (ftz && to == TYPE_F32)
            emit(p, OP_flush_f32, 0, d, d, 0, 0, 0);
    }
    /* "sign-extended to the destination register's width": 32-bit results are extended only to 32
     * bits. */
    if (type_is_signed(to) && type_bytes(to) < 8 && type_bytes(actual) == 8)
        emit(p, OP_cvt_s64_s32, 0, d, d, 0, 0, 0);
    finish(p);
}
