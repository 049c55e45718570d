/* Simulated cuDNN: the backend. A descriptor stores its attributes; finalizing checks them. A graph
 * has one engine, without knobs. Numbers: cudnn_graph.h. */
#include "program.h"

#include <stdio.h>

#include "cudnn.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { POINTWISE, CONVOLUTION, ENGINE, ENGINE_CONFIG, HEURISTICS, PLAN, GRAPH = 15, PACK, TENSOR };
enum { PRODUCT = 18, REDUCTION = 21 };
enum {
    TYPE_HANDLE = 0,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_DOUBLE = 5,
    TYPE_DESCRIPTOR = 15,
    TYPE_INT32 = 23
};
enum { HEURISTICS_GRAPH = 201, HEURISTICS_RESULTS };
enum {
    CONFIG_ENGINE = 300,
    CONFIG_KNOBS = 302,
    CONFIG_WORKSPACE,
    CONFIG_SHARED,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE
};
enum { GRAPH_ENGINES = 802, ENGINE_GRAPH = 1300, ENGINE_INDEX, ENGINE_KNOBS };
enum { ENGINE_NUMERICAL_NOTES = 1303, ENGINE_LAYOUTS, ENGINE_BEHAVIOR_NOTES };
enum { PACK_IDS = 1000, PACK_POINTERS };
enum { MOST_ATTRIBUTES = 24 };

struct value {
    int attribute, type;
    int64_t count;
    uint8_t *data;
};

struct descriptor {
    int type, references;
    bool final;
    int values_used;
    struct value values[MOST_ATTRIBUTES];
};

/* ---- attributes ---- */

static void release(struct descriptor *d);

static void clear(struct value *value) {
    for (int64_t i = 0; value->type == TYPE_DESCRIPTOR && i < value->count; i++)
        release(((struct descriptor **)(void *)value->data)[i]);
    free(value->data);
    *value = (struct value){0};
}

static void release(struct descriptor *d) {
    if (d == NULL || --d->references > 0) return;
    for (int i = 0; i < d->values_used; i++) clear(&d->values[i]);
    free(d);
}

static struct value *find(struct descriptor *d, int attribute) {
    for (int i = 0; d != NULL && i < d->values_used; i++)
        if (d->values[i].attribute == attribute) return &d->values[i];
    return NULL;
}

static int set(struct descriptor *d, int attribute, int type, int64_t count, const void *data) {
    size_t bytes = (size_t)count * cudnn_elements_of(type).bytes;
    struct value *value = find(d, attribute);
    if (value == NULL && d->values_used == MOST_ATTRIBUTES) return NOT_SUPPORTED;
    uint8_t *copy = malloc(bytes ? bytes : 1);
    if (copy == NULL) return NO_MEMORY;
    memcpy(copy, data, bytes);
    for (int64_t i = 0; type == TYPE_DESCRIPTOR && i < count; i++)
        ((struct descriptor **)(void *)copy)[i]->references++;
    if (value != NULL)
        clear(value);
    else
        value = &d->values[d->values_used++];
    *value = (struct value){attribute, type, count, copy};
    return OK;
}

struct descriptor *referred_of(struct descriptor *d, int attribute, int64_t which) {
    struct value *value = find(d, attribute);
    if (value == NULL || value->type != TYPE_DESCRIPTOR || which >= value->count) return NULL;
    return ((struct descriptor **)(void *)value->data)[which];
}

struct descriptor *referred(struct descriptor *d, int attribute) {
    struct value *value = find(d, attribute);
    return value == NULL || value->count != 1 ? NULL : referred_of(d, attribute, 0);
}

int type_of(const struct descriptor *d) { return d->type; }
bool is_final(const struct descriptor *d) { return d->final; }
bool is_set(struct descriptor *d, int attribute) { return find(d, attribute) != NULL; }

int numbers(struct descriptor *d, int attribute, int64_t *to, int most) {
    struct value *value = find(d, attribute);
    if (value == NULL || value->type != TYPE_INT64 || value->count > most) return 0;
    memcpy(to, value->data, (size_t)value->count * sizeof *to);
    return (int)value->count;
}

