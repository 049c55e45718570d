/* wgmma: four warps multiply matrices in shared memory, named by descriptors. Each warp has 16 of
 * the 64 rows of the sum in its registers, so it computes its part alone. Source: "Asynchronous
 * Warpgroup Level Matrix Multiply-Accumulate" in the PTX ISA.
 */
#include "exec.h"

#include <string.h>

enum { ROWS = 16, MOST_COLUMNS = 256, MOST_DEPTH = 32, CHUNK = 16 };

/* A matrix descriptor. Eight rows of 16 bytes form a group; `leading` and `stride` are the
 * distances between groups. */
struct matrix {
    uint64_t start, leading, stride;
    unsigned width;    /* bytes between rows of a group */
    bool summed_first; /* neighbours in memory are along the summed direction */
    unsigned element;  /* bytes */
};

static bool describe_matrix(uint64_t descriptor, bool summed_first, unsigned element,
                            struct matrix *m) {
    static const unsigned widths[] = {CHUNK, 128, 64, 32};
    *m = (struct matrix){.start = (descriptor & 0x3fff) << 4,
                         .leading = (descriptor >> 16 & 0x3fff) << 4,
                         .stride = (descriptor >> 32 & 0x3fff) << 4,
                         .width = widths[descriptor >> 62],
                         .summed_first = summed_first,
                         .element = element};
    return (descriptor >> 49 & 7) == 0; /* patterns with another base are not documented */
}

/* Return the address of the element `outer` rows (or columns) from the first, and `inner` along the
 * summed direction. Chunks of 16 bytes are permuted by address bits above them. */
static uint64_t element_address(const struct matrix *m, unsigned outer, unsigned inner) {
    uint64_t offset;
    if (m->summed_first) {
        unsigned along = inner * m->element;
        offset = outer % 8 * m->width + outer / 8 * m->stride;
        offset += m->width == CHUNK ? along / CHUNK * m->leading + along % CHUNK : along;
    } else {
        unsigned along = outer * m->element;
        offset = along % m->width + inner % 8 * m->width;
        offset += along / m->width * (m->width == CHUNK ? m->stride : m->leading) +
                  inner / 8 * (m->width == CHUNK ? m->leading : m->stride);
    }
    uint64_t address = m->start + offset;
    return address ^ (address >> 7 & (m->width / CHUNK - 1)) << 4;
}

/* False: an error. */
static bool load_element(struct exec *x, const struct matrix *m, enum element type, unsigned outer,
                         unsigned inner, double *to) {
    union slot s = {0};
    const void *from =
        shared_memory(x, element_address(m, outer, inner), m->element, m->element, false);
    if (!from) return false;
    memcpy(&s, from, m->element);
    *to = matrix_element(type, &s, 0);
    return true;
}

struct product {
    double a[ROWS][MOST_DEPTH], b[MOST_DEPTH][MOST_COLUMNS], d[ROWS][MOST_COLUMNS];
};

static bool load_a(struct exec *x, struct thread *lanes, unsigned aux, unsigned depth,
                   struct product *p) {
    unsigned each = elements_of_register(WGMMA_A(aux));
    struct matrix m;
    if (WGMMA_A_SHARED(aux)) {
        uint64_t descriptor = thread_registers(&lanes[0])[lanes[0].pc->a].u64;
        unsigned first = lanes[0].index / WARP_SIZE % 4 * ROWS;
        if (!describe_matrix(descriptor, !WGMMA_A_TRANSPOSED(aux), 4 / each, &m)) return false;
        for (unsigned i = 0; i < ROWS; i++)
            for (unsigned k = 0; k < depth; k++)
                if (!load_element(x, &m, WGMMA_A(aux), first + i, k, &p->a[i][k])) return false;
        return true;
    }
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned r = 0; r < 4; r++) {
            const union slot *s =
                &thread_registers(&lanes[lane])[operand_slot(lanes[lane].pc + 2, r)];
            for (unsigned i = 0; i < each; i++)
                p->a[lane / 4 + 8 * (r % 2)][(r / 2 * 4 + lane % 4) * each + i] =
                    matrix_element(WGMMA_A(aux), s, i);
        }
    return true;
}

static bool load_b(struct exec *x, struct thread *lanes, unsigned aux, unsigned depth,
                   unsigned columns, struct product *p) {
    uint64_t descriptor = thread_registers(&lanes[0])[lanes[0].pc->b].u64;
    struct matrix m;
    if (!describe_matrix(descriptor, !WGMMA_B_TRANSPOSED(aux),
                         4 / elements_of_register(WGMMA_B(aux)), &m))
        return false;
    for (unsigned k = 0; k < depth; k++)
        for (unsigned j = 0; j < columns; j++)
            if (!load_element(x, &m, WGMMA_B(aux), j, k, &p->b[k][j])) return false;
    return true;
}

/* Return the slot of the two neighbours that a lane has per eight columns and eight rows. */
static union slot *sum_slot(struct thread *lane, enum sum type, unsigned eight, unsigned below,
                            unsigned i) {
    unsigned r = type == SUM_F16 ? 2 * eight + below : 4 * eight + 2 * below + i;
    return &thread_registers(lane)[operand_slot(lane->pc + 3, r)];
}

static void exchange_sums(struct thread *lanes, struct product *p, unsigned columns, bool store) {
    unsigned aux = lanes[0].pc->aux;
    enum sum type = WGMMA_SUM(aux);
    for (unsigned lane = 0; lane < WARP_SIZE; lane++)
        for (unsigned r = 0; r < columns / 2; r++) {
            unsigned eight = r / 4, below = r / 2 % 2, i = r % 2;
            double *d = &p->d[lane / 4 + 8 * below][8 * eight + lane % 4 * 2 + i];
            union slot *s = sum_slot(&lanes[lane], type, eight, below, i);
            if (store)
                matrix_sum_store(s, type, i, *d, WGMMA_SATURATE(aux));
            else
                *d = matrix_sum_value(s, type, i);
        }
}

/* False: the threads are not at the same instruction, or an address is invalid. */
bool warpgroup_multiply(struct exec *x, struct thread *lanes) {
    struct product p;
    const struct ins *at = lanes[0].pc;
    unsigned aux = at->aux, columns = (unsigned)at[1].imm,
             depth = 8 * elements_of_register(WGMMA_A(aux));
    bool same = true;
    for (unsigned lane = 1; lane < WARP_SIZE; lane++)
        same = same && lanes[lane].pc[1].imm == at[1].imm;
    x->failed_thread = lanes[0].index;
    if (!same || !load_a(x, lanes, aux, depth, &p) || !load_b(x, lanes, aux, depth, columns, &p)) {
        if (x->status == EGPU_PTX_OK) x->status = EGPU_PTX_TRAP;
        return false;
    }
    memset(p.d, 0, sizeof p.d);
    if (thread_registers(&lanes[0])[at->c].u64) exchange_sums(lanes, &p, columns, false);
    double sign = WGMMA_NEGATED(aux) ? -1 : 1;
    for (unsigned i = 0; i < ROWS; i++)
        for (unsigned k = 0; k < depth; k++) {
            double a = sign * p.a[i][k];
            for (unsigned j = 0; j < columns; j++) p.d[i][j] += a * p.b[k][j];
        }
    exchange_sums(lanes, &p, columns, true);
    x->stats.loads += WARP_SIZE;
    return true;
}
