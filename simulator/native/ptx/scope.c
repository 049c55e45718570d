/* Names and their scopes, and the parts of the function being read: registers, constants,
 * instructions. */
#include "parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t hash_text(const char *text) {
    uint32_t h = 2166136261u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

void scope_push(struct parser *p) {
    if (++p->depth > MAX_DEPTH) syntax(p, "blocks nested more than %d deep", MAX_DEPTH);
    struct scope *scope = allocate(p, sizeof *scope);
    scope->parent = p->scope;
    bool body = p->scope && p->scope->parent && p->scope->parent == p->module_scope;
    scope->bucket_count = p->scope ? SCOPE_BUCKETS : MODULE_BUCKETS;
    if (body && p->build->lives.list.count > SCOPE_BUCKETS)
        scope->bucket_count = p->build->lives.list.count;
    scope->buckets = allocate(p, scope->bucket_count * sizeof *scope->buckets);
    p->scope = scope;
}

static struct symbol *find_in(const struct scope *scope, const char *name) {
    struct symbol *s = scope->buckets[hash_text(name) % scope->bucket_count];
    while (s && strcmp(s->name, name) != 0) s = s->next;
    return s;
}

static void check_slots(struct parser *p) {
    if (p->build->next_register + p->build->constants.count >= MAX_SLOTS)
        unsupported(p, "a function that needs more than %d registers and constants at once",
                    MAX_SLOTS);
}

uint16_t new_register(struct parser *p, enum type type) {
    check_slots(p);
    p->build->register_words += type_bytes(type) == 8 ? 2 : 1;
    return (uint16_t)p->build->next_register++;
}

/* Return a slot that no register needs any more, or a new one. */
static uint16_t shared_register(struct parser *p, enum type type) {
    struct builder *b = p->build;
    if (b->free_slots.count == 0) return new_register(p, type);
    return b->free_slots.items[--b->free_slots.count];
}

uint16_t scoped_register(struct parser *p, enum type type) {
    bool inner = p->scope->parent->parent != p->module_scope;
    return inner ? shared_register(p, type) : new_register(p, type);
}

/* The registers of a block are gone at its end. */
static void free_scoped(struct parser *p, const struct scope *scope) {
    for (uint32_t i = 0; i < scope->bucket_count; i++)
        for (const struct symbol *s = scope->buckets[i]; s; s = s->next)
            if (s->kind == SYM_REGISTER && !s->released)
                APPEND(p, p->build->free_slots, (uint16_t)s->number);
}

void free_dying(struct parser *p) {
    struct builder *b = p->build;
    while (b->dying.count) APPEND(p, b->free_slots, b->dying.items[--b->dying.count]);
}

static void patch(struct parser *p, const struct fixup *f, uint32_t target) {
    if (f->table >= 0)
        p->build->tables.items[f->table].targets[f->entry] = target;
    else
        p->build->code.items[f->at].imm = (int32_t)target - (int32_t)f->at;
}

/* Resolve branches to labels of this scope; the others wait for an outer scope. */
void scope_pop(struct parser *p) {
    struct scope *scope = p->scope;
    bool outermost = scope->parent == p->module_scope;
    for (struct fixup *f = scope->fixups, *next; f; f = next) {
        next = f->next;
        struct symbol *label = find_in(scope, f->label);
        if (label && label->kind == SYM_LABEL) {
            patch(p, f, label->number);
        } else if (outermost || label) {
            p->statement_line = f->line;
            syntax(p, "unknown label '%s'", f->label);
        } else {
            f->next = scope->parent->fixups;
            scope->parent->fixups = f;
        }
    }
    if (!outermost) free_scoped(p, scope);
    p->scope = scope->parent;
    p->depth--;
}

struct symbol *declare(struct parser *p, struct scope *scope, const char *name,
                       enum symbol_kind kind) {
    if (find_in(scope, name)) syntax(p, "'%s' is declared twice", name);
    struct symbol *s = allocate(p, sizeof *s),
                  **bucket = &scope->buckets[hash_text(name) % scope->bucket_count];
    s->name = name;
    s->kind = kind;
    s->next = *bucket;
    *bucket = s;
    return s;
}

/* "%r12" of ".reg .b32 %r<20>;": created at its first use, so unused numbers cost nothing. */
static struct symbol *from_range(struct parser *p, struct scope *scope, const char *name) {
    size_t length = strlen(name), digits = 0;
    while (digits < length && digits < 6 && name[length - 1 - digits] >= '0' &&
           name[length - 1 - digits] <= '9')
        digits++;
    for (size_t n = 1; n <= digits && n < length; n++) {
        if (n > 1 && name[length - n] == '0') continue; /* leading zero: another name */
        char *prefix = allocate(p, length + 2);
        memcpy(prefix, name, length - n);
        prefix[length - n] = '<'; /* how ranges are stored: no other name has this form */
        struct symbol *range = find_in(scope, prefix);
        if (!range || strtoul(name + length - n, NULL, 10) >= range->number) continue;
        struct symbol *s = declare(p, scope, name, SYM_REGISTER);
        s->type = range->type;
        s->last = p->defining ? last_name(p, name) : NULL;
        s->number = s->last ? shared_register(p, range->type) : new_register(p, range->type);
        return s;
    }
    return NULL;
}

