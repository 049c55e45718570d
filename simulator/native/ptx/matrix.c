/* Matrices in the registers of a warp. The PTX ISA defines the place of each element: with 32 lanes
 * in eight rows (or columns) of four, a register holds one, two or four neighbours along the summed
 * direction; further registers hold the rows eight below and the following columns.
 */
#include "exec.h"

#include <math.h>
#include <string.h>

enum { ROWS = 16, COLUMNS = 8, DEPTH = 32 };

uint16_t operand_slot(const struct ins *words, unsigned i) {
    const struct ins *w = words + i / 4;
    return i % 4 == 0 ? w->d : i % 4 == 1 ? w->a : i % 4 == 2 ? w->b : w->c;
}

double matrix_element(enum element type, const union slot *s, unsigned i) {
    switch (type) {
    case ELEMENT_F16: return half_to_float((uint16_t)(s->u32 >> 16 * i));
    case ELEMENT_BF16: return bfloat_to_float((uint16_t)(s->u32 >> 16 * i));
    case ELEMENT_TF32: return (union slot){.u32 = s->u32 & ~0x1fffu}.f32;
    case ELEMENT_E4M3: return quarter_to_float((uint8_t)(s->u32 >> 8 * i), true);
    case ELEMENT_E5M2: return quarter_to_float((uint8_t)(s->u32 >> 8 * i), false);
    case ELEMENT_S8: return (int8_t)(s->u32 >> 8 * i);
    case ELEMENT_U8: return (uint8_t)(s->u32 >> 8 * i);
    case ELEMENT_F32: return s->f32;
    case ELEMENT_S32: return s->s32;
    case ELEMENT_F64: break;
    }
    return s->f64;
}

struct product {
    double a[ROWS][DEPTH], b[DEPTH][COLUMNS], d[ROWS][COLUMNS];
};

static void gather(struct product *m, struct thread *lanes, unsigned aux) {
    unsigned rows = MMA_ROWS(aux), k = MMA_K(aux), each = elements_of_register(MMA_A(aux));
    unsigned of_a = rows * k / (32 * each), of_b = COLUMNS * k / (32 * each), below = rows / 8;
    for (unsigned lane = 0; lane < WARP_SIZE; lane++) {
        const union slot *R = thread_registers(&lanes[lane]);
        const struct ins *at = lanes[lane].pc;
        unsigned group = lane / 4, first = lane % 4 * each;
        for (unsigned r = 0; r < of_a; r++) {
            double *to = &m->a[group + 8 * (r % below)][r / below * 4 * each + first];
            const union slot *s = &R[operand_slot(at + 2, r)];
            for (unsigned i = 0; i < each; i++) to[i] = matrix_element(MMA_A(aux), s, i);
        }
        for (unsigned r = 0; r < of_b; r++) {
            const union slot *s = &R[operand_slot(at + 4, r)];
            for (unsigned i = 0; i < each; i++)
                m->b[r * 4 * each + first + i][group] = matrix_element(MMA_B(aux), s, i);
        }
    }
}

/* Return the slot of one of the two elements of d and c that a lane has per eight rows. */
static union slot *sum_slot(struct thread *lane, bool result, unsigned aux, unsigned below,
                            unsigned i) {
    unsigned r = MMA_SUM(aux) == SUM_F16 ? below : 2 * below + i;
    return &thread_registers(lane)[operand_slot(lane->pc + (result ? 0 : 5), r)];
}

double matrix_sum_value(const union slot *s, enum sum type, unsigned i) {
    switch (type) {
    case SUM_F32: return s->f32;
    case SUM_F16: return half_to_float((uint16_t)(s->u32 >> 16 * i));
    case SUM_S32: return s->s32;
    case SUM_F64: break;
    }
    return s->f64;
}

void matrix_sum_store(union slot *s, enum sum type, unsigned i, double v, bool saturate) {
    switch (type) {
    case SUM_F32:
        if (isnan(v))
            s->u64 = 0x7fffffff; /* the canonical NaN of PTX */
        else
            s->u64 = (union slot){.f32 = (float)v}.u32;
        break;
    case SUM_F16: {
        uint64_t bits = half_from_double(v, ROUND_NEAREST);
        s->u64 = i ? (s->u64 & 0xffff) | bits << 16 : bits;
        break;
    }
    case SUM_S32: /* integers below 2^53 */
        if (saturate) v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
        s->u64 = (uint32_t)(int64_t)v;
        break;
    case SUM_F64: s->f64 = v; break;
    }
}

