/* Branches, calls, and instructions that several threads execute together. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

/* ---- control ---- */

void compile_simple(struct parser *p) {
    static const struct {
        const char *name;
        enum op op;
    } table[] = {{"exit", OP_exit}, {"trap", OP_trap}, {"brkpt", OP_trap}, {"ret", OP_ret}};
    mod(p, "uni");
    for (unsigned i = 0; i < 4; i++)
        if (strcmp(p->base, table[i].name) == 0)
            emit(p, p->build->function->entry && table[i].op == OP_ret ? OP_exit : table[i].op, 0,
                 0, 0, 0, 0, 0);
    finish(p);
}

/* "suspends for about t": other threads get their turn anyway */
void compile_nanosleep(struct parser *p) {
    enum type t = next_type(p);
    src(p, t);
    emit(p, OP_nop, 0, 0, 0, 0, 0, 0);
    finish(p);
}

/* Hints about registers and following kernels; they have no effect here. */
void compile_hint(struct parser *p) {
    static const char *const words[] = {"inc", "dec", "launch_dependents", "wait", NULL};
    if (mod_of(p, words) < 0) unknown(p);
    if (p->base[0] == 's') {
        if (!mod(p, "sync") || !mod(p, "aligned") || next_type(p) != TYPE_U32) unknown(p);
        expect_integer(p, "a number of registers");
    }
    emit(p, OP_nop, 0, 0, 0, 0, 0, 0);
    finish(p);
}

/* An event of the performance monitor; nothing listens. */
void compile_pmevent(struct parser *p) {
    mod(p, "mask");
    expect_integer(p, "an event's number");
    emit(p, OP_nop, 0, 0, 0, 0, 0, 0);
    finish(p);
}

void compile_bra(struct parser *p, enum op op, uint16_t condition) {
    mod(p, "uni");
    const char *label = expect_word(p, "a label");
    branch_fixup(p, label, emit(p, op, 0, 0, condition, 0, 0, 0), -1, 0);
    finish(p);
}

void compile_brx(struct parser *p) {
    mod(p, "uni");
    if (!mod(p, "idx")) unknown(p);
    uint16_t index = src(p, TYPE_U32);
    comma(p);
    const char *name = expect_word(p, "a list of targets");
    const struct symbol *s = find(p, name);
    if (!s || s->kind != SYM_TARGETS) syntax(p, "'%s' is not a list of branch targets", name);
    emit(p, OP_brx, 0, 0, index, 0, 0, (int32_t)s->number);
    finish(p);
}

struct actuals {
    LIST(struct actual) list;
};

static void parse_actuals(struct parser *p, struct actuals *to, bool returned) {
    expect(p, '(');
    while (!accept(p, ')')) {
        struct actual a = {.in_register = true, .size = 8};
        const struct symbol *s = p->token.kind == T_WORD ? find(p, p->token.text) : NULL;
        if (s && s->kind == SYM_FRAME && s->param) {
            a = (struct actual){.in_register = false, .offset = s->number, .size = s->size};
            advance(p);
        } else if (returned) {
            a.slot = dst(p, TYPE_NONE);
        } else {
            a.slot = src(p, TYPE_NONE);
        }
        APPEND(p, to->list, a);
        if (!is_punct(p, ')')) expect(p, ',');
    }
}

