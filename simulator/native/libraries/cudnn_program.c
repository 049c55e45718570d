/* Arrays of a program, the order of its steps, and its execution. */
#include "program.h"

#include <stdio.h>

void failed(struct program *p, int status) {
    if (p->status == OK) p->status = status;
}

void not_here(struct program *p, const char *what) {
    if (p->status == OK) fprintf(stderr, "egpu: the simulated cuDNN does not support %s\n", what);
    failed(p, NOT_SUPPORTED);
}

int slot_add(struct program *p, const struct slot *slot) {
    if (p->status != OK) return NONE;
    if (p->slots_used == MOST_SLOTS) {
        not_here(p, "graphs with so many tensors");
        return NONE;
    }
    p->slots[p->slots_used] = *slot;
    return p->slots_used++;
}

int slot_find(const struct program *p, int64_t id) {
    for (int i = 0; id != HIDDEN && i < p->slots_used; i++)
        if (p->slots[i].id == id) return i;
    return NONE;
}

int slot_hidden(struct program *p, int rank, const int64_t *size) {
    struct slot slot = {.id = HIDDEN, .kind = VIRTUAL, .view_of = NONE};
    failed(p, tensor_set(&slot.is, R_32F, rank, size, NULL));
    memcpy(slot.said, slot.is.stride, sizeof slot.said);
    return slot_add(p, &slot);
}

static int root_of(const struct program *p, int slot) {
    while (slot != NONE && p->slots[slot].kind == VIEW) slot = p->slots[slot].view_of;
    return slot;
}

int slot_view(struct program *p, int of, int64_t id, const struct tensor *is) {
    struct slot slot = {.is = *is, .id = id, .kind = VIEW, .view_of = of};
    if (of == NONE) return NONE;
    slot.is.type = p->slots[of].is.type;
    memcpy(slot.said, is->stride, sizeof slot.said);
    if (tensor_reach(&slot.is) > tensor_reach(&p->slots[root_of(p, of)].is))
        failed(p, SHAPE_MISMATCH);
    return slot_add(p, &slot);
}

void step_add(struct program *p, const struct step *step) {
    if (p->steps_used == MOST_STEPS) not_here(p, "graphs with so many operations");
    if (p->status == OK) p->steps[p->steps_used++] = *step;
}

bool has(const struct step *step, int which) { return step->slots[which] != NONE; }

struct array operand(const struct program *p, const struct step *step, int which) {
    const struct slot *slot = &p->slots[step->slots[which]];
    return (struct array){slot->is, p->slots[root_of(p, step->slots[which])].at};
}

double spread(const struct array *array, const int64_t *at, const int64_t *size) {
    int64_t from[DIMENSIONS];
    for (int i = 0; i < DIMENSIONS; i++) from[i] = at[i] * array->is.size[i] / size[i];
    return get(array, from);
}

bool spreads(const struct tensor *tensor, const struct tensor *over) {
    for (int i = 0; i < DIMENSIONS; i++)
        if (over->size[i] % tensor->size[i] != 0) return false;
    return true;
}

/* ---- order ---- */

static bool writes(const struct program *p, const struct step *step, int root) {
    for (int i = 0; i < step->results; i++)
        if (root_of(p, step->slots[i]) == root) return true;
    return false;
}

/* Return whether no other unfinished step writes anything that it reads. */
static bool ready(const struct program *p, int which, const bool *done) {
    const struct step *step = &p->steps[which];
    for (int i = step->results; i < MOST_OPERANDS; i++) {
        int root = root_of(p, step->slots[i]);
        for (int other = 0; root != NONE && other < p->steps_used; other++)
            if (other != which && !done[other] && writes(p, &p->steps[other], root)) return false;
    }
    return true;
}

void program_order(struct program *p) {
    bool done[MOST_STEPS] = {false};
    struct step ordered[MOST_STEPS];
    for (int used = 0; p->status == OK && used < p->steps_used; used++) {
        int next = 0;
        while (next < p->steps_used && (done[next] || !ready(p, next, done))) next++;
        if (next == p->steps_used) {
            failed(p, BAD_PATTERN); /* the steps wait for each other */
            return;
        }
        done[next] = true;
        ordered[used] = p->steps[next];
    }
    if (p->status == OK) memcpy(p->steps, ordered, (size_t)p->steps_used * sizeof *ordered);
}

/* ---- execution ---- */

static void run(void *data) {
    struct program *p = data;
    for (int i = 0; i < p->slots_used; i++) {
        struct slot *slot = &p->slots[i];
        if (slot->kind == BY_VALUE) slot->at = slot->value;
        if (slot->kind != VIRTUAL) continue;
        slot->at = calloc((size_t)tensor_reach(&slot->is), (size_t)element_bytes(slot->is.type));
        if (slot->at == NULL) abort(); /* otherwise the result would be wrong without an error */
    }
    for (int i = 0; i < p->steps_used; i++) p->steps[i].run(p, &p->steps[i]);
    for (int i = 0; i < p->slots_used; i++)
        if (p->slots[i].kind == VIRTUAL) free(p->slots[i].at);
}

int program_queue(CUstream stream, const struct program *p) {
    for (int i = 0; i < p->slots_used; i++) {
        const struct array array = {p->slots[i].is, p->slots[i].at};
        if (p->slots[i].kind == ON_CARD && !stands(&array)) return FAILED;
    }
    return queued(queue(stream, run, p, sizeof *p));
}