/* Add a factor's products with a row to eight sums. Fused: each is rounded once. */
static inline void add_products(double *sums, double factor, const double *row, bool fused) {
    if (fused)
        for (unsigned j = 0; j < COLUMNS; j++) sums[j] = fma(factor, row[j], sums[j]);
    else
        for (unsigned j = 0; j < COLUMNS; j++) sums[j] += factor * row[j];
}

/* In doubles, which hold every product exactly: the sum is rounded to its type once. */
void matrix_multiply(struct thread *lanes) {
    struct product m;
    unsigned aux = lanes[0].pc->aux, rows = MMA_ROWS(aux), depth = MMA_K(aux);
    enum sum type = MMA_SUM(aux);
    gather(&m, lanes, aux);
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned below = 0; below < rows / 8; below++)
            for (unsigned i = 0; i < 2; i++)
                m.d[lane / 4 + 8 * below][lane % 4 * 2 + i] =
                    matrix_sum_value(sum_slot(&lanes[lane], false, aux, below, i), type, i);
    for (unsigned row = 0; row < rows; row++)
        for (unsigned k = 0; k < depth; k++)
            add_products(m.d[row], m.a[row][k], m.b[k], type == SUM_F64);
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned below = 0; below < rows / 8; below++)
            for (unsigned i = 0; i < 2; i++)
                matrix_sum_store(sum_slot(&lanes[lane], true, aux, below, i), type, i,
                                 m.d[lane / 4 + 8 * below][lane % 4 * 2 + i], MMA_SATURATE(aux));
}

/* ---- between registers and shared memory ---- */

/* Read from the lanes where the rows of `count` matrices are; false: an error. */
static bool rows_of(struct exec *x, const struct thread *lanes, unsigned count, bool write,
                    uint16_t *rows[WARP_SIZE]) {
    for (unsigned i = 0; i < 8 * count; i++) {
        const struct ins *at = lanes[i].pc;
        uint64_t address = thread_registers(&lanes[i])[at->a].u64 + (uint64_t)(int64_t)at->imm;
        rows[i] = shared_memory(x, address, 16, 16, write);
        x->failed_thread = lanes[i].index;
        if (!rows[i]) return false;
    }
    return true;
}

bool matrix_move(struct exec *x, struct thread *lanes) {
    unsigned count = lanes[0].pc->aux & (MATRIX_TRANSPOSED - 1);
    bool transposed = lanes[0].pc->aux & MATRIX_TRANSPOSED, write = lanes[0].pc->op == OP_stmatrix;
    uint16_t *rows[WARP_SIZE];
    if (!rows_of(x, lanes, count, write, rows)) return false;
    *(write ? &x->stats.stores : &x->stats.loads) += WARP_SIZE;
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned m = 0; m < count; m++) {
            union slot *s = &thread_registers(&lanes[lane])[operand_slot(lanes[lane].pc + 2, m)];
            uint16_t part[2] = {(uint16_t)s->u32, (uint16_t)(s->u32 >> 16)};
            for (unsigned i = 0; i < 2; i++) {
                unsigned across = lane % 4 * 2 + i, along = lane / 4;
                uint16_t *place =
                    transposed ? &rows[8 * m + across][along] : &rows[8 * m + along][across];
                if (write)
                    *place = part[i];
                else
                    part[i] = *place;
            }
            if (!write) s->u64 = part[0] | (uint32_t)part[1] << 16;
        }
    return true;
}

/* ---- fragments ---- */

/* The place of element e of a matrix in row-major order: the lanes have them one after the other,
 * each as many as its registers hold. */
struct fragment {
    enum element type;
    unsigned total, each; /* elements in total and per lane */
    unsigned words;       /* index of the first word with its registers */
};

static struct fragment fragment_of(const struct wmma_shape *shape, enum part part,
                                   enum element type, unsigned words) {
    return (struct fragment){type, fragment_total(shape, part),
                             fragment_registers(shape, part, type) * elements_of_register(type),
                             words};
}

static union slot *fragment_slot(const struct fragment *f, struct thread *lane, unsigned i) {
    return &thread_registers(lane)[operand_slot(lane->pc + f->words, i)];
}

static void fragment_values(const struct fragment *f, struct thread *lanes, double *to) {
    unsigned per = elements_of_register(f->type);
    for (unsigned lane = 0; lane < WARP_SIZE && lane * f->each < f->total; lane++)
        for (unsigned r = 0; r < f->each / per; r++, to += per) {
            const union slot *s = fragment_slot(f, &lanes[lane], r);
            for (unsigned i = 0; i < per; i++) to[i] = matrix_element(f->type, s, i);
        }
}

