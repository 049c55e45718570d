/* Variables of PTX text: whether their addresses stay inside the code, and which of them it writes.
 *
 * A module's variables lie where the driver puts them, and at the target they lie elsewhere. That
 * does not matter as long as only the code knows where. So the addresses are followed through the
 * registers of each function. A register that may hold the address of a variable is marked with the
 * variable's bit. An address that is stored, or passed to a function, may be anywhere afterwards:
 * then the image stays. The output of printf and assertions is done when the session stands still.
 */
#include "executor/moves/images.h"

#include <stdlib.h>

#define TOKENS 512  /* of one statement; compilers write fewer */
#define PASSES 16   /* over one function, until no mark is new */
#define LAST_BIT 60 /* variables beyond it share it */
#define PARAMETER (UINT64_C(1) << 63)
#define PASSED (UINT64_C(1) << 62) /* a parameter that a call has taken */
#define BITS (PASSED - 1)

static const char not_understood[] = "its code is not understood";
static const char escapes[] = "its code stores or passes the address of a variable";

struct token {
    const char *at;
    size_t bytes;
};

/* ---- tokens ---- */

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$' || c == '%' || c == '.';
}

static const char *skip_blank(const char *at) {
    for (;;) {
        while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') at++;
        const char *end = NULL;
        if (at[0] == '/' && at[1] == '/') end = strchr(at, '\n');
        if (at[0] == '/' && at[1] == '*' && (end = strstr(at + 2, "*/")) != NULL) end += 2;
        if (end == NULL && !(at[0] == '/' && (at[1] == '/' || at[1] == '*'))) return at;
        at = end != NULL ? end : at + strlen(at);
    }
}

/* False: the text is over. */
static bool next(const char **at, struct token *token) {
    const char *from = *at = skip_blank(*at);
    if (*from == 0) return false;
    const char *end = from + 1;
    if (is_word(*from))
        while (is_word(*end) || (end[0] == ':' && end[1] == ':')) end += *end == ':' ? 2 : 1;
    if (*from == '"' && (end = strchr(end, '"')) == NULL) return false;
    if (*from == '"') end++;
    *token = (struct token){from, (size_t)(end - from)};
    *at = end;
    return true;
}

static bool is(struct token token, const char *text) {
    return token.bytes == strlen(text) && memcmp(token.at, text, token.bytes) == 0;
}

static bool begins_with(struct token token, const char *text) {
    return token.bytes >= strlen(text) && memcmp(token.at, text, strlen(text)) == 0;
}

static bool is_name(struct token token) {
    return is_word(*token.at) && *token.at != '.' && !(*token.at >= '0' && *token.at <= '9');
}

/* ---- marks of names ---- */

struct mark {
    struct token name; /* at NULL: free */
    uint64_t bits;
};
struct marks {
    struct mark *marks;
    size_t room, used; /* `room`: a power of two */
};

static struct mark *place_of(const struct marks *in, struct token name) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < name.bytes; i++)
        hash = (hash ^ (uint8_t)name.at[i]) * UINT64_C(0x100000001b3);
    size_t at = (hash ^ hash >> 32) & (in->room - 1);
    while (in->marks[at].name.at != NULL &&
           (in->marks[at].name.bytes != name.bytes ||
            memcmp(in->marks[at].name.at, name.at, name.bytes) != 0))
        at = (at + 1) & (in->room - 1);
    return &in->marks[at];
}

static uint64_t bits_of(const struct marks *in, struct token name) {
    return in->room == 0 ? 0 : place_of(in, name)->bits;
}

/* The mark of the name, a new one if there is none; NULL: no memory. */
static struct mark *mark_of(struct marks *in, struct token name) {
    if (2 * in->used >= in->room) {
        struct marks grown = {calloc(in->room ? 2 * in->room : 256, sizeof *grown.marks),
                              in->room ? 2 * in->room : 256, in->used};
        if (grown.marks == NULL) return NULL;
        for (size_t i = 0; i < in->room; i++)
            if (in->marks[i].name.at != NULL) *place_of(&grown, in->marks[i].name) = in->marks[i];
        free(in->marks);
        *in = grown;
    }
    struct mark *mark = place_of(in, name);
    if (mark->name.at == NULL) in->used++;
    mark->name = name;
    return mark;
}

/* ---- declarations ---- */

struct code {
    struct marks variables, registers;
    unsigned count;
    uint64_t written;
    bool changed;
    const char *stays;
};

static void stays(struct code *code, const char *why) {
    if (code->stays == NULL) code->stays = why;
}

