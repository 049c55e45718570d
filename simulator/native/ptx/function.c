/* Functions: headers, bodies statement by statement, and their final form. */
#include "parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void skip_statement(struct parser *p) {
    while (p->token.kind != T_END && !is_punct(p, ';')) advance(p);
    expect(p, ';');
}

void parse_pragma(struct parser *p, egpu_ptx_kernel_info *info) {
    if (p->token.kind != T_STRING) syntax(p, ".pragma needs a string");
    const char *text = p->token.text, prefix[] = "egpu.duration_us";
    if (strncmp(text, prefix, sizeof prefix - 1) == 0) {
        char *stop;
        double us = strtod(text + sizeof prefix - 1, &stop);
        if (*stop || stop == text + sizeof prefix - 1 || !(us >= 0 && us <= 1e12))
            syntax(p, "'%s' needs a number of microseconds", text);
        if (!info) syntax(p, "'%s' is valid only in a kernel's body", text);
        info->has_duration = true;
        info->duration_us = us;
    }
    advance(p);
    expect(p, ';');
}

/* `.param .u64 .ptr .global .align 16 name[8]`, or `.reg .u32 name` of a device function. */
static struct formal parse_formal(struct parser *p, bool entry, uint32_t *entry_offset) {
    struct formal f = {0};
    enum type type = TYPE_NONE;
    bool reg = accept_dot(p, "reg");
    if (reg ? entry : !accept_dot(p, "param"))
        syntax(p, "a parameter must be .param%s, found %s", entry ? "" : " or .reg", describe(p));
    uint32_t align = 0;
    bool pointer = false;
    while (p->token.kind == T_DOT) {
        if (accept_dot(p, "align")) {
            uint64_t n = expect_integer(p, "an alignment");
            if (!n || n & (n - 1) || (!pointer && n > 128))
                syntax(p, "an alignment must be a power of two, at most 128");
            if (!pointer) align = (uint32_t)n; /* after .ptr it describes the pointer's target */
        } else if (accept_dot(p, "ptr")) {
            pointer = true;
        } else if (pointer && (accept_dot(p, "global") || accept_dot(p, "const") ||
                               accept_dot(p, "shared") || accept_dot(p, "local"))) {
            continue;
        } else if ((type = type_named(p->token.text)) != TYPE_NONE) {
            advance(p);
        } else {
            unsupported(p, "'.%s' of a parameter", p->token.text);
        }
    }
    if (type == TYPE_NONE || (type == TYPE_PRED && !reg)) syntax(p, "the parameter has no type");
    f.name = expect_word(p, "a parameter's name");
    uint64_t size = type_bytes(type);
    if (accept(p, '[')) {
        if (is_punct(p, ']')) unsupported(p, "a parameter list of variable length");
        size *= expect_integer(p, "an array's length");
        expect(p, ']');
    }
    if (size > 32764) unsupported(p, "a parameter of more than 32764 bytes");
    f.size = (uint32_t)size;
    f.align = align ? align : type_bytes(type) ? type_bytes(type) : 1;
    f.in_register = reg;
    struct symbol *s = declare(p, p->scope, f.name,
                               reg     ? SYM_REGISTER
                               : entry ? SYM_ENTRY_PARAM
                                       : SYM_FRAME);
    s->type = type;
    s->size = f.size;
    s->align = f.align;
    s->param = true;
    if (reg) {
        f.slot = new_register(p, type);
        s->number = f.slot;
        f.size = 8;
    } else {
        uint32_t *place = entry ? entry_offset : &p->build->frame_bytes;
        *place = align_up(*place, f.align);
        s->number = f.offset = *place;
        *place += f.size;
        if (*place > 32764 && entry) unsupported(p, "more than 32764 bytes of parameters");
    }
    return f;
}

/* Constants come first in a frame; their number is not known while a function is read. */
static uint16_t place(const struct builder *b, uint32_t slot) {
    bool is_constant = slot > MAX_SLOTS - b->constants.count;
    return (uint16_t)(is_constant ? MAX_SLOTS - slot : slot + b->constants.count);
}

