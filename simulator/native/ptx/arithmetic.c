/* Integer and floating-point arithmetic. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

/* One half, or two in a register (`packed`): these have operations of their own. */
static void halves(struct parser *p, const char *name, bool bfloat, bool packed, unsigned sources) {
    static const char *const names[] = {"add",     "sub",     "mul", "fma",  "min", "max",
                                        "min_nan", "max_nan", "ex2", "tanh", "abs", "neg"};
    unsigned which = 0, aux = 0;
    while (which < sizeof names / sizeof *names && strcmp(names[which], name) != 0) which++;
    if (which == sizeof names / sizeof *names) unknown(p);
    if (bfloat) aux |= HALF_BFLOAT;
    if (packed) aux |= HALF_PACKED;
    if (mod(p, "ftz")) aux |= HALF_FTZ;
    if (mod(p, "sat")) aux |= HALF_SAT;
    if (mod(p, "relu")) aux |= HALF_RELU;
    if (rounding(p) != ROUND_NEAREST) unknown(p);
    enum type t = packed ? TYPE_B32 : bfloat ? TYPE_BF16 : TYPE_F16;
    enum type other[] = {sources > 1 ? t : TYPE_NONE, sources > 2 ? t : TYPE_NONE};
    plain(p, OP_half, which | aux, t, t, other[0], other[1]);
}

/* Compile an operation on two halves in a register, if the instruction is one. */
static bool packed_halves(struct parser *p, const char *name, unsigned sources) {
    bool bfloat = mod(p, "bf16x2");
    if (!bfloat && !mod(p, "f16x2")) return false;
    halves(p, name, bfloat, true, sources);
    return true;
}

/* Compile an operation on two 16-bit integers in a register, if the instruction is one. */
static bool packed_integers(struct parser *p, unsigned which) {
    bool is_signed = mod(p, "s16x2");
    if (!is_signed && !mod(p, "u16x2")) return false;
    unsigned aux = which | (is_signed ? PAIR_SIGNED : 0u);
    if (which != PAIR_ADD && is_signed && mod(p, "relu")) aux |= PAIR_RELU;
    plain(p, OP_pair_16, aux, TYPE_B32, TYPE_B32, TYPE_B32, TYPE_NONE);
    return true;
}

/* Floating point with all options: rounding, saturation, flushing. */
static void floating(struct parser *p, const char *name, enum type t, unsigned sources) {
    if (type_is_half(t)) {
        halves(p, name, t == TYPE_BF16, false, sources);
        return;
    }
    bool ftz = mod(p, "ftz"), saturate = mod(p, "sat");
    enum round round = rounding(p);
    enum op op = op_or_fail(p, name, type_name(t));
    uint16_t d = dst(p, t), s[3] = {0};
    for (unsigned i = 0; i < sources; i++) {
        comma(p);
        s[i] = widened(p, src(p, t), t, t, ftz, i);
    }
    if (round != ROUND_NEAREST) emit(p, OP_round_set, round, 0, 0, 0, 0, 0);
    emit(p, op, 0, d, s[0], s[1], s[2], 0);
    if (round != ROUND_NEAREST) emit(p, OP_round_set, ROUND_NEAREST, 0, 0, 0, 0, 0);
    if (saturate) emit(p, op_or_fail(p, "sat", type_name(t)), 0, d, d, 0, 0, 0);
    if (ftz && t == TYPE_F32) emit(p, OP_flush_f32, 0, d, d, 0, 0, 0);
    finish(p);
}

static uint16_t carry_slot(struct parser *p) {
    if (!p->build->has_carry) {
        p->build->carry = new_register(p, TYPE_NONE);
        p->build->has_carry = true;
    }
    return p->build->carry;
}

