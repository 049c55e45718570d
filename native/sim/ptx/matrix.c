/*
 * Matrices in the registers of a warp. Which element is where is in the PTX ISA: with 32 lanes in
 * eight rows (or columns) of four, a register holds one, two or four neighbours in the direction
 * that is summed over, and further registers the rows eight below and the columns behind.
 */
#include "exec.h"

#include <math.h>
#include <string.h>

enum { ROWS = 16, COLUMNS = 8, DEPTH = 32 };

static uint16_t slot_number(const struct ins *words, unsigned i) {
    const struct ins *w = words + i / 4;
    return i % 4 == 0 ? w->d : i % 4 == 1 ? w->a : i % 4 == 2 ? w->b : w->c;
}

static double element(enum element type, const union slot *s, unsigned i) {
    switch (type) {
    case ELEMENT_F16: return half_to_float((uint16_t)(s->u32 >> 16 * i));
    case ELEMENT_BF16: return bfloat_to_float((uint16_t)(s->u32 >> 16 * i));
    case ELEMENT_TF32: return (union slot){.u32 = s->u32 & ~0x1fffu}.f32;
    case ELEMENT_E4M3: return quarter_to_float((uint8_t)(s->u32 >> 8 * i), true);
    case ELEMENT_E5M2: return quarter_to_float((uint8_t)(s->u32 >> 8 * i), false);
    case ELEMENT_S8: return (int8_t)(s->u32 >> 8 * i);
    case ELEMENT_U8: return (uint8_t)(s->u32 >> 8 * i);
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
            const union slot *s = &R[slot_number(at + 2, r)];
            for (unsigned i = 0; i < each; i++) to[i] = element(MMA_A(aux), s, i);
        }
        for (unsigned r = 0; r < of_b; r++) {
            const union slot *s = &R[slot_number(at + 4, r)];
            for (unsigned i = 0; i < each; i++)
                m->b[r * 4 * each + first + i][group] = element(MMA_B(aux), s, i);
        }
    }
}

/* Of the two elements of d and c that a lane has in each group of eight rows. */
static union slot *sum_slot(struct thread *lane, bool result, unsigned aux, unsigned below,
                            unsigned i) {
    unsigned r = MMA_SUM(aux) == SUM_F16 ? below : 2 * below + i;
    return &thread_registers(lane)[slot_number(lane->pc + (result ? 0 : 5), r)];
}

static double sum_value(const union slot *s, enum sum type, unsigned i) {
    switch (type) {
    case SUM_F32: return s->f32;
    case SUM_F16: return half_to_float((uint16_t)(s->u32 >> 16 * i));
    case SUM_S32: return s->s32;
    case SUM_F64: break;
    }
    return s->f64;
}

static void sum_store(union slot *s, enum sum type, unsigned i, double v, bool saturate) {
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
    case SUM_S32: /* whole numbers below 2^53 */
        if (saturate) v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
        s->u64 = (uint32_t)(int64_t)v;
        break;
    case SUM_F64: s->f64 = v; break;
    }
}

/* As doubles, which hold every product exactly: the sum is rounded to its type once. */
void matrix_multiply(struct thread *lanes) {
    struct product m;
    unsigned aux = lanes[0].pc->aux, rows = MMA_ROWS(aux), depth = MMA_K(aux);
    enum sum type = MMA_SUM(aux);
    gather(&m, lanes, aux);
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned below = 0; below < rows / 8; below++)
            for (unsigned i = 0; i < 2; i++)
                m.d[lane / 4 + 8 * below][lane % 4 * 2 + i] =
                    sum_value(sum_slot(&lanes[lane], false, aux, below, i), type, i);
    for (unsigned row = 0; row < rows; row++)
        for (unsigned k = 0; k < depth; k++) {
            double a = m.a[row][k];
            if (type == SUM_F64) /* each product and sum is rounded together */
                for (unsigned j = 0; j < COLUMNS; j++) m.d[row][j] = fma(a, m.b[k][j], m.d[row][j]);
            else
                for (unsigned j = 0; j < COLUMNS; j++) m.d[row][j] += a * m.b[k][j];
        }
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned below = 0; below < rows / 8; below++)
            for (unsigned i = 0; i < 2; i++)
                sum_store(sum_slot(&lanes[lane], true, aux, below, i), type, i,
                          m.d[lane / 4 + 8 * below][lane % 4 * 2 + i], MMA_SATURATE(aux));
}

/* ---- between registers and shared memory ---- */

/* Where the lanes say that the rows of `count` matrices are; false is a failure. */
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
            union slot *s = &thread_registers(&lanes[lane])[slot_number(lanes[lane].pc + 2, m)];
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