static void finish_function(struct parser *p, struct function *f) {
    struct builder *b = p->build;
    emit(p, f->entry ? OP_exit : OP_ret, 0, 0, 0, 0, 0, 0); /* the end of the body returns */
    uint32_t constants = b->constants.count;
    for (uint32_t i = 0; i < b->code.count; i++) {
        struct ins *ins = &b->code.items[i];
        ins->d = place(b, ins->d), ins->a = place(b, ins->a), ins->b = place(b, ins->b),
        ins->c = place(b, ins->c);
        if (imm_is_slot((enum op)ins->op)) ins->imm = place(b, (uint32_t)ins->imm);
    }
    for (uint32_t i = 0; i < b->calls.count; i++)
        for (uint32_t k = 0; k < b->calls.items[i].args + b->calls.items[i].returns; k++)
            b->calls.items[i].actuals[k].slot = place(b, b->calls.items[i].actuals[k].slot);
    for (uint32_t i = 0; i < f->param_count; i++) f->params[i].slot = place(b, f->params[i].slot);
    for (uint32_t i = 0; i < f->return_count; i++)
        f->returns[i].slot = place(b, f->returns[i].slot);
#define MOVE(from, to, count_field)                                        \
    (f->to = keep(p, b->from.items, b->from.count, sizeof *b->from.items), \
     f->count_field = b->from.count)
    MOVE(code, code, code_count);
    MOVE(constants, constants, const_count);
    MOVE(relocs, relocs, reloc_count);
    MOVE(specials, specials, special_count);
    MOVE(calls, calls, call_count);
    MOVE(tables, tables, table_count);
    MOVE(shared, shared, shared_count);
#undef MOVE
    f->lines = keep(p, b->lines.items, b->lines.count, sizeof *b->lines.items);
    /* slot 0 of an instruction without operands must exist */
    f->slot_count = constants + b->next_register + 1;
    f->register_words = b->register_words;
    f->frame_bytes = align_up(b->frame_bytes, 16);
}

static void parse_registers(struct parser *p) {
    if (p->token.kind != T_DOT) syntax(p, ".reg needs a type");
    bool pair = strcmp(p->token.text, "f16x2") == 0 || strcmp(p->token.text, "bf16x2") == 0;
    enum type type = pair ? TYPE_B32 : type_named(p->token.text);
    if (type == TYPE_NONE) unsupported(p, "registers of type .%s", p->token.text);
    advance(p);
    do {
        const char *name = expect_word(p, "a register's name");
        if (accept(p, '<')) {
            uint64_t n = expect_integer(p, "a number of registers");
            expect(p, '>');
            if (n > 1000000) unsupported(p, "more than a million registers");
            char *range = allocate(p, strlen(name) + 2);
            sprintf(range, "%s<", name);
            struct symbol *s = declare(p, p->scope, range, SYM_REGISTERS);
            s->type = type;
            s->number = (uint32_t)n;
            p->scope->has_ranges = true;
        } else {
            struct symbol *s = declare(p, p->scope, name, SYM_REGISTER);
            s->type = type;
            s->number = scoped_register(p, type);
        }
    } while (accept(p, ','));
    expect(p, ';');
}

static void parse_label_list(struct parser *p, const char *label) {
    struct symbol *s = declare(p, p->scope, label, SYM_TARGETS);
    LIST(const char *) names = {0};
    do APPEND(p, names, expect_word(p, "a label"));
    while (accept(p, ','));
    expect(p, ';');
    struct branch_table table = {names.count, allocate(p, names.count * sizeof(uint32_t))};
    s->number = p->build->tables.count;
    APPEND(p, p->build->tables, table);
    for (uint32_t i = 0; i < names.count; i++)
        branch_fixup(p, names.items[i], 0, (int32_t)s->number, (int32_t)i);
}

