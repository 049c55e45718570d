/* Shared by the compilers of single instructions (arithmetic.c, logic.c, …), the functions that
 * read their operands, and their table in compile.c. */
#ifndef EGPU_PTX_COMPILE_H
#define EGPU_PTX_COMPILE_H

#include "parse.h"

/* Temporaries 0–3 hold sources, RESULT a result that is narrowed later, SINK unused results. */
enum {
    RESULT = 7,
    SCRATCH = 8,
    SCRATCH2 = 9,
    CLOCK_VALUE = 10,
    NEGATED = 11,
    ADDRESS_VALUE = 12,
    SINK = 15
};

struct address {
    uint16_t slot;
    int32_t imm;
    const struct symbol *symbol; /* NULL: a register or a number */
};

struct vector {
    uint16_t slot[4];
    unsigned count;
};

/* operands.c: reading a modifier consumes it. finish() refuses those that are left at the end. */
bool mod(struct parser *p, const char *name);
int mod_of(struct parser *p, const char *const *names);
_Noreturn void unknown(struct parser *p);
enum type next_type(struct parser *p);
enum op op_or_fail(struct parser *p, const char *name, const char *suffix);
const char *unsigned_name(enum type t);
const char *bits_name(enum type t);
enum type unsigned_type(unsigned bytes);
enum round rounding(struct parser *p);
void comma(struct parser *p);
void check_register(struct parser *p, const struct symbol *s, enum type want, bool wider);
const struct symbol *register_named(struct parser *p, const char *name);
uint16_t dst_wider(struct parser *p, enum type t, enum type *actual, bool wider);
uint16_t dst(struct parser *p, enum type t);
uint16_t src_wider(struct parser *p, enum type t, bool wider);
uint16_t src(struct parser *p, enum type t);
uint16_t predicate(struct parser *p);
struct address address(struct parser *p);
void finish(struct parser *p);
void plain(struct parser *p, enum op op, unsigned aux, enum type d, enum type a, enum type b,
           enum type c);
void same_type(struct parser *p, enum op op, enum type t, unsigned sources);
uint16_t widened(struct parser *p, uint16_t slot, enum type from, enum type to, bool ftz,
                 unsigned which);
struct vector vector_of(struct parser *p, enum type t, bool write, bool wider);

/* special.c: the slot of a special register; those that change are read into a temporary. False:
 * the name is not one. */
bool special_slot(struct parser *p, const char *name, uint16_t *slot);

/* access.c */
bool shared_space(struct parser *p);
uint16_t shared_address(struct parser *p, bool shared, int32_t *offset);

/* One for each kind of instruction; the mnemonic has been read. */
void compile_abs_neg(struct parser *p);
void compile_add(struct parser *p);
void compile_div(struct parser *p);
void compile_dot(struct parser *p);
void compile_function(struct parser *p);
void compile_mad(struct parser *p);
void compile_min_max(struct parser *p);
void compile_mul(struct parser *p);
void compile_mul24(struct parser *p);
void compile_sad(struct parser *p);
void compile_bfe(struct parser *p);
void compile_bfi(struct parser *p);
void compile_bfind(struct parser *p);
void compile_bmsk(struct parser *p);
void compile_fns(struct parser *p);
void compile_szext(struct parser *p);
void compile_count_bits(struct parser *p);
void compile_logic(struct parser *p);
void compile_lop3(struct parser *p);
void compile_prmt(struct parser *p);
void compile_shf(struct parser *p);
void compile_shift(struct parser *p);
void compile_copysign(struct parser *p);
void compile_selp(struct parser *p);
void compile_set(struct parser *p);
void compile_setp(struct parser *p);
void compile_slct(struct parser *p);
void compile_testp(struct parser *p);
void compile_cvt(struct parser *p);
void compile_mov(struct parser *p);
void compile_atomic(struct parser *p);
void compile_createpolicy(struct parser *p);
void compile_cvta(struct parser *p);
void compile_fence(struct parser *p);
void compile_isspacep(struct parser *p);
void compile_ld_st(struct parser *p);
void compile_mapa(struct parser *p);
void compile_getctarank(struct parser *p);
void compile_prefetch(struct parser *p);
void compile_query(struct parser *p);
void compile_surface(struct parser *p);
void compile_tex(struct parser *p);
void compile_tld4(struct parser *p);
void compile_cp(struct parser *p);
void compile_mbarrier(struct parser *p);
void compile_ldmatrix(struct parser *p);
void compile_mma(struct parser *p);
void compile_wmma(struct parser *p);
void compile_wgmma(struct parser *p);
void compile_bra(struct parser *p, enum op op, uint16_t condition);
void compile_brx(struct parser *p);
void compile_call(struct parser *p);
void compile_hint(struct parser *p);
void compile_pmevent(struct parser *p);
void compile_nanosleep(struct parser *p);
void compile_simple(struct parser *p);
void compile_activemask(struct parser *p);
void compile_bar(struct parser *p);
void compile_elect(struct parser *p);
void compile_match(struct parser *p);
void compile_redux(struct parser *p);
void compile_shfl(struct parser *p);
void compile_vote(struct parser *p);

#endif
