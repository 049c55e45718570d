/* Modifiers and operands, which all instructions are read with. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

/* ---- modifiers ---- */

bool mod(struct parser *p, const char *name) {
    for (uint32_t i = 0; i < p->modifier_count; i++)
        if (!p->modifier_used[i] && strcmp(p->modifiers[i], name) == 0)
            return p->modifier_used[i] = true;
    return false;
}

/* Return the index of the first of these words that is a modifier, or -1. */
int mod_of(struct parser *p, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (mod(p, names[i])) return i;
    return -1;
}

_Noreturn void unknown(struct parser *p) {
    unsupported(p, "unsupported instruction '%s'", p->mnemonic);
}

enum type next_type(struct parser *p) {
    if (p->types_used == p->type_count) unknown(p);
    return p->types[p->types_used++];
}

enum op op_or_fail(struct parser *p, const char *name, const char *suffix) {
    enum op op = op_named("%s_%s", name, suffix);
    if (op == OP_COUNT) unknown(p);
    return op;
}

/* Map signed, unsigned and untyped alike to "u32", or "b32". */
const char *unsigned_name(enum type t) {
    static const char *const names[] = {"", "u8", "u16", "", "u32", "", "", "", "u64"};
    return type_is_float(t) ? type_name(t) : names[type_bytes(t)];
}
const char *bits_name(enum type t) {
    static const char *const names[] = {"pred", "b8", "b16", "", "b32", "", "", "", "b64"};
    return type_is_float(t) ? type_name(t) : names[type_bytes(t)];
}
enum type unsigned_type(unsigned bytes) {
    return bytes == 1 ? TYPE_U8 : bytes == 2 ? TYPE_U16 : bytes == 4 ? TYPE_U32 : TYPE_U64;
}

enum round rounding(struct parser *p) {
    static const char *const names[] = {"rn", "rz", "rm", "rp", NULL};
    int i = mod_of(p, names);
    return i < 0 ? ROUND_NEAREST : (enum round)i;
}

/* ---- operands ---- */

void comma(struct parser *p) { expect(p, ','); }

void check_register(struct parser *p, const struct symbol *s, enum type want, bool wider) {
    if (want == TYPE_NONE || s->type == TYPE_NONE) return;
    bool pred = want == TYPE_PRED || s->type == TYPE_PRED;
    bool sizes =
        wider ? type_bytes(s->type) >= type_bytes(want) : type_bytes(s->type) == type_bytes(want);
    bool kinds = wider || type_is_bits(s->type) || type_is_bits(want) ||
                 type_is_float(s->type) == type_is_float(want);
    if (pred ? s->type != want : !(sizes && kinds))
        syntax(p, "register '%s' is .%s, but '%s' needs .%s here", s->name, type_name(s->type),
               p->mnemonic, type_name(want));
}

const struct symbol *register_named(struct parser *p, const char *name) {
    const struct symbol *s = find(p, name);
    if (!s) syntax(p, "unknown name '%s'", name);
    if (s->kind != SYM_REGISTER) syntax(p, "'%s' is not a register", name);
    return s;
}

uint16_t dst_wider(struct parser *p, enum type t, enum type *actual, bool wider) {
    const char *name = expect_word(p, "a register");
    if (strcmp(name, "_") == 0) return temporary(p, SINK);
    p->defining = !p->guarded;
    const struct symbol *s = register_named(p, name);
    p->defining = false;
    check_register(p, s, t, wider);
    if (actual) *actual = s->type;
    return (uint16_t)s->number;
}

uint16_t dst(struct parser *p, enum type t) { return dst_wider(p, t, NULL, false); }

