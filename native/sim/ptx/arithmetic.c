/* Integer and floating-point arithmetic. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

/* Floating point with everything around it: 16-bit floats through wider ones, rounding, saturation,
 * flushing. */
static void floating(struct parser *p, const char *name, enum type t, unsigned sources) {
    bool ftz = mod(p, "ftz"), saturate = mod(p, "sat"), relu = mod(p, "relu");
    enum round round = rounding(p);
    bool half = type_is_half(t);
    if ((relu && !half) || (round != ROUND_NEAREST && half)) unknown(p);
    enum type wide = half ? (strcmp(name, "fma") == 0 ? TYPE_F64 : TYPE_F32) : t;
    enum op op = op_or_fail(p, name, type_name(wide));
    uint16_t d = dst(p, t), s[3] = {0};
    for (unsigned i = 0; i < sources; i++) {
        comma(p);
        s[i] = widened(p, src(p, t), t, wide, ftz, i);
    }
    uint16_t result = half ? temporary(p, RESULT) : d;
    if (round != ROUND_NEAREST) emit(p, OP_round_set, round, 0, 0, 0, 0, 0);
    emit(p, op, 0, result, s[0], s[1], s[2], 0);
    if (round != ROUND_NEAREST) emit(p, OP_round_set, ROUND_NEAREST, 0, 0, 0, 0, 0);
    if (saturate) emit(p, op_or_fail(p, "sat", type_name(wide)), 0, result, result, 0, 0, 0);
    if (relu) {
        if (wide == TYPE_F64) emit(p, OP_cvt_f32_f64, 0, result, result, 0, 0, 0), wide = TYPE_F32;
        emit(p, OP_relu_f32, 0, result, result, 0, 0, 0);
    }
    if (half)
        emit(p, op_or_fail(p, t == TYPE_F16 ? "cvt_f16" : "cvt_bf16", type_name(wide)),
             ROUND_NEAREST, d, result, 0, 0, 0);
    else if (ftz && t == TYPE_F32)
        emit(p, OP_flush_f32, 0, d, d, 0, 0, 0);
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

/* mad and fma; the integer forms that have no operation of their own multiply first and then add,
 * with carry if asked. */
void compile_mad(struct parser *p) {
    enum type t = next_type(p);
    bool with = strcmp(p->base, "madc") == 0;
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
    enum type t = next_type(p);
    if (t == TYPE_F32 && mod(p, "ftz")) {
        uint16_t d = dst(p, t);
        comma(p);
        emit(p, op_or_fail(p, p->base, "f32"), 0, d, src(p, t), 0, 0, 0);
        emit(p, OP_flush_f32, 0, d, d, 0, 0, 0);
        finish(p);
        return;
    }
    (void)(type_is_half(t) && mod(p, "ftz"));
    same_type(p, op_or_fail(p, p->base, t == TYPE_BF16 ? "f16" : type_name(t)), t, 1);
}

void compile_min_max(struct parser *p) {
    enum type t = next_type(p);
    bool minimum = p->base[1] == 'i';
    if (type_is_float(t)) {
        bool nan = mod(p, "NaN");
        floating(p, minimum ? (nan ? "min_nan" : "min") : (nan ? "max_nan" : "max"), t, 2);
    } else {
        same_type(p, op_or_fail(p, p->base, type_name(t)), t, 2);
    }
}

/* sqrt, rcp, rsqrt, sin, cos, ex2, lg2, tanh: the approximations are computed more exactly than the
 * hardware does. */
void compile_function(struct parser *p) {
    enum type t = next_type(p);
    mod(p, "approx");
    if (!type_is_float(t)) unknown(p);
    floating(p, p->base, t, 1);
}

void compile_sad(struct parser *p) {
    enum type t = next_type(p);
    same_type(p, op_or_fail(p, "sad", type_name(t)), t, 3);
}

void compile_dp4a(struct parser *p) {
    enum type a = next_type(p), b = next_type(p);
    if ((a != TYPE_S32 && a != TYPE_U32) || (b != TYPE_S32 && b != TYPE_U32)) unknown(p);
    unsigned aux = (a == TYPE_S32) | (unsigned)(b == TYPE_S32) << 1;
    plain(p, OP_dp4a, aux, TYPE_B32, TYPE_B32, TYPE_B32, TYPE_B32);
}
