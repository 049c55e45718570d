/* Memory: loads, stores, atomics, addresses. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

static const char *const space_names[] = {
    "global",      "shared",       "local",       "param",           "const",
    "shared::cta", "param::entry", "param::func", "shared::cluster", NULL};
static const enum space space_values[] = {SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL,
                                          SPACE_PARAM,  SPACE_CONST,  SPACE_SHARED,
                                          SPACE_PARAM,  SPACE_PARAM,  SPACE_SHARED};

static enum space space_of(struct parser *p) {
    int i = mod_of(p, space_names);
    return i < 0 ? SPACE_GENERIC : space_values[i];
}

/* Return the real space of an access, given the base of its address. */
static const char *access_space(struct parser *p, enum space space, const struct address *a) {
    if (a->symbol && a->symbol->kind == SYM_FRAME) {
        if (space != (a->symbol->param ? SPACE_PARAM : SPACE_LOCAL) && space != SPACE_GENERIC)
            syntax(p, "'%s' is not in that state space", a->symbol->name);
        return "frame";
    }
    if (a->symbol && a->symbol->kind == SYM_ENTRY_PARAM) {
        if (space != SPACE_PARAM) syntax(p, "'%s' is a parameter", a->symbol->name);
        return "param";
    }
    if (a->symbol) {
        bool shared = a->symbol->variable->kind == VAR_SHARED;
        bool constant_space = a->symbol->variable->kind == VAR_CONST;
        if (space != SPACE_GENERIC && space != (shared           ? SPACE_SHARED
                                                : constant_space ? SPACE_CONST
                                                                 : SPACE_GLOBAL))
            syntax(p, "'%s' is not in that state space", a->symbol->name);
        return shared ? "shared" : "global";
    }
    switch (space) {
    case SPACE_SHARED: return "shared";
    case SPACE_LOCAL: return "local";
    case SPACE_PARAM: return p->build->function->entry ? "param" : "local";
    case SPACE_GENERIC: return "generic";
    default: return "global";
    }
}

/* Return whether it is shared memory, or (false) a generic address that may be in it. */
bool shared_space(struct parser *p) {
    enum space space = space_of(p);
    if (space != SPACE_SHARED && space != SPACE_GENERIC) unknown(p);
    return space == SPACE_SHARED;
}

/* Return the slot of an address in shared memory; it does not overlap another address's. */
uint16_t shared_address(struct parser *p, bool shared, int32_t *offset) {
    struct address a = address(p);
    if (a.symbol && (a.symbol->kind != SYM_VARIABLE || a.symbol->variable->kind != VAR_SHARED))
        syntax(p, "'%s' is not in shared memory", a.symbol->name);
    *offset = a.imm;
    bool generic = !shared && !a.symbol;
    if (!generic && a.slot != temporary(p, ADDRESS_VALUE)) return a.slot;
    uint16_t slot = temporary(p, SCRATCH);
    emit(p, OP_cvta_to, generic ? WINDOW_SHARED >> WINDOW_SHIFT : 0, slot, a.slot, 0, 0, 0);
    return slot;
}

/* Caching hints have no effect here. Fences around the access keep the memory order. */
static void cache_hints(struct parser *p) {
    static const char *const hints[] = {"ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv",
                                        "wb",
                                        "wt",
                                        "nc",
                                        "L1::evict_normal",
                                        "L1::evict_unchanged",
                                        "L1::evict_first",
                                        "L1::evict_last",
                                        "L1::no_allocate",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B",
                                        "L2::evict_normal",
                                        "L2::evict_first",
                                        "L2::evict_last",
                                        NULL};
    while (mod_of(p, hints) >= 0) {
    }
}

/* Read the last operand of an access with .L2::cache_hint. */
static void cache_policy(struct parser *p) {
    if (!mod(p, "L2::cache_hint")) return;
    comma(p);
    src(p, TYPE_B64);
}

struct order {
    bool before, after;
};

static struct order memory_order(struct parser *p) {
    static const char *const scopes[] = {"cta", "cluster", "gpu", "sys", NULL};
    struct order o = {false, false};
    if (mod(p, "acquire"))
        o.after = true;
    else if (mod(p, "release"))
        o.before = true;
    else if (mod(p, "acq_rel"))
        o.before = o.after = true;
    else
        (void)(mod(p, "relaxed") || mod(p, "weak") || mod(p, "volatile"));
    mod_of(p, scopes);
    return o;
}

static void fence_if(struct parser *p, bool wanted) {
    if (wanted) emit(p, OP_fence, 0, 0, 0, 0, 0, 0);
}