void compile_call(struct parser *p) {
    mod(p, "uni");
    struct call_site site = {0};
    struct actuals actuals = {0};
    if (is_punct(p, '(')) {
        parse_actuals(p, &actuals, true);
        comma(p);
    }
    site.returns = actuals.list.count;
    const char *name = expect_word(p, "a function");
    struct symbol *s = find(p, name);
    uint16_t pointer = 0;
    if (s && s->kind == SYM_REGISTER) {
        check_register(p, s, TYPE_B64, false);
        pointer = (uint16_t)s->number;
        p->build->function->indirect = true;
    } else if (s && s->kind == SYM_FUNCTION) {
        site.callee = s->function;
    } else {
        syntax(p, "'%s' is not a function", name);
    }
    if (accept(p, ',')) {
        if (is_punct(p, '(')) {
            parse_actuals(p, &actuals, false);
            if (accept(p, ',')) expect_word(p, "a prototype");
        } else {
            expect_word(p, "a prototype");
        }
    }
    site.args = actuals.list.count - site.returns;
    site.actuals = keep(p, actuals.list.items, actuals.list.count, sizeof *actuals.list.items);
    uint32_t index = p->build->calls.count;
    APPEND(p, p->build->calls, site);
    emit(p, OP_call, 0, 0, pointer, 0, 0, (int32_t)index);
    finish(p);
}

/* ---- threads together ---- */

void compile_shfl(struct parser *p) {
    static const char *const modes[] = {"up", "down", "bfly", "idx", NULL};
    int mode = mod_of(p, modes);
    if (mode < 0 || !mod(p, "sync") || type_bytes(next_type(p)) != 4) unknown(p);
    uint16_t d = dst(p, TYPE_B32), inside = 0;
    bool has = accept(p, '|');
    if (has) inside = dst(p, TYPE_PRED);
    comma(p);
    uint16_t a = src(p, TYPE_B32);
    comma(p);
    uint16_t b = src(p, TYPE_B32);
    comma(p);
    uint16_t c = src(p, TYPE_B32);
    comma(p);
    uint16_t mask = src(p, TYPE_B32);
    emit(p, OP_shfl, (unsigned)mode, d, a, b, c, 0);
    emit(p, OP_ext, 0, inside, mask, 0, 0, has);
    finish(p);
}

void compile_vote(struct parser *p) {
    static const char *const modes[] = {"all", "any", "uni", "ballot", NULL};
    int mode = mod_of(p, modes);
    if (mode < 0 || !mod(p, "sync")) unknown(p);
    enum type t = next_type(p);
    if (mode == VOTE_BALLOT ? t != TYPE_B32 : t != TYPE_PRED) unknown(p);
    uint16_t d = dst(p, t);
    comma(p);
    uint16_t a = predicate(p);
    comma(p);
    uint16_t mask = src(p, TYPE_B32);
    emit(p, OP_vote, (unsigned)mode, d, a, 0, 0, 0);
    emit(p, OP_ext, 0, 0, mask, 0, 0, 0);
    finish(p);
}

void compile_match(struct parser *p) {
    bool all = mod(p, "all");
    if ((!all && !mod(p, "any")) || !mod(p, "sync")) unknown(p);
    enum type t = next_type(p);
    if (t != TYPE_B32 && t != TYPE_B64) unknown(p);
    uint16_t d = dst(p, TYPE_B32), same = 0;
    bool has = all && accept(p, '|');
    if (has) same = dst(p, TYPE_PRED);
    comma(p);
    uint16_t a = src(p, t);
    comma(p);
    uint16_t mask = src(p, TYPE_B32);
    emit(p, all ? OP_match_all : OP_match_any, 8 * type_bytes(t), d, a, 0, 0, 0);
    emit(p, OP_ext, 0, same, mask, 0, 0, has);
    finish(p);
}

void compile_redux(struct parser *p) {
    static const char *const names[] = {"add", "min", "max", "and", "or", "xor", NULL};
    int which = mod_of(p, names);
    if (which < 0 || !mod(p, "sync")) unknown(p);
    enum type t = next_type(p);
    if (type_bytes(t) != 4 || type_is_float(t) || (which > 2) != (t == TYPE_B32)) unknown(p);
    bool sign = type_is_signed(t);
    enum redux_mode modes[] = {REDUX_ADD,
                               sign ? REDUX_MIN_S : REDUX_MIN_U,
                               sign ? REDUX_MAX_S : REDUX_MAX_U,
                               REDUX_AND,
                               REDUX_OR,
                               REDUX_XOR};
    uint16_t d = dst(p, t);
    comma(p);
    uint16_t a = src(p, t);
    comma(p);
    uint16_t mask = src(p, TYPE_B32);
    emit(p, OP_redux, modes[which], d, a, 0, 0, 0);
    emit(p, OP_ext, 0, 0, mask, 0, 0, 0);
    finish(p);
}