int whole(struct descriptor *d, int attribute, int otherwise) {
    struct value *value = find(d, attribute);
    int number = otherwise;
    if (value != NULL && value->count == 1 && cudnn_elements_of(value->type).bytes == sizeof number)
        memcpy(&number, value->data, sizeof number);
    return number;
}

bool flag(struct descriptor *d, int attribute) {
    struct value *value = find(d, attribute);
    return value != NULL && value->count == 1 && value->data[0] != 0;
}

double real(struct descriptor *d, int attribute, double otherwise) {
    struct value *value = find(d, attribute);
    if (value == NULL || value->count != 1) return otherwise;
    return element(value->type == TYPE_DOUBLE ? R_64F : R_32F, value->data, 0);
}

/* ---- their meaning ---- */

static struct descriptor *made(int type) {
    struct descriptor *d = calloc(1, sizeof *d);
    if (d != NULL) *d = (struct descriptor){.type = type, .references = 1};
    return d;
}

static int no_such(const struct descriptor *d) {
    fprintf(stderr, "egpu: the simulated cuDNN does not support descriptors of type %d\n", d->type);
    return NOT_SUPPORTED;
}

/* A heuristic has one result: the only engine. */
static int suggest(struct descriptor *heuristics) {
    struct descriptor *graph = referred(heuristics, HEURISTICS_GRAPH);
    if (graph == NULL || !graph->final) return NOT_FINALIZED;
    struct descriptor *engine = made(ENGINE), *config = made(ENGINE_CONFIG);
    int64_t none = 0;
    const int nothing = 0;
    int status = engine == NULL || config == NULL ? NO_MEMORY : OK;
    if (status == OK) status = set(engine, ENGINE_GRAPH, TYPE_DESCRIPTOR, 1, &graph);
    if (status == OK) status = set(engine, ENGINE_INDEX, TYPE_INT64, 1, &none);
    if (status == OK) status = set(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
    if (status == OK) status = set(config, CONFIG_WORKSPACE, TYPE_INT64, 1, &none);
    if (status == OK) status = set(config, CONFIG_SHARED, TYPE_INT32, 1, &nothing);
    if (status == OK) engine->final = config->final = true;
    if (status == OK) status = set(heuristics, HEURISTICS_RESULTS, TYPE_DESCRIPTOR, 1, &config);
    release(engine);
    release(config);
    return status;
}

static int of_final(struct descriptor *d, int attribute) {
    struct descriptor *part = referred(d, attribute);
    return part != NULL && part->final ? OK : NOT_FINALIZED;
}

/* Return the program of one operation or a whole graph, or why there is none. The caller frees
 * it. */
static struct program *program_of(struct descriptor *d, int *status) {
    struct program *program = calloc(1, sizeof *program);
    if (program == NULL) *status = NO_MEMORY;
    if (program == NULL) return NULL;
    if (d->type == GRAPH)
        add_operations(program, d);
    else
        add_operation(program, d);
    program_order(program);
    *status = program->status;
    if (*status == OK) return program;
    free(program);
    return NULL;
}

static int check(struct descriptor *d) {
    int status = OK;
    free(program_of(d, &status));
    return status;
}

static int finalize(struct descriptor *d) {
    struct geometry geometry;
    struct tensor tensor;
    int64_t one = 1, none = 0;
    int status;
    if (is_operation(d)) return check(d);
    switch (d->type) {
    case CONVOLUTION: return geometry_of(d, &geometry);
    case TENSOR: return tensor_of(d, &tensor);
    case GRAPH:
        status = check(d);
        return status == OK ? set(d, GRAPH_ENGINES, TYPE_INT64, 1, &one) : status;
    case HEURISTICS: return suggest(d);
    case ENGINE: return of_final(d, ENGINE_GRAPH);
    case ENGINE_CONFIG: return of_final(d, CONFIG_ENGINE);
    case PLAN:
        return of_final(d, PLAN_CONFIG) != OK ? NOT_FINALIZED
                                              : set(d, PLAN_WORKSPACE, TYPE_INT64, 1, &none);
    case POINTWISE:
    case PRODUCT:
    case REDUCTION:
    case PACK: return OK;
    default: return no_such(d);
    }
}

/* ---- the functions ---- */

API int cudnnBackendCreateDescriptor(int type, struct descriptor **descriptor) {
    if (descriptor == NULL) return NULL_POINTER;
    *descriptor = made(type);
    return *descriptor == NULL ? NO_MEMORY : OK;
}
API int cudnnBackendDestroyDescriptor(struct descriptor *descriptor) {
    release(descriptor);
    return OK;
}
API int cudnnBackendFinalize(struct descriptor *descriptor) {
    int status = descriptor == NULL ? NULL_POINTER : finalize(descriptor);
    if (status == OK) descriptor->final = true;
    return status;
}
API int cudnnBackendSetAttribute(struct descriptor *descriptor, int attribute, int type,
                                 int64_t count, const void *elements) {
    if (descriptor == NULL || (elements == NULL && count != 0)) return NULL_POINTER;
    if (count < 0 || cudnn_elements(attribute, type).bytes == 0) return BAD_PARAM;
    return set(descriptor, attribute, type, count, elements);
}

/* Turn a descriptor that the program made into an existing one. */
static int become(struct descriptor *given, struct descriptor *is) {
    if (given == NULL || given->type != is->type) return BAD_PARAM;
    for (int i = 0; i < is->values_used; i++) {
        const struct value *v = &is->values[i];
        int status = set(given, v->attribute, v->type, v->count, v->data);
        if (status != OK) return status;
    }
    given->final = is->final;
    return OK;
}

static bool may_be_none(int attribute) {
    return attribute == CONFIG_KNOBS || cudnn_in(attribute, ENGINE_KNOBS, ENGINE_BEHAVIOR_NOTES);
}

API int cudnnBackendGetAttribute(struct descriptor *descriptor, int attribute, int type,
                                 int64_t wanted, int64_t *count, void *elements) {
    struct value *value = find(descriptor, attribute);
    if (count != NULL) *count = value == NULL ? 0 : value->count;
    if (value == NULL) return may_be_none(attribute) ? OK : NOT_SUPPORTED;
    if (value->type != type) return BAD_PARAM;
    int64_t most = value->count < wanted ? value->count : wanted;
    int status = OK;
    if (elements == NULL || most <= 0) return OK;
    if (type != TYPE_DESCRIPTOR)
        memcpy(elements, value->data, (size_t)most * cudnn_elements_of(type).bytes);
    for (int64_t i = 0; type == TYPE_DESCRIPTOR && status == OK && i < most; i++)
        status = become(((struct descriptor **)elements)[i],
                        ((struct descriptor **)(void *)value->data)[i]);
    return status;
}

static void *pointer_of(struct descriptor *pack, int64_t id) {
    struct value *ids = find(pack, PACK_IDS), *pointers = find(pack, PACK_POINTERS);
    int64_t each;
    for (int64_t i = 0; ids != NULL && pointers != NULL && i < ids->count && i < pointers->count;
         i++) {
        memcpy(&each, ids->data + i * 8, sizeof each);
        if (each == id) return ((void **)(void *)pointers->data)[i];
    }
    return NULL;
}

/* Values of tensors by value are read now. */
static int bind(struct program *program, struct descriptor *pack) {
    for (int i = 0; i < program->slots_used; i++) {
        struct slot *slot = &program->slots[i];
        if (slot->kind != ON_CARD && slot->kind != BY_VALUE) continue;
        slot->at = pointer_of(pack, slot->id);
        if (slot->at == NULL) return BAD_PARAM;
        if (slot->kind == BY_VALUE)
            memcpy(slot->value, slot->at, (size_t)element_bytes(slot->is.type));
    }
    return OK;
}

API int cudnnBackendExecute(struct handle *handle, struct descriptor *plan,
                            struct descriptor *pack) {
    struct descriptor *engine = referred(referred(plan, PLAN_CONFIG), CONFIG_ENGINE);
    struct descriptor *graph = referred(engine, ENGINE_GRAPH);
    if (handle == NULL || pack == NULL) return NULL_POINTER;
    if (graph == NULL || !plan->final || !pack->final) return NOT_FINALIZED;
    int status = OK;
    struct program *program = program_of(graph, &status);
    if (status == OK) status = bind(program, pack);
    if (status == OK) status = program_queue(handle->stream, program);
    free(program);
    return status;
}
