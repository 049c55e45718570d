/* Attention as one operation: the product of queries and keys, its scale, an inner graph on the
 * scores, softmax, and the product with the values. */
#include "program.h"

enum { Q = 2800, K, V, O, STATS, SCALE, BLOCK_MASK, PAGES_K, PAGES_V, LENGTH_Q, LENGTH_KV };
enum { GRAPH = 2811, GRAPH_INPUT, GRAPH_OUTPUT, SOFTMAX, SEED, OFFSET, DUMP, DROPOUT };
enum { SUM_Q = 2820, AMAX_O = 2829 };

static struct step product(int c, int a, int b) {
    return (struct step){.run = run_product,
                         .results = 1,
                         .slots = {c, a, b, NONE, NONE, NONE, NONE, NONE, NONE, NONE}};
}

static int transposed(struct program *p, int of) {
    if (of == NONE) return NONE;
    struct tensor is = p->slots[of].is;
    int row = is.rank - 2, column = is.rank - 1;
    if (row < 0) return failed(p, SHAPE_MISMATCH), NONE;
    is.size[row] = p->slots[of].is.size[column], is.size[column] = p->slots[of].is.size[row];
    is.stride[row] = p->slots[of].is.stride[column],
    is.stride[column] = p->slots[of].is.stride[row];
    return slot_view(p, of, HIDDEN, &is);
}

/* Add the inner graph's steps; return the scores after them. */
static int modified(struct program *p, struct descriptor *d, int scores) {
    int64_t input = HIDDEN, output = HIDDEN;
    struct descriptor *graph = referred(d, GRAPH);
    if (graph == NULL || p->status != OK) return scores;
    if (numbers(d, GRAPH_INPUT, &input, 1) != 1 || numbers(d, GRAPH_OUTPUT, &output, 1) != 1)
        failed(p, BAD_PARAM);
    if (input == output || p->status != OK) return scores;
    slot_view(p, scores, input, &p->slots[scores].is);
    add_operations(p, graph);
    int found = slot_find(p, output);
    if (found == NONE) failed(p, BAD_PARAM);
    if (p->status != OK) return scores;
    p->slots[found].kind = VIRTUAL; /* only the inner graph writes it */
    return found;
}

static int scaled(struct program *p, struct descriptor *d, int scores, const int64_t *size) {
    int scale = slot_of(p, d, SCALE);
    if (scale == NONE) return scores;
    int to = slot_hidden(p, 4, size);
    struct step s = {.run = run_pointwise,
                     .results = 1,
                     .alpha = {1, 1},
                     .pointwise = {.mode = PW_MUL},
                     .slots = {to, scores, scale, NONE, NONE, NONE, NONE, NONE, NONE, NONE}};
    if (p->status == OK && !spreads(&p->slots[scale].is, &p->slots[to].is))
        failed(p, SHAPE_MISMATCH);
    step_add(p, &s);
    return to;
}

static void refuse(struct program *p, struct descriptor *d) {
    without(p, d, BLOCK_MASK, "attention with a block mask");
    without(p, d, PAGES_K, "paged attention");
    without(p, d, PAGES_V, "paged attention");
    without(p, d, LENGTH_Q, "attention over sequences of different lengths");
    without(p, d, LENGTH_KV, "attention over sequences of different lengths");
    without(p, d, SUM_Q, "attention over sequences of different lengths");
    for (int i = SUM_Q + 1; i <= AMAX_O; i++) without(p, d, i, "8-bit attention");
    if (real(d, DROPOUT, 0) != 0) not_here(p, "dropout in attention");
}

void add_attention(struct program *p, struct descriptor *d) {
    refuse(p, d);
    int q = slot_needed(p, d, Q), k = transposed(p, slot_needed(p, d, K));
    int v = slot_needed(p, d, V), o = slot_needed(p, d, O);
    if (p->status != OK) return;
    int64_t size[DIMENSIONS];
    memcpy(size, p->slots[q].is.size, sizeof size);
    if (p->slots[q].is.rank != 4 || p->slots[k].is.rank != 4) failed(p, SHAPE_MISMATCH);
    size[3] = p->slots[k].is.size[3];
    int scores = slot_hidden(p, 4, size);
    struct step s = product(scores, q, k);
    add_product_of(p, &s);
    scores = modified(p, d, scaled(p, d, scores, size));
    int shares = slot_hidden(p, 4, size);
    struct descriptor *softmax = referred(d, SOFTMAX);
    struct step whole_rows = {.run = run_softmax, .results = 4};
    for (int i = 0; i < MOST_OPERANDS; i++) whole_rows.slots[i] = NONE;
    if (softmax != NULL) {
        add_softmax_of(p, softmax, scores, shares);
    } else {
        whole_rows.slots[SOFTMAX_Y] = shares;
        whole_rows.slots[SOFTMAX_X] = scores;
        whole_rows.slots[SOFTMAX_STATS] = slot_of(p, d, STATS);
        softmax_add(p, &whole_rows);
    }
    s = product(o, shares, v);
    add_product_of(p, &s);
}