void compile_elect(struct parser *p) {
    if (!mod(p, "sync")) unknown(p);
    uint16_t d = dst(p, TYPE_B32);
    expect(p, '|');
    uint16_t leader = dst(p, TYPE_PRED);
    comma(p);
    uint16_t mask = src(p, TYPE_B32);
    emit(p, OP_elect, 0, d, 0, 0, 0, 0);
    emit(p, OP_ext, 0, leader, mask, 0, 0, 0);
    finish(p);
}

void compile_activemask(struct parser *p) {
    if (next_type(p) != TYPE_B32) unknown(p);
    uint16_t d = dst(p, TYPE_B32);
    emit(p, OP_activemask, 0, d, 0, 0, 0, 0);
    emit(p, OP_ext, 0, 0, 0, 0, 0, 0);
    finish(p);
}

static bool at_predicate(struct parser *p) {
    if (is_punct(p, '!')) return true;
    const struct symbol *s = p->token.kind == T_WORD ? find(p, p->token.text) : NULL;
    return s && s->kind == SYM_REGISTER && s->type == TYPE_PRED;
}

/* Memory modifiers have no effect: the blocks of a cluster run on one thread. */
static void compile_cluster_barrier(struct parser *p) {
    static const char *const words[] = {"acquire", "release", "relaxed", "aligned", NULL};
    bool arrives = mod(p, "arrive");
    if (!arrives && !mod(p, "wait")) unknown(p);
    while (mod_of(p, words) >= 0) {
    }
    emit(p, OP_bar_cluster, arrives ? CLUSTER_ARRIVE : CLUSTER_WAIT, 0, 0, 0, 0, 0);
    finish(p);
}

void compile_bar(struct parser *p) {
    if (mod(p, "cluster")) {
        compile_cluster_barrier(p);
        return;
    }
    if (mod(p, "warp")) {
        if (!mod(p, "sync")) unknown(p);
        uint16_t mask = src(p, TYPE_B32);
        emit(p, OP_warp_sync, 0, 0, 0, 0, 0, 0);
        emit(p, OP_ext, 0, 0, mask, 0, 0, 0);
        finish(p);
        return;
    }
    static const char *const reductions[] = {"and", "or", "popc", NULL};
    mod(p, "cta");
    mod(p, "aligned");
    unsigned mode = BAR_SYNC;
    uint16_t d = 0, count = 0, c = 0;
    if (mod(p, "red")) {
        int which = mod_of(p, reductions);
        if (which < 0) unknown(p);
        mode = BAR_AND + (unsigned)which;
        enum type t = next_type(p);
        if (mode == BAR_POPC ? type_bytes(t) != 4 : t != TYPE_PRED) unknown(p);
        d = dst(p, t);
        comma(p);
    } else if (mod(p, "arrive")) {
        mode = BAR_ARRIVE;
    } else if (!mod(p, "sync")) {
        unknown(p);
    }
    if (p->token.kind == T_INTEGER && p->token.integer > 15)
        syntax(p, "a block has barriers 0 to 15");
    uint16_t id = src(p, TYPE_U32);
    bool has_count = false;
    if (accept(p, ',')) {
        has_count = mode < BAR_AND || !at_predicate(p);
        if (has_count) count = src(p, TYPE_U32);
        if (mode >= BAR_AND) {
            if (has_count) comma(p);
            c = predicate(p);
        }
    } else if (mode >= BAR_AND || mode == BAR_ARRIVE) {
        syntax(p, "'%s' needs another operand", p->mnemonic);
    }
    emit(p, OP_bar, mode, d, id, count, c, 0);
    emit(p, OP_ext, 0, 0, 0, 0, 0, has_count);
    finish(p);
}
