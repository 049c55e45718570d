/* Variables of all state spaces, with their initialisers. */
#include "parse.h"

#include <string.h>

#define MAX_VARIABLE_BYTES (UINT64_C(1) << 32)
enum { MAX_FRAME_BYTES = 1 << 20, MAX_INITIALISER_BYTES = 1 << 30 };

static bool store_scalar(struct parser *p, struct variable *v, enum type type, uint64_t *at) {
    unsigned bytes = type_bytes(type);
    if (*at + bytes > v->size) syntax(p, "too many initial values for '%s'", v->name);
    bool negative = accept(p, '-');
    uint64_t bits = 0;
    if (p->token.kind == T_INTEGER) {
        bits = p->token.integer;
        union slot s = {.u64 = negative ? -bits : bits};
        if (type == TYPE_F32)
            s.f32 = (float)s.s64;
        else if (type == TYPE_F64)
            s.f64 = (double)s.s64;
        bits = s.u64;
    } else if (p->token.kind == T_FLOAT32 || p->token.kind == T_FLOAT64) {
        union slot s = {.u64 = p->token.integer};
        if (p->token.kind == T_FLOAT64 && bytes == 4)
            s.f32 = (float)s.f64;
        else if (p->token.kind == T_FLOAT32 && bytes == 8)
            s.f64 = s.f32;
        if (bytes < 4)
            unsupported(p, "a float as initial value of .%s '%s'", type_name(type), v->name);
        bits = negative ? s.u64 ^ UINT64_C(1) << (bytes * 8 - 1) : s.u64;
    } else {
        return false;
    }
    advance(p);
    memcpy(v->init + *at, &bits, bytes);
    *at += bytes;
    return true;
}

/* Store `symbol`, `generic(symbol)`, `symbol+4`: filled in when addresses are known. */
static void store_address(struct parser *p, struct variable *v, enum type type, uint64_t *at) {
    unsigned bytes = type_bytes(type);
    bool generic = accept_word(p, "generic");
    if (generic) expect(p, '(');
    const char *name = expect_word(p, "an initial value");
    struct symbol *s = find(p, name);
    if (generic) expect(p, ')');
    if (s && s->kind == SYM_FUNCTION) {
        uint64_t code = WINDOW_CODE + s->function->index;
        if (bytes != 8 || *at + 8 > v->size)
            unsupported(p, "a function's address in .%s", type_name(type));
        memcpy(v->init + *at, &code, 8);
        *at += 8;
        return;
    }
    if (!s || s->kind != SYM_VARIABLE || s->variable->kind == VAR_SHARED)
        unsupported(p, "'%s' as an initial value", name);
    uint64_t addend = 0;
    if (is_punct(p, '+') || is_punct(p, '-')) {
        bool minus = is_punct(p, '-');
        advance(p);
        addend = expect_integer(p, "an offset");
        addend = minus ? -addend : addend;
    }
    if (bytes != 8 || *at + 8 > v->size)
        unsupported(p, "an address in a .%s initialiser", type_name(type));
    APPEND(p, p->data_relocs, (struct data_reloc){v, s->variable, *at, addend, bytes});
    *at += bytes;
}

static void parse_values(struct parser *p, struct variable *v, enum type type, uint64_t *at,
                         unsigned depth) {
    if (depth > 8) syntax(p, "initial values nested too deep");
    if (!accept(p, '{')) {
        if (!store_scalar(p, v, type, at)) store_address(p, v, type, at);
        return;
    }
    while (!accept(p, '}')) {
        parse_values(p, v, type, at, depth + 1);
        if (!is_punct(p, '}')) expect(p, ',');
    }
}

static struct variable *new_variable(struct parser *p, const char *space, const char *name) {
    struct variable *v = allocate(p, sizeof *v);
    v->name = name;
    v->kind = strcmp(space, "shared") == 0  ? VAR_SHARED
              : strcmp(space, "const") == 0 ? VAR_CONST
                                            : VAR_GLOBAL;
    v->line = p->token.line;
    v->index = p->variables.count;
    APPEND(p, p->variables, v);
    return v;
}