static unsigned cache_place(struct parser *p, const char *space) {
    return space[0] == 'g' ? p->build->memory_ops++ % 32 : 0; /* RANGE_CACHE */
}

/* 16 bytes at a time: longer vectors are two accesses. */
static void emit_vector(struct parser *p, bool load, const char *where, struct address a,
                        unsigned bytes, const uint16_t *slot, unsigned count) {
    unsigned each = count * bytes > 16 ? 16 / bytes : count;
    if (each < count) { /* the first may overwrite the address */
        emit(p, OP_mov, 0, temporary(p, ADDRESS_VALUE), a.slot, 0, 0, 0);
        a.slot = temporary(p, ADDRESS_VALUE);
    }
    for (unsigned i = 0; i < count; i += each) {
        emit(p, op_named("%sv_%s", load ? "ld" : "st", where), cache_place(p, where), 0, a.slot, 0,
             0, a.imm + (int32_t)(i * bytes));
        emit(p, OP_ext, bytes, slot[i], slot[i + 1], each > 2 ? slot[i + 2] : 0,
             each > 2 ? slot[i + 3] : 0, (int32_t)each);
    }
}

void compile_ld_st(struct parser *p) {
    bool load = p->base[0] == 'l';
    struct order order = memory_order(p);
    enum space space = space_of(p);
    cache_hints(p);
    unsigned count = mod(p, "v2") ? 2 : mod(p, "v4") ? 4 : mod(p, "v8") ? 8 : 1;
    enum type t = next_type(p);
    if (t == TYPE_PRED || (!load && space == SPACE_CONST)) unknown(p);
    unsigned bytes = type_bytes(t);
    if (count * bytes > 32 || (count == 8 && bytes < 4)) unknown(p);
    uint16_t slot[8];
    enum type actual[8] = {TYPE_NONE};
    struct address a;
    if (!load) {
        a = address(p);
        comma(p);
    }
    bool braces = accept(p, '{'); /* also around a single one: Triton writes this */
    if (count > 1 && !braces) syntax(p, "expected a vector, found %s", describe(p));
    for (unsigned i = 0; i < count; i++) {
        if (i) comma(p);
        slot[i] = load ? dst_wider(p, t, &actual[i], true) : src_wider(p, t, true);
    }
    if (braces) expect(p, '}');
    if (load) {
        comma(p);
        a = address(p);
    }
    cache_policy(p);
    const char *where = access_space(p, space, &a);
    fence_if(p, order.before);
    if (count > 1)
        emit_vector(p, load, where, a, bytes, slot, count);
    else
        emit(p, op_named("%s_%s_%s", load ? "ld" : "st", where, type_name(unsigned_type(bytes))),
             cache_place(p, where), load ? slot[0] : 0, a.slot, load ? 0 : slot[0], 0, a.imm);
    fence_if(p, order.after);
    for (unsigned i = 0; load && type_is_signed(t) && i < count; i++)
        if (type_bytes(actual[i]) > bytes)
            emit(p, op_named("cvt_%s_%s", type_bytes(actual[i]) == 8 ? "s64" : "s32", type_name(t)),
                 0, slot[i], slot[i], 0, 0, 0);
    finish(p);
}

void compile_atomic(struct parser *p) {
    static const char *const names[] = {"add", "min", "max", "exch", "cas", "inc",
                                        "dec", "and", "or",  "xor",  NULL};
    bool returns = p->base[0] == 'a';
    struct order order = memory_order(p);
    enum space space = space_of(p);
    cache_hints(p);
    int which = mod_of(p, names);
    bool bfloat = mod(p, "bf16x2"), packed = bfloat || mod(p, "f16x2");
    enum type t = packed ? TYPE_B32 : next_type(p);
    if ((packed || type_is_half(t)) && (which != 0 || !mod(p, "noftz"))) unknown(p);
    if (which < 0 || (space != SPACE_GENERIC && space != SPACE_GLOBAL && space != SPACE_SHARED))
        unknown(p);
    bool swap = strcmp(names[which], "cas") == 0;
    if (!returns && (swap || strcmp(names[which], "exch") == 0)) unknown(p);
    const char *suffix = type_name(t);
    if (packed)
        suffix = bfloat ? "bf16x2" : "f16x2";
    else if (which == 0)
        suffix = type_is_bits(t) ? "" : unsigned_name(t);
    else if (which == 3 || which == 4 || which >= 7)
        suffix =
            type_is_float(t) && which < 7 ? (type_bytes(t) == 4 ? "b32" : "b64") : bits_name(t);
    char full[16];
    snprintf(full, sizeof full, "atom_%s", names[which]);
    enum op op = op_or_fail(p, full, suffix);
    uint16_t d = temporary(p, SINK);
    if (returns) {
        d = dst(p, t);
        comma(p);
    }
    struct address a = address(p);
    comma(p);
    uint16_t b = src(p, t), c = 0;
    if (swap) {
        comma(p);
        c = src(p, t);
    }
    cache_policy(p);
    const char *where = access_space(p, space, &a);
    enum space final = where[0] == 's'                ? SPACE_SHARED
                       : strcmp(where, "global") == 0 ? SPACE_GLOBAL
                                                      : SPACE_GENERIC;
    if (strcmp(where, "frame") == 0) unknown(p);
    fence_if(p, order.before);
    emit(p, op, final, d, a.slot, b, c, a.imm);
    fence_if(p, order.after);
    finish(p);
}

