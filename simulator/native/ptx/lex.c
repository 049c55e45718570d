/* Tokens of PTX text, and parse errors. */
#include "parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void fail(struct parser *p, egpu_ptx_status status, const char *format, ...) {
    p->status = status;
    if (p->log && p->log_size) {
        int n = snprintf(p->log, p->log_size,
                         "line %u: ", p->statement_line ? p->statement_line : p->token.line);
        va_list args;
        va_start(args, format);
        if (n > 0 && (size_t)n < p->log_size)
            vsnprintf(p->log + n, p->log_size - (size_t)n, format, args);
        va_end(args);
    }
    longjmp(p->failed, 1);
}

void *allocate(struct parser *p, size_t size) {
    void *memory = arena_alloc(p->arena, size ? size : 1);
    if (!memory) fail(p, EGPU_PTX_NO_MEMORY, "out of host memory");
    return memory;
}

void *grow(struct parser *p, void *items, uint32_t *room, uint32_t count, size_t size) {
    if (count < *room) return items;
    uint32_t more = *room ? *room * 2 : 16;
    uint32_t place = 0;
    while (place < p->owned_count && (!items || p->owned[place] != items)) place++;
    if (place == p->owned_room) {
        uint32_t wider = p->owned_room ? p->owned_room * 2 : 32;
        void **owned = realloc(p->owned, wider * sizeof *owned);
        if (!owned) fail(p, EGPU_PTX_NO_MEMORY, "out of host memory");
        p->owned = owned;
        p->owned_room = wider;
    }
    void *grown = realloc(items, (size_t)more * size);
    if (!grown) fail(p, EGPU_PTX_NO_MEMORY, "out of host memory");
    if (place == p->owned_count) p->owned_count++;
    p->owned[place] = grown;
    *room = more;
    return grown;
}

void *keep(struct parser *p, const void *items, uint32_t count, size_t size) {
    void *copy = allocate(p, count * size);
    if (count) memcpy(copy, items, count * size);
    return copy;
}

/* ---- types ---- */

static const struct {
    const char *name;
    unsigned bytes;
} type_table[] = {{"", 0},    {"pred", 0}, {"b8", 1},  {"b16", 2},  {"b32", 4}, {"b64", 8},
                  {"u8", 1},  {"u16", 2},  {"u32", 4}, {"u64", 8},  {"s8", 1},  {"s16", 2},
                  {"s32", 4}, {"s64", 8},  {"f16", 2}, {"bf16", 2}, {"f32", 4}, {"f64", 8}};

enum type type_named(const char *name) {
    for (unsigned i = 1; i < sizeof type_table / sizeof *type_table; i++)
        if (strcmp(type_table[i].name, name) == 0) return (enum type)i;
    return TYPE_NONE;
}

const char *type_name(enum type type) { return type_table[type].name; }
unsigned type_bytes(enum type type) { return type_table[type].bytes; }