struct symbol *find(struct parser *p, const char *name) {
    struct symbol *s = NULL;
    for (struct scope *scope = p->scope; scope && !s; scope = scope->parent) {
        s = find_in(scope, name);
        if (!s && scope->has_ranges) s = from_range(p, scope, name);
    }
    if (s && s->last && s->last < p->cursor) {
        APPEND(p, p->build->dying, (uint16_t)s->number);
        s->last = NULL;
        s->released = true;
    }
    return s;
}

static bool is_open(const struct symbol *s) {
    return s->kind == SYM_FUNCTION ? !s->function->defined : s->variable->external;
}

struct symbol *find_linked(struct parser *p, const char *name) {
    struct symbol *s = find_in(p->module_scope, name);
    if (s) return s;
    s = find_in(p->image_scope, name);
    /* a text's own name may be one of another text's, too */
    return s && (p->linkage != OF_TEXT || is_open(s)) ? s : NULL;
}

struct symbol *declare_linked(struct parser *p, const char *name, enum symbol_kind kind) {
    return declare(p, p->linkage == OF_TEXT ? p->module_scope : p->image_scope, name, kind);
}

uint16_t temporary(struct parser *p, unsigned which) {
    struct builder *b = p->build;
    if (!b->has_temporary[which]) {
        b->temporaries[which] = new_register(p, TYPE_NONE);
        b->has_temporary[which] = true;
    }
    return b->temporaries[which];
}

enum { KEY_NUMBER, KEY_ADDRESS, KEY_GENERIC, KEY_SPECIAL };

static uint16_t constant_slot(struct parser *p, struct constant_key key, bool *fresh) {
    struct builder *b = p->build;
    uint64_t h = (key.value ^ (uint64_t)(uintptr_t)key.target >> 4) * UINT64_C(0x9e3779b97f4a7c15) +
                 key.kind;
    struct constant_entry **bucket = &b->constant_index[(h >> 40) % CONSTANT_BUCKETS];
    for (struct constant_entry *e = *bucket; e; e = e->next)
        if (e->key.value == key.value && e->key.target == key.target && e->key.kind == key.kind) {
            *fresh = false;
            return e->key.slot;
        }
    check_slots(p);
    struct constant_entry *e = allocate(p, sizeof *e);
    key.slot = (uint16_t)(MAX_SLOTS - b->constants.count);
    e->key = key;
    e->next = *bucket;
    *bucket = e;
    APPEND(p, b->constants, (union slot){.u64 = key.kind == KEY_NUMBER ? key.value : 0});
    *fresh = true;
    return key.slot;
}

uint16_t constant(struct parser *p, uint64_t value) {
    bool fresh;
    return constant_slot(p, (struct constant_key){.value = value, .kind = KEY_NUMBER}, &fresh);
}

uint16_t address_constant(struct parser *p, struct variable *target, uint64_t addend,
                          bool generic) {
    struct builder *b = p->build;
    bool fresh;
    struct constant_key key = {
        .value = addend, .target = target, .kind = generic ? KEY_GENERIC : KEY_ADDRESS};
    uint16_t slot = constant_slot(p, key, &fresh);
    if (fresh)
        APPEND(p, b->relocs,
               (struct const_reloc){(uint16_t)(MAX_SLOTS - slot), target, addend, generic});
    if (target->kind == VAR_SHARED) {
        for (uint32_t i = 0; i < b->shared.count; i++)
            if (b->shared.items[i] == target) return slot;
        APPEND(p, b->shared, target);
    }
    return slot;
}

uint16_t special_constant(struct parser *p, enum special which) {
    bool fresh;
    uint16_t slot =
        constant_slot(p, (struct constant_key){.value = which, .kind = KEY_SPECIAL}, &fresh);
    if (fresh)
        APPEND(p, p->build->specials,
               (struct special_slot){(uint16_t)(MAX_SLOTS - slot), (uint16_t)which});
    return slot;
}

uint32_t emit(struct parser *p, enum op op, unsigned aux, unsigned d, unsigned a, unsigned b,
              unsigned c, int32_t imm) {
    uint32_t at = p->build->code.count;
    if (at >= INT32_MAX / 2) unsupported(p, "a function this long");
    APPEND(p, p->build->code,
           (struct ins){(uint16_t)op, (uint16_t)aux, (uint16_t)d, (uint16_t)a, (uint16_t)b,
                        (uint16_t)c, imm});
    APPEND(p, p->build->lines, p->statement_line);
    return at;
}

void branch_fixup(struct parser *p, const char *label, uint32_t at, int32_t table, int32_t entry) {
    struct fixup *f = allocate(p, sizeof *f);
    *f = (struct fixup){p->scope->fixups, label, at, p->statement_line, table, entry};
    p->scope->fixups = f;
}

bool imm_is_slot(enum op op) {
    switch (op) {
    case OP_add_cc_u32:
    case OP_addc_cc_u32:
    case OP_sub_cc_u32:
    case OP_subc_cc_u32:
    case OP_add_cc_u64:
    case OP_addc_cc_u64:
    case OP_sub_cc_u64:
    case OP_subc_cc_u64:
    case OP_bfi_b32:
    case OP_bfi_b64: return true;
    default: return false;
    }
}

static const char *const op_names[] = {
#define OP(name, ...) #name,
#include "ops.def"
#undef OP
};

enum op op_named(const char *format, ...) {
    char name[64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (unsigned i = 0; i < OP_COUNT; i++)
        if (op_names[i][0] == name[0] && strcmp(op_names[i], name) == 0) return (enum op)i;
    return OP_COUNT;
}

uint32_t align_up(uint32_t value, uint32_t align) { return (value + align - 1) & ~(align - 1); }