static unsigned window_of(enum space space) {
    return space == SPACE_SHARED  ? WINDOW_SHARED >> WINDOW_SHIFT
           : space == SPACE_LOCAL ? WINDOW_LOCAL >> WINDOW_SHIFT
           : space == SPACE_PARAM ? WINDOW_PARAM >> WINDOW_SHIFT
                                  : 0;
}

void compile_cvta(struct parser *p) {
    bool to = mod(p, "to");
    enum space space = space_of(p);
    enum type t = next_type(p);
    if (type_bytes(t) != 8 || space == SPACE_GENERIC) unknown(p);
    if (space == SPACE_PARAM && !p->build->function->entry)
        space = SPACE_LOCAL; /* a device function's parameters are in its frame */
    plain(p, to ? OP_cvta_to : OP_cvta, window_of(space), t, t, TYPE_NONE, TYPE_NONE);
}

void compile_isspacep(struct parser *p) {
    bool of_cluster = mod(p, "shared::cluster");
    enum space space = of_cluster ? SPACE_SHARED : space_of(p);
    if (space == SPACE_SHARED && !of_cluster) {
        plain(p, OP_isspacep_block, 0, TYPE_PRED, TYPE_B64, TYPE_NONE, TYPE_NONE);
        return;
    }
    if (space == SPACE_GENERIC || space == SPACE_CONST) unknown(p);
    plain(p, OP_isspacep, window_of(space), TYPE_PRED, TYPE_B64, TYPE_NONE, TYPE_NONE);
}

/* Return the same place in another block's shared memory in the cluster; or the rank of the block
 * that has the memory. */
void compile_mapa(struct parser *p) {
    mod(p, "shared::cluster");
    enum type t = next_type(p);
    if (t != TYPE_U32 && t != TYPE_U64) unknown(p);
    plain(p, OP_mapa, 0, t, t, TYPE_U32, TYPE_NONE);
}

void compile_getctarank(struct parser *p) {
    mod(p, "shared::cluster");
    enum type t = next_type(p);
    if (t != TYPE_U32 && t != TYPE_U64) unknown(p);
    plain(p, OP_getctarank, 0, TYPE_U32, t, TYPE_NONE, TYPE_NONE);
}

/* prefetch, applypriority, discard (of bytes that nobody may read then): no visible effect */
void compile_prefetch(struct parser *p) {
    static const char *const levels[] = {"L1", "L2", NULL};
    space_of(p);
    cache_hints(p);
    mod_of(p, levels);
    address(p);
    if (p->base[0] != 'p') {
        comma(p);
        expect_integer(p, "a number of bytes");
    }
    finish(p);
}

/* Compile a cache policy, which is empty. */
void compile_createpolicy(struct parser *p) {
    static const char *const primary[] = {"L2::evict_last", "L2::evict_normal", "L2::evict_first",
                                          "L2::evict_unchanged", NULL};
    if (!mod(p, "fractional") || mod_of(p, primary) < 0 || next_type(p) != TYPE_B64) unknown(p);
    mod_of(p, primary);
    uint16_t d = dst(p, TYPE_B64);
    if (accept(p, ',')) src(p, TYPE_F32);
    emit(p, OP_mov, 0, d, constant(p, 0), 0, 0, 0);
    finish(p);
}

void compile_fence(struct parser *p) {
    static const char *const words[] = {
        "sc",      "acq_rel", "cta",           "gl",      "sys", "gpu",
        "cluster", "release", "mbarrier_init", "acquire", NULL};
    if (mod(p, "proxy")) {
        static const char *const proxies[] = {"alias", "async", NULL};
        static const char *const spaces[] = {"global", "shared::cta", "shared", NULL};
        if (mod_of(p, proxies) < 0) unknown(p);
        mod_of(p, spaces);
    } else {
        while (mod_of(p, words) >= 0) {
        }
    }
    emit(p, OP_fence, 0, 0, 0, 0, 0, 0);
    finish(p);
}