/* Return the variable of a declaration. NULL: it repeats another. */
static struct variable *variable_of(struct parser *p, const char *space, const char *name,
                                    bool external, uint32_t element) {
    if (strcmp(space, "shared") == 0) p->linkage = OF_TEXT; /* each text's own */
    struct symbol *known = p->build ? NULL : find_linked(p, name);
    bool shared = known && known->kind == SYM_VARIABLE && known->variable->kind == VAR_SHARED;
    if (known && known->kind == SYM_VARIABLE && !shared) {
        if (known->variable->external) return known->variable;
        if (external || p->linkage == WEAK) return NULL;
    }
    struct variable *v = new_variable(p, space, name);
    struct symbol *s =
        p->build ? declare(p, p->scope, name, SYM_VARIABLE) : declare_linked(p, name, SYM_VARIABLE);
    s->variable = v;
    s->element = element;
    return v;
}

/* Parse everything after the state space, including the semicolon: `.align 4 .b8 name[16], other =
 * 3;` */
void parse_variable(struct parser *p, const char *space, bool external) {
    uint64_t align = 0;
    unsigned vector = 1;
    enum type type = TYPE_NONE;
    while (p->token.kind == T_DOT) {
        if (accept_dot(p, "align")) {
            align = expect_integer(p, "an alignment");
            if (!align || align & (align - 1) || align > 4096)
                syntax(p, "an alignment must be a power of two");
        } else if (accept_dot(p, "attribute")) {
            expect(p, '(');
            if (!accept_dot(p, "managed")) unsupported(p, "attribute %s", describe(p));
            expect(p, ')');
        } else if (accept_dot(p, "v2")) {
            vector = 2;
        } else if (accept_dot(p, "v4")) {
            vector = 4;
        } else if ((type = type_named(p->token.text)) != TYPE_NONE && type != TYPE_PRED) {
            advance(p);
        } else {
            unsupported(p, "'.%s' of a .%s variable", p->token.text, space);
        }
    }
    if (type == TYPE_NONE) syntax(p, "a .%s variable without a type", space);
    bool local = strcmp(space, "local") == 0 || strcmp(space, "param") == 0;
    if (local && !p->build) unsupported(p, ".%s outside a function", space);
    do {
        const char *name = expect_word(p, "a name");
        uint64_t size = (uint64_t)type_bytes(type) * vector;
        bool open_ended = false;
        uint32_t element = (uint32_t)size, dimensions = 0;
        for (; accept(p, '['); dimensions++) {
            uint64_t n = 0;
            if (is_punct(p, ']'))
                open_ended = true;
            else
                n = expect_integer(p, "an array's length");
            expect(p, ']');
            if (n && size > MAX_VARIABLE_BYTES / n) unsupported(p, "a variable of more than 4 GiB");
            size = open_ended && !n ? size : size * n;
        }
        if (dimensions != 1) element = 0;
        uint64_t alignment = align ? align : (uint64_t)type_bytes(type) * vector;
        if (local) {
            if (size > MAX_FRAME_BYTES ||
                p->build->frame_bytes + size + alignment > MAX_FRAME_BYTES)
                unsupported(p, "more than 1 MiB of local memory per thread");
            struct symbol *s = declare(p, p->scope, name, SYM_FRAME);
            p->build->frame_bytes = align_up(p->build->frame_bytes, (uint32_t)alignment);
            *s = (struct symbol){.next = s->next,
                                 .name = name,
                                 .kind = SYM_FRAME,
                                 .type = type,
                                 .number = p->build->frame_bytes,
                                 .size = (uint32_t)size,
                                 .align = (uint32_t)alignment,
                                 .element = element,
                                 .param = space[0] == 'p'};
            p->build->frame_bytes += (uint32_t)size;
            continue;
        }
        struct variable *v = variable_of(p, space, name, external, element);
        if (!v) {
            while (p->token.kind != T_END && !is_punct(p, ';')) advance(p);
            break;
        }
        v->external = external;
        v->size = external && v->kind == VAR_SHARED ? 0 : size;
        v->align = alignment;
        if (open_ended && !external) v->size = 0;
        if (accept(p, '=')) {
            if (v->kind == VAR_SHARED || external)
                syntax(p, "'%s' cannot have initial values", name);
            if (open_ended)
                unsupported(p, "'%s[]' whose length follows from its initial values", name);
            if (v->size > MAX_INITIALISER_BYTES)
                unsupported(p, "initial values of more than 1 GiB");
            v->init = allocate(p, v->size);
            uint64_t at = 0;
            parse_values(p, v, type, &at, 0);
        } else if (open_ended && !external) {
            syntax(p, "'%s[]' has no length", name);
        }
    } while (accept(p, ','));
    expect(p, ';');
}
