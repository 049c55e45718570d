/* The reader of PTX text: tokens, scopes, and the function being read. Private to lex.c, parse.c
 * and compile*.c. */
#ifndef EGPU_PTX_PARSE_H
#define EGPU_PTX_PARSE_H

#include "internal.h"

#include <setjmp.h>
#include <stdarg.h>

enum token_kind { T_END, T_WORD, T_DOT, T_INTEGER, T_FLOAT32, T_FLOAT64, T_STRING, T_PUNCT };

struct token {
    enum token_kind kind;
    /* of a word, a dotted word (without its dot) or a string: NUL-terminated, in the arena */
    const char *text;
    uint64_t integer; /* also the bits of a float */
    char punct;
    bool is_unsigned;
    uint32_t line;
};

/* Scalar types, in the order of the tables in lex.c. */
enum type {
    TYPE_NONE,
    TYPE_PRED,
    TYPE_B8,
    TYPE_B16,
    TYPE_B32,
    TYPE_B64,
    TYPE_U8,
    TYPE_U16,
    TYPE_U32,
    TYPE_U64,
    TYPE_S8,
    TYPE_S16,
    TYPE_S32,
    TYPE_S64,
    TYPE_F16,
    TYPE_BF16,
    TYPE_F32,
    TYPE_F64
};
enum type type_named(const char *name); /* TYPE_NONE: not a type */
const char *type_name(enum type type);
unsigned type_bytes(enum type type); /* 0 for predicates */
static inline bool type_is_float(enum type t) { return t >= TYPE_F16; }
static inline bool type_is_half(enum type t) { return t == TYPE_F16 || t == TYPE_BF16; }
static inline bool type_is_signed(enum type t) { return t >= TYPE_S8 && t <= TYPE_S64; }
static inline bool type_is_bits(enum type t) { return t >= TYPE_B8 && t <= TYPE_B64; }

enum symbol_kind {
    SYM_REGISTER,
    SYM_REGISTERS,
    SYM_VARIABLE,
    SYM_FRAME,
    SYM_ENTRY_PARAM,
    SYM_FUNCTION,
    SYM_LABEL,
    SYM_PROTOTYPE,
    SYM_TARGETS
};

struct symbol {
    struct symbol *next; /* in its bucket */
    const char *name;
    enum symbol_kind kind;
    enum type type;
    const char *last; /* of a register that shares its slot: its last place in the text */
    bool released;    /* … and others have the slot now */
    /* slot, count of a range, offset in frame or parameters, code position, index of a table */
    uint32_t number;
    uint32_t size, align;
    uint32_t element; /* bytes of one, in an array of one dimension; 0: `name[N]` is invalid */
    bool param;       /* SYM_FRAME: declared .param */
    struct variable *variable;
    struct function *function;
};

enum { SCOPE_BUCKETS = 64, MODULE_BUCKETS = 1024 };

struct fixup { /* a branch to a label that is not defined yet */
    struct fixup *next;
    const char *label;
    uint32_t at, line;
    int32_t table, entry; /* or an entry of a branch table */
};

struct scope {
    struct scope *parent;
    struct symbol **buckets;
    uint32_t bucket_count;
    struct fixup *fixups;
    bool has_ranges; /* of registers */
};

/* A growing array in ordinary memory, copied to the arena when done. */
#define LIST(type)            \
    struct {                  \
        type *items;          \
        uint32_t count, room; \
    }

struct constant_key {
    uint64_t value;
    struct variable *target;
    uint8_t kind; /* number, address, generic address, special register */
    uint16_t slot;
};

enum {
    CONSTANT_BUCKETS = 512,
    MAX_SLOTS = UINT16_MAX, /* registers from 0 up, and constants from here down */
    LIFE_BUCKETS = 4096,
    MAX_MODIFIERS = 12,
    MAX_DEPTH = 64
};

struct constant_entry {
    struct constant_entry *next;
    struct constant_key key;
};

struct life {                /* of a name that may be a register's */
    const char *name, *last; /* in the text */
    uint32_t length, region;
    uint32_t next; /* in its bucket, from 1 */
    bool apart;    /* it is in several regions */
};

struct lives {
    LIST(struct life) list;
    uint32_t heads[LIFE_BUCKETS];
};

struct builder { /* the function being read */
    struct function *function;
    LIST(struct ins) code;
    LIST(uint32_t) lines;
    LIST(union slot) constants;
    LIST(struct const_reloc) relocs;
    LIST(struct special_slot) specials;
    LIST(struct call_site) calls;
    LIST(struct branch_table) tables;
    LIST(struct variable *) shared;
    struct constant_entry *constant_index[CONSTANT_BUCKETS];
    uint32_t next_register, register_words, frame_bytes, memory_ops;
    struct lives lives;
    LIST(uint16_t) free_slots, dying; /* dying: free after this instruction */
    uint16_t temporaries[16];
    uint16_t carry; /* slot of CC.CF; 0 with has_carry unset */
    bool has_carry, has_temporary[16];
};