static uint16_t literal(struct parser *p, enum type t) {
    bool negative = accept(p, '-'), complement = !negative && accept(p, '~');
    enum token_kind kind = p->token.kind;
    union slot v = {.u64 = p->token.integer};
    unsigned bytes = t == TYPE_NONE ? 8 : type_bytes(t);
    if (kind == T_INTEGER) {
        if (type_is_float(t))
            syntax(p, "an integer where '%s' needs a .%s", p->mnemonic, type_name(t));
        v.u64 = negative ? -v.u64 : complement ? ~v.u64 : v.u64;
        if (t == TYPE_PRED)
            v.u64 = v.u64 != 0;
        else if (bytes < 8)
            v.u64 &= (UINT64_C(1) << 8 * bytes) - 1;
    } else if ((kind == T_FLOAT32 || kind == T_FLOAT64) && !complement &&
               (type_is_float(t) || type_is_bits(t))) {
        if (kind == T_FLOAT64 && bytes == 4)
            v = (union slot){.f32 = (float)v.f64}, v.u64 = v.u32;
        else if (kind == T_FLOAT32 && bytes == 8)
            v.f64 = v.f32;
        else if (bytes < 4)
            v.u64 = t == TYPE_BF16
                        ? bfloat_from_double(kind == T_FLOAT32 ? v.f32 : v.f64, ROUND_NEAREST)
                        : half_from_double(kind == T_FLOAT32 ? v.f32 : v.f64, ROUND_NEAREST);
        if (negative) v.u64 ^= UINT64_C(1) << (8 * bytes - 1);
    } else {
        syntax(p, "expected an operand, found %s", describe(p));
    }
    advance(p);
    return constant(p, v.u64);
}

/* Return the byte offset of an array element: `[3]` after its name, if present. */
static uint64_t element_offset(struct parser *p, const struct symbol *s) {
    if (!accept(p, '[')) return 0;
    bool negative = accept(p, '-');
    uint64_t index = expect_integer(p, "an index");
    expect(p, ']');
    if (!s->element) unsupported(p, "an index into '%s'", s->name);
    return (negative ? -index : index) * s->element;
}

/* Return the value of a name: register, special register, or an address. */
static uint16_t name_operand(struct parser *p, const char *name, enum type t, bool wider) {
    uint16_t slot;
    if (strcmp(name, "WARP_SZ") == 0) return constant(p, 32);
    if (special_slot(p, name, &slot)) return slot;
    const struct symbol *s = find(p, name);
    if (!s)
        name[0] == '%' ? unsupported(p, "unknown register '%s'", name)
                       : syntax(p, "unknown name '%s'", name);
    if (s->kind == SYM_REGISTER) {
        check_register(p, s, t, wider);
        return (uint16_t)s->number;
    }
    if (t != TYPE_NONE && (type_is_float(t) || type_bytes(t) < 4))
        syntax(p, "the address of '%s' as a .%s", name, type_name(t));
    uint64_t addend = element_offset(p, s);
    while (s->kind != SYM_FUNCTION && (is_punct(p, '+') || is_punct(p, '-'))) {
        bool minus = is_punct(p, '-');
        advance(p);
        uint64_t n = expect_integer(p, "an offset");
        addend += minus ? -n : n;
    }
    switch (s->kind) {
    case SYM_VARIABLE: return address_constant(p, s->variable, addend, false);
    case SYM_ENTRY_PARAM: return constant(p, s->number + addend);
    case SYM_FUNCTION: return constant(p, WINDOW_CODE + s->function->index);
    case SYM_FRAME:
        slot = temporary(p, ADDRESS_VALUE);
        emit(p, OP_lea_frame, 0, slot, 0, 0, 0, (int32_t)(s->number + addend));
        return slot;
    default: syntax(p, "'%s' is not a value", name);
    }
}

uint16_t src_wider(struct parser *p, enum type t, bool wider) {
    if (p->token.kind != T_WORD) return literal(p, t);
    const char *name = expect_word(p, "an operand");
    return name_operand(p, name, t, wider);
}

uint16_t src(struct parser *p, enum type t) { return src_wider(p, t, false); }

/* Read a predicate, perhaps negated with '!'. */
uint16_t predicate(struct parser *p) {
    bool negated = accept(p, '!');
    uint16_t slot = src(p, TYPE_PRED);
    if (!negated) return slot;
    emit(p, OP_not_pred, 0, temporary(p, NEGATED), slot, 0, 0, 0);
    return temporary(p, NEGATED);
}

static struct address variable_address(struct parser *p, const struct symbol *s, uint64_t offset) {
    uint16_t slot = s->kind == SYM_VARIABLE ? address_constant(p, s->variable, offset, false)
                                            : constant(p, (uint64_t)s->number + offset);
    return (struct address){.symbol = s, .slot = slot};
}

