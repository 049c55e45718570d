/* A module's text: its directives, in order. Entry point: egpu_ptx_load. */
#include "parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Skip debug sections: they have no effect. */
static void skip_block(struct parser *p) {
    while (p->token.kind != T_END && !is_punct(p, '{')) advance(p);
    expect(p, '{');
    while (p->token.kind != T_END && !is_punct(p, '}')) advance(p);
    expect(p, '}');
}

void skip_line(struct parser *p) /* .loc, .file: they end with their line */
{
    uint32_t line = p->token.line;
    while (p->token.kind != T_END && p->token.line == line) advance(p);
}

/* A linked image is several texts. */
static void begin_text(struct parser *p) {
    p->scope = p->image_scope;
    p->depth = 1;
    scope_push(p);
    p->module_scope = p->scope;
}

static void parse_version(struct parser *p) {
    if (p->has_target) begin_text(p);
    if (p->token.kind != T_FLOAT64) syntax(p, ".version needs a number like 8.0");
    union slot v = {.u64 = p->token.integer};
    if (!(v.f64 >= 1.0 && v.f64 < 100.0)) syntax(p, "impossible .version");
    uint32_t version = (uint32_t)(v.f64 * 10 + 0.5);
    if (version > p->module->ptx_version) p->module->ptx_version = version;
    p->has_version = true;
    advance(p);
}

static void parse_target(struct parser *p) {
    do {
        const char *name = expect_word(p, "a target");
        bool is_card = strncmp(name, "sm_", 3) == 0;
        uint32_t target = is_card ? (uint32_t)strtoul(name + 3, NULL, 10) : 0;
        if (target > p->module->target) p->module->target = target;
        if (!is_card && strcmp(name, "debug") != 0 && strcmp(name, "texmode_unified") != 0 &&
            strcmp(name, "texmode_independent") != 0 && strcmp(name, "map_f64_to_f32") != 0)
            unsupported(p, "target '%s'", name);
    } while (accept(p, ','));
    p->has_target = true;
}

static void parse_declaration(struct parser *p) {
    bool external = false;
    p->linkage = OF_TEXT;
    while (p->token.kind == T_DOT) {
        const char *name = p->token.text;
        p->statement_line = 0;
        if (strcmp(name, "loc") == 0 || strcmp(name, "file") == 0) {
            skip_line(p);
            return;
        }
        advance(p);
        if (strcmp(name, "extern") == 0) {
            external = true;
            p->linkage = OF_IMAGE;
        } else if (strcmp(name, "visible") == 0) {
            p->linkage = OF_IMAGE;
        } else if (strcmp(name, "weak") == 0 || strcmp(name, "common") == 0) {
            p->linkage = WEAK;
        } else if (strcmp(name, "entry") == 0 || strcmp(name, "func") == 0) {
            parse_function(p, name[0] == 'e');
            return;
        } else if (strcmp(name, "global") == 0 || strcmp(name, "const") == 0 ||
                   strcmp(name, "shared") == 0) {
            parse_variable(p, name, external);
            return;
        } else if (strcmp(name, "version") == 0) {
            parse_version(p);
            return;
        } else if (strcmp(name, "target") == 0) {
            parse_target(p);
            return;
        } else if (strcmp(name, "address_size") == 0) {
            if (expect_integer(p, "an address size") != 64)
                unsupported(p, ".address_size other than 64");
            return;
        } else if (strcmp(name, "section") == 0) {
            skip_block(p);
            return;
        } else if (strcmp(name, "pragma") == 0) {
            parse_pragma(p, NULL);
            return;
        } else {
            unsupported(p, "directive '.%s'", name);
        }
    }
    syntax(p, "expected a directive, found %s", describe(p));
}

/* CUDA's device runtime defines this function for kernels: a graph's conditional handle is the
 * address of its value. */
static const char set_conditional[] =
    ".func cudaGraphSetConditional(.param .b64 handle, .param .b32 value) {\n"
    ".reg .b64 %at; .reg .b32 %what;\n"
    "ld.param.b64 %at, [handle]; ld.param.b32 %what, [value]; st.b32 [%at], %what; ret; }\n";

static void parse_device_runtime(struct parser *p) {
    const struct symbol *s = find(p, "cudaGraphSetConditional");
    if (!s || s->kind != SYM_FUNCTION || s->function->defined) return;
    p->cursor = set_conditional;
    p->end = set_conditional + sizeof set_conditional - 1;
    advance(p);
    while (p->token.kind != T_END) parse_declaration(p);
}

static void parse_module(struct parser *p) {
    p->scope = NULL;
    scope_push(p);
    p->image_scope = p->scope;
    begin_text(p);
    advance(p);
    while (p->token.kind != T_END) {
        parse_declaration(p);
        if (!p->has_version) syntax(p, "a module starts with .version");
    }
    if (!p->has_version || !p->has_target)
        syntax(p, "no %s: is this PTX?", p->has_version ? ".target" : ".version");
    parse_device_runtime(p);
    link_module(p);
}

egpu_ptx_status egpu_ptx_load(const char *text, size_t length, const egpu_ptx_allocator *allocator,
                              char *log, size_t log_size, egpu_ptx_module **module) {
    *module = NULL;
    if (log && log_size) log[0] = '\0';
    struct arena *arena = arena_new();
    egpu_ptx_module *made = arena ? arena_alloc(arena, sizeof *made) : NULL;
    if (!made) {
        arena_free(arena);
        return EGPU_PTX_NO_MEMORY;
    }
    made->arena = arena;
    if (allocator) made->allocator = *allocator;
    struct parser *p = calloc(1, sizeof *p); /* not on the stack: it must survive longjmp */
    if (!p) {
        arena_free(arena);
        return EGPU_PTX_NO_MEMORY;
    }
    p->arena = arena;
    p->module = made;
    p->cursor = text;
    p->end = text + (length ? strnlen(text, length) : strlen(text));
    p->line = 1;
    p->log = log;
    p->log_size = log_size;
    if (setjmp(p->failed) == 0) parse_module(p);
    for (uint32_t i = 0; i < p->owned_count; i++) free(p->owned[i]);
    free(p->owned);
    egpu_ptx_status status = p->status;
    free(p);
    if (status == EGPU_PTX_OK)
        *module = made;
    else
        egpu_ptx_unload(made);
    return status;
}