enum linkage { OF_TEXT, OF_IMAGE, WEAK };

struct parser {
    const char *cursor, *end;
    uint32_t line;
    struct token token; /* the current one */
    struct arena *arena;
    egpu_ptx_module *module;
    /* names that all texts of an image see, and those of the text being read */
    struct scope *scope, *image_scope, *module_scope;
    enum linkage linkage;  /* of the declaration being read */
    struct builder *build; /* NULL outside functions */
    LIST(struct function *) functions;
    LIST(struct variable *) variables;
    LIST(struct data_reloc) data_relocs;
    LIST(egpu_ptx_kernel) kernels;
    uint32_t depth;
    bool has_version, has_target;

    /* the instruction being read */
    bool guarded;  /* it is not always executed */
    bool defining; /* a name is read whose register it always writes */
    const char *mnemonic;
    const char *base;
    const char *modifiers[MAX_MODIFIERS];
    bool modifier_used[MAX_MODIFIERS];
    uint32_t modifier_count;
    enum type types[4];
    uint32_t type_count, types_used;
    uint32_t statement_line;

    char *log;
    size_t log_size;
    egpu_ptx_status status;
    jmp_buf failed;
    void **owned; /* growing arrays to free */
    uint32_t owned_count, owned_room;
};

_Noreturn void fail(struct parser *p, egpu_ptx_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define syntax(p, ...) fail(p, EGPU_PTX_SYNTAX, __VA_ARGS__)
#define unsupported(p, ...) fail(p, EGPU_PTX_UNSUPPORTED, __VA_ARGS__)

/* zeroed, from the module's arena; without memory the parse fails */
void *allocate(struct parser *p, size_t size);
void *grow(struct parser *p, void *items, uint32_t *room, uint32_t count, size_t size);
/* copy into the arena */
void *keep(struct parser *p, const void *items, uint32_t count, size_t size);
#define APPEND(p, list, ...)                                                                 \
    ((list).items = grow(p, (list).items, &(list).room, (list).count, sizeof *(list).items), \
     (list).items[(list).count++] = (__VA_ARGS__))

/* lex.c */
void advance(struct parser *p);
bool is_punct(const struct parser *p, char c);
bool accept(struct parser *p, char c);
void expect(struct parser *p, char c);
bool accept_word(struct parser *p, const char *word);
bool accept_dot(struct parser *p, const char *word);
const char *expect_word(struct parser *p, const char *what);
uint64_t expect_integer(struct parser *p, const char *what);
const char *describe(struct parser *p); /* the token, for messages */

/* scope.c */
void scope_push(struct parser *p);
void scope_pop(struct parser *p);
struct symbol *declare(struct parser *p, struct scope *scope, const char *name,
                       enum symbol_kind kind);
struct symbol *find(struct parser *p, const char *name);
/* The symbol that a declaration with p->linkage repeats or completes; NULL: none. */
struct symbol *find_linked(struct parser *p, const char *name);
/* Declare it where p->linkage says. */
struct symbol *declare_linked(struct parser *p, const char *name, enum symbol_kind kind);
uint16_t new_register(struct parser *p, enum type type);
uint16_t scoped_register(struct parser *p, enum type type); /* for the innermost block */
void free_dying(struct parser *p);                          /* after each instruction */
uint16_t temporary(struct parser *p, unsigned which);
uint16_t constant(struct parser *p, uint64_t value);
uint16_t address_constant(struct parser *p, struct variable *target, uint64_t addend, bool generic);
uint16_t special_constant(struct parser *p, enum special which);
uint32_t emit(struct parser *p, enum op op, unsigned aux, unsigned d, unsigned a, unsigned b,
              unsigned c, int32_t imm);
void branch_fixup(struct parser *p, const char *label, uint32_t at, int32_t table, int32_t entry);
bool imm_is_slot(enum op op);
/* OP_COUNT: no such operation */
enum op op_named(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* variables.c */
void parse_variable(struct parser *p, const char *space, bool external);

/* parse.c, function.c */
void skip_line(struct parser *p);
void parse_pragma(struct parser *p, egpu_ptx_kernel_info *info); /* info: NULL outside kernels */
void parse_function(struct parser *p, bool entry);

/* lives.c: note all names in the body that begins at the cursor; then find the last place of one
 * that is in one region only, or NULL. */
void lives_scan(struct parser *p);
const char *last_name(const struct parser *p, const char *name);

/* compile.c: one statement of a function's body, `p->token` at its guard or mnemonic */
void compile_instruction(struct parser *p);
uint32_t align_up(uint32_t value, uint32_t align);

/* link.c */
void link_module(struct parser *p);

#endif