static struct address element_address(struct parser *p) {
    const char *name = expect_word(p, "an address");
    const struct symbol *s = find(p, name);
    if (!s || (s->kind != SYM_VARIABLE && s->kind != SYM_FRAME) || !is_punct(p, '['))
        syntax(p, "'%s' is not an address", name);
    return variable_address(p, s, element_offset(p, s));
}

/* Read `[base+offset]` or `array[index]`. Offsets of frames, or too large for an instruction, are
 * added to the base. */
struct address address(struct parser *p) {
    struct address a = {0};
    uint64_t offset = 0;
    if (p->token.kind == T_WORD) return element_address(p);
    expect(p, '[');
    uint16_t base = 0;
    if (p->token.kind == T_WORD) {
        const char *name = expect_word(p, "an address");
        const struct symbol *s = find(p, name);
        if (!s) syntax(p, "unknown name '%s'", name);
        if (s->kind == SYM_REGISTER) {
            if (s->type == TYPE_PRED || (type_bytes(s->type) < 4 && s->type != TYPE_NONE))
                syntax(p, "register '%s' is not an address", name);
            base = (uint16_t)s->number;
        } else if (s->kind == SYM_VARIABLE || s->kind == SYM_FRAME || s->kind == SYM_ENTRY_PARAM) {
            a.symbol = s;
        } else {
            syntax(p, "'%s' is not an address", name);
        }
    } else {
        offset = expect_integer(p, "an address");
        base = constant(p, 0);
    }
    while (is_punct(p, '+') || is_punct(p, '-')) {
        bool minus = is_punct(p, '-');
        advance(p);
        minus ^= accept(p, '-');
        uint64_t n = expect_integer(p, "an offset");
        offset += minus ? -n : n;
    }
    expect(p, ']');
    bool fits = (int64_t)offset == (int32_t)offset;
    if (a.symbol) {
        a = variable_address(p, a.symbol, offset);
    } else if (fits) {
        a.slot = base;
        a.imm = (int32_t)offset;
    } else {
        a.slot = temporary(p, ADDRESS_VALUE);
        emit(p, OP_add_u64, 0, a.slot, base, constant(p, offset), 0, 0);
    }
    return a;
}

struct vector vector_of(struct parser *p, enum type t, bool write, bool wider) {
    struct vector v = {.count = 0};
    expect(p, '{');
    do {
        if (v.count == 4) syntax(p, "a vector has at most four elements");
        v.slot[v.count++] = write ? dst_wider(p, t, NULL, wider) : src_wider(p, t, wider);
    } while (accept(p, ','));
    expect(p, '}');
    return v;
}

/* ---- the end of every instruction ---- */

void finish(struct parser *p) {
    for (uint32_t i = 0; i < p->modifier_count; i++)
        if (!p->modifier_used[i])
            unsupported(p, "unsupported instruction '%s' (modifier '.%s')", p->mnemonic,
                        p->modifiers[i]);
    if (p->types_used != p->type_count) unknown(p);
    expect(p, ';');
}

void plain(struct parser *p, enum op op, unsigned aux, enum type d, enum type a, enum type b,
           enum type c) {
    uint16_t slot[4] = {dst(p, d), 0, 0, 0};
    enum type types[4] = {d, a, b, c};
    for (int i = 1; i < 4 && types[i] != TYPE_NONE; i++) {
        comma(p);
        slot[i] = src(p, types[i]);
    }
    emit(p, op, aux, slot[0], slot[1], slot[2], slot[3], 0);
    finish(p);
}

void same_type(struct parser *p, enum op op, enum type t, unsigned sources) {
    plain(p, op, 0, t, t, sources > 1 ? t : TYPE_NONE, sources > 2 ? t : TYPE_NONE);
}

/* Return a source as type `to`: halves widened, subnormals flushed. */
uint16_t widened(struct parser *p, uint16_t slot, enum type from, enum type to, bool ftz,
                 unsigned which) {
    uint16_t wide = temporary(p, which);
    if (from != to)
        emit(p, op_or_fail(p, to == TYPE_F64 ? "cvt_f64" : "cvt_f32", type_name(from)), 0, wide,
             slot, 0, 0, 0);
    else if (ftz && from == TYPE_F32)
        emit(p, OP_flush_f32, 0, wide, slot, 0, 0, 0);
    else
        return slot;
    return wide;
}