/* add, sub with or without carry in (`with`) and out (.cc) of d = a ± b */
static void emit_carry(struct parser *p, const char *name, bool with, bool out, enum type t,
                       uint16_t d, uint16_t a, uint16_t b) {
    char full[16];
    snprintf(full, sizeof full, "%s%s%s", name, with ? "c" : "", out ? "_cc" : "");
    uint16_t carry = with || out ? carry_slot(p) : 0;
    emit(p, op_or_fail(p, full, unsigned_name(t)), 0, d, a, b, with ? carry : 0, out ? carry : 0);
}

void compile_add(struct parser *p) {
    bool with = p->base[3] == 'c';
    char name[] = {p->base[0], p->base[1], p->base[2], 0};
    if (!with && packed_halves(p, name, 2)) return;
    if (name[0] == 'a' && packed_integers(p, PAIR_ADD)) return;
    enum type t = next_type(p);
    if (type_is_float(t) && !with) {
        floating(p, name, t, 2);
        return;
    }
    bool out = mod(p, "cc");
    if (with || out) {
        uint16_t d = dst(p, t);
        comma(p);
        uint16_t a = src(p, t);
        comma(p);
        emit_carry(p, name, with, out, t, d, a, src(p, t));
        finish(p);
    } else if (mod(p, "sat")) {
        same_type(p, op_or_fail(p, name[0] == 'a' ? "add_sat" : "sub_sat", type_name(t)), t, 2);
    } else {
        same_type(p, op_or_fail(p, name, unsigned_name(t)), t, 2);
    }
}

static enum type doubled(struct parser *p, enum type t) {
    switch (t) {
    case TYPE_U16: return TYPE_U32;
    case TYPE_S16: return TYPE_S32;
    case TYPE_U32: return TYPE_U64;
    case TYPE_S32: return TYPE_S64;
    default: unknown(p);
    }
}

void compile_mul(struct parser *p) {
    if (packed_halves(p, "mul", 2)) return;
    enum type t = next_type(p);
    if (type_is_float(t)) {
        floating(p, "mul", t, 2);
    } else if (mod(p, "wide")) {
        enum type wide = doubled(p, t);
        plain(p, op_or_fail(p, "mulwide", type_name(t)), 0, wide, t, t, TYPE_NONE);
    } else if (mod(p, "hi")) {
        same_type(p, op_or_fail(p, "mulhi", type_name(t)), t, 2);
    } else {
        if (!mod(p, "lo")) unknown(p);
        same_type(p, op_or_fail(p, "mul", unsigned_name(t)), t, 2);
    }
}

void compile_mul24(struct parser *p) {
    bool mad = strcmp(p->base, "mad24") == 0, high = mod(p, "hi");
    enum type t = next_type(p);
    if (!high && !mod(p, "lo")) unknown(p);
    enum op op = op_or_fail(p, high ? "mul24hi" : "mul24", type_name(t));
    if (!mad) {
        same_type(p, op, t, 2);
        return;
    }
    uint16_t d = dst(p, t), product = temporary(p, RESULT);
    comma(p);
    uint16_t a = src(p, t);
    comma(p);
    emit(p, op, 0, product, a, src(p, t), 0, 0);
    comma(p);
    emit(p, OP_add_u32, 0, d, product, src(p, t), 0, 0);
    finish(p);
}

/* mad and fma. Integer forms without an operation of their own multiply first and then add, with
 * carry if requested. */
