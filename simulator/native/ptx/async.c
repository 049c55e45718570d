/* Copies that run beside a thread, and barriers in shared memory that count arrivals. */
#include "compile.h"

#include <string.h>

static void compile_cp_async(struct parser *p) {
    static const char *const hints[] = {"L2::64B", "L2::128B", "L2::256B", NULL};
    bool all = mod(p, "ca");
    if ((!all && !mod(p, "cg")) || !mod(p, "global") ||
        (!mod(p, "shared") && !mod(p, "shared::cta")))
        unknown(p);
    mod_of(p, hints);
    bool hinted = mod(p, "L2::cache_hint");
    int32_t to_offset;
    uint16_t to = shared_address(p, true, &to_offset);
    comma(p);
    struct address from = address(p);
    if (from.symbol &&
        (from.symbol->kind != SYM_VARIABLE || from.symbol->variable->kind != VAR_GLOBAL))
        syntax(p, "'%s' is not in global memory", from.symbol->name);
    comma(p);
    uint64_t bytes = expect_integer(p, "4, 8 or 16 bytes");
    if (bytes != 16 && (!all || (bytes != 4 && bytes != 8)))
        syntax(p, "'%s' copies %s bytes", p->mnemonic, all ? "4, 8 or 16" : "16");
    uint16_t given = constant(p, bytes);
    if (accept(p, ',')) { /* fewer bytes; or a predicate: no copy at all; or the policy */
        const struct symbol *s = p->token.kind == T_WORD ? find(p, p->token.text) : NULL;
        bool ignore = is_punct(p, '!') || (s && s->kind == SYM_REGISTER && s->type == TYPE_PRED);
        if (ignore) {
            uint16_t ignored = predicate(p);
            emit(p, OP_selp, 0, temporary(p, RESULT), constant(p, 0), given, ignored, 0);
            given = temporary(p, RESULT);
        } else if (hinted && s && type_bytes(s->type) == 8) {
            src(p, TYPE_B64);
            hinted = false;
        } else {
            given = src(p, TYPE_U32);
        }
        if (hinted) {
            comma(p);
            src(p, TYPE_B64);
        }
    } else if (hinted) {
        syntax(p, "'%s' needs a policy", p->mnemonic);
    }
    emit(p, OP_cp_async, (unsigned)bytes, 0, to, given, 0, to_offset);
    emit(p, OP_ext, 0, 0, from.slot, 0, 0, from.imm);
    finish(p);
}

/* This thread arrives at the barrier when its copies have ended: they end now. */
static void compile_cp_arrive(struct parser *p) {
    bool counted = mod(p, "noinc"), shared = shared_space(p);
    int32_t offset;
    if (!mod(p, "arrive") || next_type(p) != TYPE_B64) unknown(p);
    uint16_t a = shared_address(p, shared, &offset);
    emit(p, OP_cp_wait_all, 0, 0, 0, 0, 0, 0);
    if (counted) { /* otherwise the arrival was added to the expected ones */
        emit(p, OP_mbarrier, MBARRIER_ARRIVE, temporary(p, SINK), a, constant(p, 1), 0, offset);
        emit(p, OP_ext, 0, 0, 0, 0, 0, 0);
    }
    finish(p);
}

void compile_cp(struct parser *p) {
    if (!mod(p, "async")) unknown(p);
    if (mod(p, "mbarrier")) {
        compile_cp_arrive(p);
    } else if (mod(p, "commit_group")) {
        emit(p, OP_cp_commit, 0, 0, 0, 0, 0, 0);
        finish(p);
    } else if (mod(p, "wait_group")) {
        uint64_t groups = expect_integer(p, "a number of groups");
        emit(p, OP_cp_wait, groups > UINT16_MAX ? UINT16_MAX : (unsigned)groups, 0, 0, 0, 0, 0);
        finish(p);
    } else if (mod(p, "wait_all")) {
        emit(p, OP_cp_wait_all, 0, 0, 0, 0, 0, 0);
        finish(p);
    } else {
        compile_cp_async(p);
    }
}

static enum mbarrier_mode mbarrier_mode(struct parser *p) {
    static const char *const names[] = {"init",        "inval",    "expect_tx",
                                        "complete_tx", "arrive",   "arrive_drop",
                                        "test_wait",   "try_wait", NULL};
    static const enum mbarrier_mode modes[] = {
        MBARRIER_INIT,   MBARRIER_INVALIDATE,  MBARRIER_EXPECT, MBARRIER_COMPLETE,
        MBARRIER_ARRIVE, MBARRIER_ARRIVE_DROP, MBARRIER_TEST,   MBARRIER_TEST};
    if (mod(p, "arrive")) return mod(p, "expect_tx") ? MBARRIER_ARRIVE_EXPECT : MBARRIER_ARRIVE;
    int which = mod_of(p, names);
    if (which < 0) unknown(p);
    if (modes[which] == MBARRIER_TEST && mod(p, "parity")) return MBARRIER_TEST_PARITY;
    return modes[which];
}

void compile_mbarrier(struct parser *p) {
    static const char *const order[] = {"release", "acquire", "relaxed", "cta", "cluster", NULL};
    bool patient = strstr(p->mnemonic, ".try_wait") != NULL;
    enum mbarrier_mode mode = mbarrier_mode(p);
    while (mod_of(p, order) >= 0) {
    }
    (void)(mode == MBARRIER_ARRIVE && mod(p, "noComplete"));
    bool shared = shared_space(p), test = mode >= MBARRIER_TEST;
    if (next_type(p) != TYPE_B64) unknown(p);
    uint16_t d = temporary(p, SINK), operand = constant(p, 1);
    if (mode >= MBARRIER_ARRIVE) { /* an arrival's state may be left out together with its comma */
        if (!is_punct(p, '[')) {
            d = dst(p, test ? TYPE_PRED : TYPE_B64);
            comma(p);
        }
    }
    int32_t offset;
    uint16_t a = shared_address(p, shared, &offset);
    if (mode == MBARRIER_INIT || mode == MBARRIER_EXPECT || mode == MBARRIER_COMPLETE ||
        mode == MBARRIER_ARRIVE_EXPECT || test) {
        comma(p);
        operand = src(p, mode == MBARRIER_TEST ? TYPE_B64 : TYPE_U32);
    } else if (mode != MBARRIER_INVALIDATE && accept(p, ',')) {
        operand = src(p, TYPE_U32);
    }
    if (patient && accept(p, ',')) src(p, TYPE_U32); /* time limit */
    emit(p, OP_mbarrier, mode, d, a, operand, 0, offset);
    emit(p, OP_ext, 0, 0, 0, 0, 0, 0);
    if (patient) emit(p, OP_yield_unless, 0, 0, d, 0, 0, 0);
    finish(p);
}