/* What follows `.global` or `.const`, up to its semicolon. */
static void declare(struct code *code, const char **at) {
    struct token token, before = {"", 0};
    bool named = false, initial = false;
    int depth = 0;
    while (next(at, &token) && !is(token, ";")) {
        if (strchr("([{", *token.at) != NULL) depth++;
        if (strchr(")]}", *token.at) != NULL) depth--;
        if (is(token, ".managed")) stays(code, "it has managed variables");
        if (is(token, ".texref") || is(token, ".surfref") || is(token, ".samplerref"))
            stays(code, "it has references to textures");
        if (is(token, "=")) initial = true;
        if (is(token, ",") && depth == 0) named = initial = false;
        if (initial && is_name(token)) stays(code, "its variables hold addresses");
        if (!named && !initial && depth == 0 && is_name(token) && !is(before, ".align")) {
            struct mark *mark = mark_of(&code->variables, token);
            if (mark == NULL) return stays(code, not_understood);
            mark->bits = UINT64_C(1) << (code->count < LAST_BIT ? code->count : LAST_BIT);
            code->count++;
            named = true;
        }
        before = token;
    }
}

static void find_declarations(struct code *code, const char *at) {
    struct token token, before = {"", 0};
    for (; code->stays == NULL && next(&at, &token); before = token) {
        if ((is(token, ".global") || is(token, ".const")) && !is(before, ".ptr"))
            declare(code, &at);
        if (is(token, ".callprototype") || is(token, ".calltargets") || is(token, ".alias"))
            stays(code, "it calls functions by their address");
        if (is(token, "malloc")) stays(code, "it allocates memory on the card");
    }
}

/* ---- statements ---- */

struct operand {
    const struct token *first, *end;
    bool memory; /* in brackets: an address */
};

static uint64_t held(const struct code *code, const struct operand *operand) {
    uint64_t bits = 0;
    for (const struct token *token = operand->first; token < operand->end; token++)
        if (is_name(*token))
            bits |= bits_of(&code->registers, *token) | bits_of(&code->variables, *token);
    return bits & BITS;
}

static void mark_held(struct code *code, const struct operand *to, uint64_t bits) {
    for (const struct token *token = to->first; bits != 0 && token < to->end; token++) {
        if (!is_name(*token)) continue;
        struct mark *mark = mark_of(&code->registers, *token);
        if (mark == NULL) return stays(code, not_understood);
        code->changed |= (mark->bits & bits) != bits && !(mark->bits & PARAMETER);
        mark->bits |= bits;
    }
}

/* Returns how many there are; they are apart by commas. */
static unsigned split(const struct token *tokens, const struct token *end,
                      struct operand operands[TOKENS]) {
    unsigned count = 0;
    int depth = 0;
    for (const struct token *token = tokens, *from = tokens; token <= end; token++) {
        bool over = token == end || (depth == 0 && is(*token, ","));
        if (!over && strchr("([{", *token->at) != NULL) depth++;
        if (!over && strchr(")]}", *token->at) != NULL) depth--;
        if (!over) continue;
        operands[count++] = (struct operand){from, token, from < token && is(*from, "[")};
        from = token + 1;
    }
    return count;
}

/* Parameters of a call have been stored one by one, under their names. */
static void call(struct code *code, const struct operand *operands, unsigned count) {
    bool prints = false;
    for (unsigned i = 0; i < count; i++)
        prints |= operands[i].first < operands[i].end &&
                  (is(*operands[i].first, "vprintf") || is(*operands[i].first, "__assertfail"));
    for (unsigned i = 0; i < count; i++) {
        if (held(code, &operands[i]) != 0 && !prints) stays(code, escapes);
        for (const struct token *token = operands[i].first; token < operands[i].end; token++)
            if (is_name(*token) && bits_of(&code->registers, *token) & PARAMETER)
                place_of(&code->registers, *token)->bits |= PASSED;
    }
}

static void store_parameter(struct code *code, const struct operand *to, uint64_t bits) {
    struct mark *mark = mark_of(&code->registers, to->first[1]);
    if (mark == NULL) return stays(code, not_understood);
    mark->bits |= PARAMETER | bits;
}

/* An operand that is written to in memory, and what may be stored there. */
static void store(struct code *code, const struct operand *operands, unsigned count, unsigned to) {
    code->written |= held(code, &operands[to]);
    for (unsigned i = to + 1; i < count; i++)
        if (!operands[i].memory && held(code, &operands[i]) != 0) stays(code, escapes);
}

static void instruction(struct code *code, const struct token *tokens, const struct token *end) {
    struct operand operands[TOKENS];
    unsigned count = split(tokens + 1, end, operands);
    struct token name = tokens[0];
    if (count == 0 || operands[0].first == operands[0].end) return;
    if (is(name, "call") || is(name, "call.uni")) return call(code, operands, count);
    if (begins_with(name, "st.param") && operands[0].end - operands[0].first > 2) {
        uint64_t bits = 0;
        for (unsigned i = 1; i < count; i++) bits |= held(code, &operands[i]);
        return store_parameter(code, &operands[0], bits);
    }
    if (operands[0].memory) return store(code, operands, count, 0);
    if (begins_with(name, "atom.") && count > 1) return store(code, operands, count, 1);
    if (begins_with(name, "setp.") || begins_with(name, "set.")) return;
    uint64_t bits = 0;
    for (unsigned i = 1; i < count; i++)
        if (!operands[i].memory) bits |= held(code, &operands[i]);
    mark_held(code, &operands[0], bits);
}