/* ---- tokens ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
static bool is_word_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
static bool is_word(char c) { return is_word_start(c) || is_digit(c); }

static char peek(const struct parser *p, size_t ahead) {
    return (size_t)(p->end - p->cursor) > ahead ? p->cursor[ahead] : '\0';
}

static void skip_space(struct parser *p) {
    for (;;) {
        char c = peek(p, 0);
        if (c == '\n') {
            p->line++;
            p->cursor++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
            p->cursor++;
        } else if (c == '/' && peek(p, 1) == '/') {
            while (p->cursor < p->end && *p->cursor != '\n') p->cursor++;
        } else if (c == '/' && peek(p, 1) == '*') {
            p->cursor += 2;
            while (p->cursor < p->end && !(*p->cursor == '*' && peek(p, 1) == '/'))
                p->line += *p->cursor++ == '\n';
            if (p->cursor >= p->end) syntax(p, "unterminated comment");
            p->cursor += 2;
        } else {
            return;
        }
    }
}

static const char *intern(struct parser *p, const char *from, size_t length) {
    char *text = allocate(p, length + 1);
    memcpy(text, from, length);
    return text;
}

static void lex_number(struct parser *p) {
    struct token *t = &p->token;
    char c1 = peek(p, 1);
    bool single = c1 == 'f' || c1 == 'F', wide = c1 == 'd' || c1 == 'D';
    if (peek(p, 0) == '0' && (single || wide)) {
        size_t digits = single ? 8 : 16;
        t->kind = single ? T_FLOAT32 : T_FLOAT64;
        t->integer = 0;
        for (size_t i = 0; i < digits; i++) {
            char c = peek(p, 2 + i);
            if (!is_hex(c)) syntax(p, "a hexadecimal float constant needs %zu digits", digits);
            t->integer = t->integer << 4 | (uint64_t)(is_digit(c) ? c - '0' : (c | 32) - 'a' + 10);
        }
        p->cursor += 2 + digits;
        return;
    }
    char buffer[64];
    size_t n = 0;
    bool hex = peek(p, 0) == '0' && (c1 == 'x' || c1 == 'X'),
         binary = peek(p, 0) == '0' && (c1 == 'b' || c1 == 'B');
    bool fraction = false;
    for (;;) {
        char c = peek(p, n);
        bool sign = !hex && (c == '+' || c == '-') && n && (buffer[n - 1] | 32) == 'e';
        bool decimal = !hex && !binary && (c == '.' || c == 'e' || c == 'E');
        if (!(is_hex(c) || sign || decimal || (n == 1 && (hex || binary)))) break;
        if (n == sizeof buffer - 1) syntax(p, "the number is too long");
        fraction = fraction || decimal || sign;
        buffer[n++] = c;
    }
    buffer[n] = '\0';
    p->cursor += n;
    char *stop;
    errno = 0;
    if (fraction) {
        union slot v = {.f64 = strtod(buffer, &stop)};
        t->kind = T_FLOAT64;
        t->integer = v.u64;
    } else {
        bool octal = !hex && !binary && n > 1 && buffer[0] == '0';
        t->kind = T_INTEGER;
        t->integer = strtoull(buffer + (hex || binary ? 2 : 0), &stop,
                              hex      ? 16
                              : binary ? 2
                              : octal  ? 8
                                       : 10);
    }
    if (*stop || errno == ERANGE || (!fraction && n == 2 && (hex || binary)))
        syntax(p, "bad number '%s'", buffer);
    t->is_unsigned = false;
    if (!fraction && peek(p, 0) == 'U') {
        t->is_unsigned = true;
        p->cursor++;
    }
}

void advance(struct parser *p) {
    skip_space(p);
    struct token *t = &p->token;
    t->line = p->line;
    t->text = NULL;
    t->punct = 0;
    char c = peek(p, 0);
    const char *start = p->cursor;
    if (p->cursor >= p->end) {
        t->kind = T_END;
    } else if (is_word_start(c)) {
        while (is_word(peek(p, 0))) p->cursor++;
        t->kind = T_WORD;
        t->text = intern(p, start, (size_t)(p->cursor - start));
    } else if (is_digit(c)) {
        lex_number(p);
    } else if (c == '.' && is_word(peek(p, 1))) {
        p->cursor++;
        while (is_word(peek(p, 0)) ||
               (peek(p, 0) == ':' && peek(p, 1) == ':' && is_word(peek(p, 2))))
            p->cursor += peek(p, 0) == ':' ? 2 : 1;
        t->kind = T_DOT;
        t->text = intern(p, start + 1, (size_t)(p->cursor - start - 1));
    } else if (c == '"') {
        p->cursor++;
        while (p->cursor < p->end && *p->cursor != '"' && *p->cursor != '\n') p->cursor++;
        if (peek(p, 0) != '"') syntax(p, "unterminated string");
        t->kind = T_STRING;
        t->text = intern(p, start + 1, (size_t)(p->cursor - start - 1));
        p->cursor++;
    } else if (strchr("{}[]()<>,;:@!=+-*/|&~^?#", c)) {
        t->kind = T_PUNCT;
        t->punct = c;
        p->cursor++;
    } else {
        syntax(p, "unexpected byte 0x%02x", (unsigned)(unsigned char)c);
    }
}

bool is_punct(const struct parser *p, char c) {
    return p->token.kind == T_PUNCT && p->token.punct == c;
}

bool accept(struct parser *p, char c) {
    if (!is_punct(p, c)) return false;
    advance(p);
    return true;
}

const char *describe(struct parser *p) {
    char *text = allocate(p, 160);
    switch (p->token.kind) {
    case T_END: return "the end of the text";
    case T_PUNCT: snprintf(text, 160, "'%c'", p->token.punct); break;
    case T_DOT: snprintf(text, 160, "'.%.140s'", p->token.text); break;
    case T_WORD: snprintf(text, 160, "'%.140s'", p->token.text); break;
    case T_STRING: snprintf(text, 160, "\"%.140s\"", p->token.text); break;
    default: snprintf(text, 160, "a number"); break;
    }
    return text;
}

void expect(struct parser *p, char c) {
    if (!accept(p, c)) syntax(p, "expected '%c', found %s", c, describe(p));
}

bool accept_word(struct parser *p, const char *word) {
    if (p->token.kind != T_WORD || strcmp(p->token.text, word) != 0) return false;
    advance(p);
    return true;
}

bool accept_dot(struct parser *p, const char *word) {
    if (p->token.kind != T_DOT || strcmp(p->token.text, word) != 0) return false;
    advance(p);
    return true;
}

const char *expect_word(struct parser *p, const char *what) {
    if (p->token.kind != T_WORD) syntax(p, "expected %s, found %s", what, describe(p));
    const char *text = p->token.text;
    advance(p);
    return text;
}

uint64_t expect_integer(struct parser *p, const char *what) {
    if (p->token.kind != T_INTEGER) syntax(p, "expected %s, found %s", what, describe(p));
    uint64_t value = p->token.integer;
    advance(p);
    return value;
}