static enum sum sum_of(enum element type) {
    return type == ELEMENT_F32   ? SUM_F32
           : type == ELEMENT_F16 ? SUM_F16
           : type == ELEMENT_S32 ? SUM_S32
                                 : SUM_F64;
}

/* As in matrix_multiply. */
void fragment_multiply(struct thread *lanes) {
    double a[512], b[512], sum[256];
    unsigned aux = lanes[0].pc->aux;
    const struct wmma_shape *s = FRAGMENT_SHAPE(aux);
    const struct fragment of_d = fragment_of(s, PART_SUM, WMMA_D(aux), 2),
                          of_a = fragment_of(s, PART_A, WMMA_ELEMENT(aux), 4),
                          of_b = fragment_of(s, PART_B, WMMA_ELEMENT(aux), 6),
                          of_c = fragment_of(s, PART_SUM, WMMA_C(aux), 8);
    fragment_values(&of_a, lanes, a);
    fragment_values(&of_b, lanes, b);
    fragment_values(&of_c, lanes, sum);
    bool fused = WMMA_D(aux) == ELEMENT_F64;
    for (unsigned i = 0; i < s->m; i++)
        for (unsigned k = 0; k < s->k; k++)
            for (unsigned j = 0; j < s->n; j += COLUMNS)
                add_products(&sum[i * s->n + j], a[i * s->k + k], &b[k * s->n + j], fused);
    unsigned per = elements_of_register(of_d.type), e = 0;
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned i = 0; i < of_d.each; i++)
            matrix_sum_store(fragment_slot(&of_d, &lanes[lane], i / per), sum_of(of_d.type),
                             i % per, sum[e++], WMMA_SATURATE(aux));
}

static void *fragment_memory(struct exec *x, enum space space, uint64_t address, uint32_t bytes,
                             bool write) {
    if (space == SPACE_GENERIC && address >> WINDOW_SHIFT == WINDOW_SHARED >> WINDOW_SHIFT) {
        space = SPACE_SHARED;
        address -= WINDOW_SHARED;
    }
    return space == SPACE_SHARED ? shared_memory(x, address, bytes, bytes, write)
                                 : global_memory(x, address, bytes, bytes, write);
}

/* Move one lane's elements; false: an error. */
static bool fragment_move_lane(struct exec *x, struct thread *lane, unsigned number,
                               const struct fragment *f, unsigned wide) {
    const struct ins *at = lane->pc;
    const union slot *R = thread_registers(lane);
    uint64_t base = R[at->a].u64 + (uint64_t)(int64_t)at->imm, stride = R[at->b].u32;
    unsigned per = elements_of_register(f->type), bytes = f->type == ELEMENT_F64 ? 8 : 4 / per;
    bool write = at->op == OP_wmma_store;
    uint64_t loaded[8] = {0};
    for (unsigned i = 0; i < f->each; i++) {
        unsigned e = (number * f->each + i) % f->total, row = e / wide, column = e % wide;
        uint64_t index =
            FRAGMENT_BY_COLUMN(at->aux) ? column * stride + row : row * stride + column;
        uint8_t *place =
            fragment_memory(x, FRAGMENT_SPACE(at->aux), base + index * bytes, bytes, write);
        if (!place) return false;
        uint64_t value = 0;
        unsigned shift = i % per * 8 * bytes;
        if (write) {
            value = fragment_slot(f, lane, i / per)->u64 >> shift;
            memcpy(place, &value, bytes);
        } else {
            memcpy(&value, place, bytes);
            loaded[i / per] |= value << shift;
        }
    }
    for (unsigned r = 0; r < f->each / per && !write; r++)
        fragment_slot(f, lane, r)->u64 = loaded[r];
    return true;
}

bool fragment_move(struct exec *x, struct thread *lanes) {
    unsigned aux = lanes[0].pc->aux;
    const struct wmma_shape *s = FRAGMENT_SHAPE(aux);
    enum part part = FRAGMENT_PART(aux);
    const struct fragment f = fragment_of(s, part, FRAGMENT_ELEMENT(aux), 2);
    *(lanes[0].pc->op == OP_wmma_store ? &x->stats.stores : &x->stats.loads) += WARP_SIZE;
    for (unsigned lane = 0; lane < WARP_SIZE; lane++) {
        x->failed_thread = lanes[lane].index;
        if (!fragment_move_lane(x, &lanes[lane], lane, &f, part == PART_A ? s->k : s->n))
            return false;
    }
    return true;
}