static void parse_statement(struct parser *p, egpu_ptx_kernel_info *info);

static void parse_block(struct parser *p, egpu_ptx_kernel_info *info) {
    expect(p, '{');
    scope_push(p);
    while (!is_punct(p, '}')) {
        if (p->token.kind == T_END) syntax(p, "the text ends inside a function");
        parse_statement(p, info);
    }
    p->statement_line = p->token.line;
    scope_pop(p);
    expect(p, '}');
    p->statement_line = 0;
}

static void parse_directive(struct parser *p, egpu_ptx_kernel_info *info) {
    const char *name = p->token.text;
    if (strcmp(name, "loc") == 0 || strcmp(name, "file") == 0) {
        skip_line(p);
        return;
    }
    advance(p);
    if (strcmp(name, "reg") == 0)
        parse_registers(p);
    else if (strcmp(name, "local") == 0 || strcmp(name, "param") == 0 ||
             strcmp(name, "shared") == 0 || strcmp(name, "global") == 0 ||
             strcmp(name, "const") == 0)
        parse_variable(p, name, false);
    else if (strcmp(name, "pragma") == 0)
        parse_pragma(p, info);
    else if (strcmp(name, "noreturn") == 0)
        accept(p, ';');
    else
        unsupported(p, "directive '.%s' in a function", name);
}

static bool at_label(const struct parser *p) {
    const char *next = p->cursor;
    while (next < p->end && (*next == ' ' || *next == '\t')) next++;
    return p->token.kind == T_WORD && next < p->end && *next == ':';
}

static void parse_statement(struct parser *p, egpu_ptx_kernel_info *info) {
    p->statement_line = p->token.line;
    if (is_punct(p, '{')) {
        parse_block(p, info);
    } else if (accept(p, ';')) {
        /* empty */
    } else if (p->token.kind == T_DOT) {
        parse_directive(p, info);
    } else if (at_label(p)) {
        const char *label = p->token.text;
        advance(p);
        expect(p, ':');
        if (accept_dot(p, "branchtargets")) {
            parse_label_list(p, label);
        } else if (accept_dot(p, "callprototype")) {
            declare(p, p->scope, label, SYM_PROTOTYPE);
            skip_statement(p);
        } else if (accept_dot(p, "calltargets")) {
            declare(p, p->scope, label, SYM_PROTOTYPE);
            skip_statement(p);
        } else {
            declare(p, p->scope, label, SYM_LABEL)->number = p->build->code.count;
        }
    } else {
        compile_instruction(p);
        free_dying(p);
    }
    p->statement_line = 0;
}

static void parse_kernel_directives(struct parser *p, egpu_ptx_kernel_info *info) {
    while (p->token.kind == T_DOT) {
        const char *name = p->token.text;
        advance(p);
        bool exact = strcmp(name, "reqntid") == 0;
        if (exact || strcmp(name, "maxntid") == 0) {
            uint64_t n[3] = {1, 1, 1}, threads = 1;
            int i = 0;
            do n[i] = expect_integer(p, "a number of threads");
            while (accept(p, ',') && ++i < 3);
            for (i = 0; i < 3; i++) {
                if (n[i] == 0 || n[i] > 1024)
                    syntax(p, ".%s of %llu", name, (unsigned long long)n[i]);
                threads *= n[i];
                if (exact) info->required_block[i] = (uint32_t)n[i];
            }
            if (threads < info->max_threads) info->max_threads = (uint32_t)threads;
        } else if (strcmp(name, "reqnctapercluster") == 0) {
            int i = 0;
            info->required_cluster[1] = info->required_cluster[2] = 1;
            do info->required_cluster[i] = (uint32_t)expect_integer(p, "a number of blocks");
            while (accept(p, ',') && ++i < 3);
            for (i = 0; i < 3; i++)
                if (info->required_cluster[i] == 0) syntax(p, ".%s of 0", name);
        } else if (strcmp(name, "explicitcluster") == 0) {
            info->explicit_cluster = true;
        } else if (strcmp(name, "maxclusterrank") == 0 || strcmp(name, "maxnreg") == 0 ||
                   strcmp(name, "minnctapersm") == 0 || strcmp(name, "maxnctapersm") == 0 ||
                   strcmp(name, "abi_preserve") == 0 || strcmp(name, "abi_preserve_control") == 0) {
            expect_integer(p, "a number");
        } else if (strcmp(name, "noreturn") == 0) {
            continue;
        } else if (strcmp(name, "pragma") == 0) {
            parse_pragma(p, info);
        } else {
            unsupported(p, "'.%s' of a function", name);
        }
    }
}