void compile_mad(struct parser *p) {
    bool with = strcmp(p->base, "madc") == 0;
    if (!with && packed_halves(p, "fma", 3)) return;
    enum type t = next_type(p);
    if (type_is_float(t) && !with) {
        floating(p, "fma", t, 3);
        return;
    }
    bool wide = mod(p, "wide"), high = mod(p, "hi"), low = mod(p, "lo"), out = mod(p, "cc");
    if (wide + high + low != 1 || strcmp(p->base, "fma") == 0) unknown(p);
    if (wide && !with && !out) {
        enum type to = doubled(p, t);
        plain(p, op_or_fail(p, "madwide", type_name(t)), 0, to, t, t, to);
        return;
    }
    if (low && !with && !out) {
        same_type(p, op_or_fail(p, "mad", unsigned_name(t)), t, 3);
        return;
    }
    bool saturate = mod(p, "sat");
    if (wide || (saturate && (t != TYPE_S32 || !high))) unknown(p);
    enum op multiply =
        high ? op_or_fail(p, "mulhi", type_name(t)) : op_or_fail(p, "mul", unsigned_name(t));
    uint16_t d = dst(p, t), product = temporary(p, RESULT);
    comma(p);
    uint16_t a = src(p, t);
    comma(p);
    uint16_t b = src(p, t);
    comma(p);
    uint16_t c = src(p, t);
    emit(p, multiply, 0, product, a, b, 0, 0);
    if (saturate)
        emit(p, OP_add_sat_s32, 0, d, product, c, 0, 0);
    else
        emit_carry(p, "add", with, out, t, d, product, c);
    finish(p);
}

void compile_div(struct parser *p) {
    enum type t = next_type(p);
    if (type_is_float(t) && p->base[0] == 'd') {
        (void)(mod(p, "approx") || mod(p, "full"));
        floating(p, "div", t, 2);
    } else {
        same_type(p, op_or_fail(p, p->base, type_is_float(t) ? "" : type_name(t)), t, 2);
    }
}

void compile_abs_neg(struct parser *p) {
    if (packed_halves(p, p->base, 1)) return;
    enum type t = next_type(p);
    if (type_is_half(t)) {
        halves(p, p->base, t == TYPE_BF16, false, 1);
        return;
    }
    if (t == TYPE_F32 && mod(p, "ftz")) {
        uint16_t d = dst(p, t);
        comma(p);
        emit(p, op_or_fail(p, p->base, "f32"), 0, d, src(p, t), 0, 0, 0);
        emit(p, OP_flush_f32, 0, d, d, 0, 0, 0);
        finish(p);
        return;
    }
    same_type(p, op_or_fail(p, p->base, type_name(t)), t, 1);
}

void compile_min_max(struct parser *p) {
    bool minimum = p->base[1] == 'i', nan = mod(p, "NaN");
    const char *name = minimum ? (nan ? "min_nan" : "min") : (nan ? "max_nan" : "max");
    if (packed_halves(p, name, 2)) return;
    if (!nan && packed_integers(p, minimum ? PAIR_MIN : PAIR_MAX)) return;
    enum type t = next_type(p);
    if (type_is_float(t)) {
        floating(p, name, t, 2);
    } else {
        if (nan) unknown(p);
        same_type(p, op_or_fail(p, p->base, type_name(t)), t, 2);
    }
}

/* sqrt, rcp, rsqrt, sin, cos, ex2, lg2, tanh: the approximations are more exact than the
 * hardware's. */
void compile_function(struct parser *p) {
    mod(p, "approx");
    if (packed_halves(p, p->base, 1)) return;
    enum type t = next_type(p);
    if (!type_is_float(t)) unknown(p);
    floating(p, p->base, t, 1);
}

void compile_sad(struct parser *p) {
    enum type t = next_type(p);
    same_type(p, op_or_fail(p, "sad", type_name(t)), t, 3);
}

/* dp4a, dp2a: products of bytes, or of halves and bytes, added up */
void compile_dot(struct parser *p) {
    bool bytes = p->base[2] == '4', high = !bytes && mod(p, "hi");
    enum type a = next_type(p), b = next_type(p);
    if ((a != TYPE_S32 && a != TYPE_U32) || (b != TYPE_S32 && b != TYPE_U32)) unknown(p);
    if (!bytes && !high && !mod(p, "lo")) unknown(p);
    unsigned aux = (a == TYPE_S32) | (unsigned)(b == TYPE_S32) << 1 | (unsigned)high << 2;
    plain(p, bytes ? OP_dp4a : OP_dp2a, aux, TYPE_B32, TYPE_B32, TYPE_B32, TYPE_B32);
}