static bool declares_nothing_else(struct token name) {
    static const char *const known[] = {".reg",    ".local",         ".shared", ".global",
                                        ".pragma", ".branchtargets", ".const"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(name, known[i])) return true;
    return false;
}

/* Of the next call alone. */
static void declare_parameter(struct code *code, const struct token *token,
                              const struct token *end) {
    while (token < end && !is_name(*token)) token++;
    struct mark *mark = token < end ? mark_of(&code->registers, *token) : NULL;
    if (mark == NULL) return stays(code, not_understood);
    mark->bits = PARAMETER;
}

static void statement(struct code *code, const struct token *tokens, unsigned count) {
    const struct token *end = tokens + count;
    if (count > 1 && is(tokens[0], "@")) tokens += is(tokens[1], "!") ? 3 : 2;
    if (tokens >= end) return;
    if (is(tokens[0], ".param"))
        declare_parameter(code, tokens, end);
    else if (*tokens[0].at != '.')
        instruction(code, tokens, end);
    else if (!declares_nothing_else(tokens[0]))
        stays(code, not_understood);
}

/* ---- functions ---- */

/* Returns where a place in the source ends: unlike all else it has no semicolon. */
static const char *skip_place(const char *at) {
    struct token token;
    for (const char *before = at; next(&at, &token); before = at) {
        if (is(token, "function_name")) next(&at, &token);
        bool goes_on = (*token.at >= '0' && *token.at <= '9') || is(token, ",") || is(token, "+") ||
                       is(token, "inlined_at") || begins_with(token, "$L__info");
        if (!goes_on) return before;
    }
    return at;
}

/* From behind the first brace of a function to behind its last. */
static const char *body(struct code *code, const char *at) {
    struct token tokens[TOKENS], token;
    unsigned count = 0;
    int depth = 1, inside = 0; /* brackets and braces of a statement */
    while (code->stays == NULL && depth > 0 && next(&at, &token)) {
        bool begins = count == 0;
        if (begins && (is(token, "{") || is(token, "}"))) {
            depth += is(token, "{") ? 1 : -1;
        } else if (begins && is(token, ".loc")) {
            at = skip_place(at);
        } else if (is(token, ":")) {
            count = 0; /* it was a label */
        } else if (is(token, ";")) {
            statement(code, tokens, count);
            count = 0;
            inside = 0;
        } else {
            inside += is(token, "{") - is(token, "}");
            tokens[count++] = token;
            if (count == TOKENS || inside < 0) stays(code, not_understood);
        }
    }
    return at;
}

static const char *function(struct code *code, const char *from) {
    const char *end = from;
    free(code->registers.marks);
    code->registers = (struct marks){NULL, 0, 0};
    code->changed = true;
    for (unsigned pass = 0; code->changed && code->stays == NULL; pass++) {
        if (pass == PASSES) stays(code, not_understood);
        code->changed = false;
        end = body(code, from);
    }
    for (size_t i = 0; i < code->registers.room; i++) { /* what it returns */
        uint64_t bits = code->registers.marks[i].bits;
        if (bits & PARAMETER && !(bits & PASSED) && bits & BITS) stays(code, escapes);
    }
    return end;
}

static void skip_to(const char **at, const char *end) {
    for (struct token token; next(at, &token) && !is(token, end);) continue;
}

static void follow(struct code *code, const char *at) {
    struct token token;
    bool debug = false;
    while (code->stays == NULL && next(&at, &token)) {
        if (is(token, ".section")) debug = true;
        if (is(token, ".global") || is(token, ".const")) skip_to(&at, ";");
        if (!is(token, "{")) continue;
        if (debug)
            skip_to(&at, "}");
        else
            at = function(code, at);
        debug = false;
    }
}

const char *ptx_stays(const char *text, const struct image_seer *seer) {
    struct code code = {.stays = NULL};
    find_declarations(&code, text);
    if (code.stays == NULL && code.count != 0) follow(&code, text);
    for (size_t i = 0; code.stays == NULL && i < code.variables.room; i++) {
        const struct mark *mark = &code.variables.marks[i];
        if (mark->bits & code.written && !seer->see(mark->name.at, mark->name.bytes, seer->data))
            code.stays = "no memory";
    }
    free(code.variables.marks);
    free(code.registers.marks);
    return code.stays;
}