static struct function *find_or_make(struct parser *p, const char *name, bool entry) {
    if (entry && p->linkage == OF_TEXT) p->linkage = OF_IMAGE; /* programs find it by its name */
    struct symbol *s = find_linked(p, name);
    if (s) {
        if (s->kind != SYM_FUNCTION || s->function->entry != entry)
            syntax(p, "'%s' is declared twice", name);
        return s->function;
    }
    struct function *f = allocate(p, sizeof *f);
    f->name = name;
    f->entry = entry;
    f->index = p->functions.count;
    f->line = p->token.line;
    APPEND(p, p->functions, f);
    declare_linked(p, name, SYM_FUNCTION)->function = f;
    return f;
}

static void skip_body(struct parser *p) {
    uint32_t depth = 0;
    do {
        if (p->token.kind == T_END) syntax(p, "a function without an end");
        depth += is_punct(p, '{');
        depth -= is_punct(p, '}');
        advance(p);
    } while (depth > 0);
}

void parse_function(struct parser *p, bool entry) {
    struct builder build = {0};
    LIST(struct formal) params = {0};
    LIST(struct formal) returns = {0};
    uint32_t entry_bytes = 0;
    p->build = &build;
    scope_push(p);
    if (!entry && accept(p, '(')) {
        while (!accept(p, ')')) {
            APPEND(p, returns, parse_formal(p, entry, &entry_bytes));
            if (!is_punct(p, ')')) expect(p, ',');
        }
    }
    p->build = NULL;
    const char *name = expect_word(p, "a function's name");
    struct function *f = find_or_make(p, name, entry);
    p->build = &build;
    if (accept(p, '('))
        while (!accept(p, ')')) {
            APPEND(p, params, parse_formal(p, entry, &entry_bytes));
            if (!is_punct(p, ')')) expect(p, ',');
        }
    egpu_ptx_kernel_info info = {.name = name, .max_threads = 1024, .param_bytes = entry_bytes};
    parse_kernel_directives(p, &info);
    bool repeated = f->defined && is_punct(p, '{');
    if (repeated && p->linkage != WEAK) syntax(p, "'%s' is defined twice", name);
    if (!f->defined) {
        f->params = keep(p, params.items, params.count, sizeof *params.items);
        f->returns = keep(p, returns.items, returns.count, sizeof *returns.items);
        f->param_count = params.count;
        f->return_count = returns.count;
    }
    if (repeated || accept(p, ';')) { /* a declaration, or one more weak definition */
        if (repeated) skip_body(p);
        if (!f->defined) f->code = NULL;
        p->scope = p->scope->parent;
        p->depth--;
    } else {
        f->defined = true;
        f->line = p->token.line;
        build.function = f;
        lives_scan(p);
        parse_block(p, &info);
        scope_pop(p);
        finish_function(p, f);
        if (entry) {
            egpu_ptx_param *list = allocate(p, params.count * sizeof *list);
            for (uint32_t i = 0; i < params.count; i++)
                list[i] = (egpu_ptx_param){params.items[i].offset, params.items[i].size,
                                           params.items[i].align};
            info.params = list;
            info.param_count = params.count;
            APPEND(p, p->kernels, (egpu_ptx_kernel){.info = info, .function = f});
        }
    }
    p->build = NULL;
}
