/* One PTX instruction → decoded instructions: the table of mnemonics, and guards. */
#include "compile.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    void (*compile)(struct parser *p);
} instructions[] = {
    {"add", compile_add},
    {"sub", compile_add},
    {"addc", compile_add},
    {"subc", compile_add},
    {"mul", compile_mul},
    {"mul24", compile_mul24},
    {"mad24", compile_mul24},
    {"mad", compile_mad},
    {"madc", compile_mad},
    {"fma", compile_mad},
    {"div", compile_div},
    {"rem", compile_div},
    {"abs", compile_abs_neg},
    {"neg", compile_abs_neg},
    {"min", compile_min_max},
    {"max", compile_min_max},
    {"sqrt", compile_function},
    {"rcp", compile_function},
    {"rsqrt", compile_function},
    {"sin", compile_function},
    {"cos", compile_function},
    {"ex2", compile_function},
    {"lg2", compile_function},
    {"tanh", compile_function},
    {"sad", compile_sad},
    {"dp4a", compile_dot},
    {"dp2a", compile_dot},
    {"and", compile_logic},
    {"or", compile_logic},
    {"xor", compile_logic},
    {"not", compile_logic},
    {"cnot", compile_logic},
    {"shl", compile_shift},
    {"shr", compile_shift},
    {"shf", compile_shf},
    {"bfe", compile_bfe},
    {"bfi", compile_bfi},
    {"popc", compile_count_bits},
    {"clz", compile_count_bits},
    {"brev", compile_count_bits},
    {"bfind", compile_bfind},
    {"bmsk", compile_bmsk},
    {"fns", compile_fns},
    {"szext", compile_szext},
    {"prmt", compile_prmt},
    {"lop3", compile_lop3},
    {"setp", compile_setp},
    {"set", compile_set},
    {"selp", compile_selp},
    {"slct", compile_slct},
    {"testp", compile_testp},
    {"copysign", compile_copysign},
    {"mov", compile_mov},
    {"cvt", compile_cvt},
    {"ld", compile_ld_st},
    {"ldu", compile_ld_st},
    {"st", compile_ld_st},
    {"atom", compile_atomic},
    {"red", compile_atomic},
    {"cvta", compile_cvta},
    {"isspacep", compile_isspacep},
    {"mapa", compile_mapa},
    {"getctarank", compile_getctarank},
    {"prefetch", compile_prefetch},
    {"prefetchu", compile_prefetch},
    {"applypriority", compile_prefetch},
    {"discard", compile_prefetch},
    {"tex", compile_tex},
    {"tld4", compile_tld4},
    {"txq", compile_query},
    {"suq", compile_query},
    {"suld", compile_surface},
    {"sust", compile_surface},
    {"createpolicy", compile_createpolicy},
    {"cp", compile_cp},
    {"mbarrier", compile_mbarrier},
    {"ldmatrix", compile_ldmatrix},
    {"stmatrix", compile_ldmatrix},
    {"mma", compile_mma},
    {"wmma", compile_wmma},
    {"wgmma", compile_wgmma},
    {"membar", compile_fence},
    {"fence", compile_fence},
    {"exit", compile_simple},
    {"ret", compile_simple},
    {"trap", compile_simple},
    {"brkpt", compile_simple},
    {"setmaxnreg", compile_hint},
    {"griddepcontrol", compile_hint},
    {"pmevent", compile_pmevent},
    {"nanosleep", compile_nanosleep},
    {"brx", compile_brx},
    {"call", compile_call},
    {"shfl", compile_shfl},
    {"vote", compile_vote},
    {"match", compile_match},
    {"redux", compile_redux},
    {"elect", compile_elect},
    {"activemask", compile_activemask},
    {"bar", compile_bar},
    {"barrier", compile_bar},
};

static void read_mnemonic(struct parser *p) {
    p->base = expect_word(p, "an instruction");
    p->modifier_count = p->type_count = p->types_used = 0;
    size_t length = strlen(p->base);
    const char *words[MAX_MODIFIERS + 4];
    unsigned count = 0;
    while (p->token.kind == T_DOT) {
        if (count == MAX_MODIFIERS)
            unsupported(p, "instruction '%s' with more than %d modifiers", p->base, MAX_MODIFIERS);
        const char *word = p->token.text;
        enum type type = type_named(word);
        if (type != TYPE_NONE && p->type_count < 4) {
            p->types[p->type_count++] = type;
        } else {
            p->modifiers[p->modifier_count] = word;
            p->modifier_used[p->modifier_count++] = false;
        }
        words[count++] = word;
        length += strlen(word) + 1;
        advance(p);
    }
    char *full = allocate(p, length + 1), *end = full;
    end += sprintf(end, "%s", p->base);
    for (unsigned i = 0; i < count; i++) end += sprintf(end, ".%s", words[i]);
    p->mnemonic = full;
}

void compile_instruction(struct parser *p) {
    bool guarded = accept(p, '@'), negated = guarded && accept(p, '!');
    uint16_t guard = 0;
    p->guarded = guarded;
    if (guarded) {
        p->mnemonic = "@";
        const struct symbol *s = register_named(p, expect_word(p, "a predicate"));
        check_register(p, s, TYPE_PRED, false);
        guard = (uint16_t)s->number;
    }
    read_mnemonic(p);
    if (strcmp(p->base, "bra") == 0) {
        compile_bra(p, !guarded ? OP_bra : negated ? OP_bra_unless : OP_bra_if, guard);
        return;
    }
    for (unsigned i = 0; i < sizeof instructions / sizeof *instructions; i++)
        if (strcmp(p->base, instructions[i].name) == 0) {
            uint32_t skip =
                guarded ? emit(p, negated ? OP_skip_if : OP_skip_unless, 0, 0, guard, 0, 0, 0) : 0;
            instructions[i].compile(p);
            if (guarded) p->build->code.items[skip].imm = (int32_t)(p->build->code.count - skip);
            return;
        }
    unknown(p);
}
