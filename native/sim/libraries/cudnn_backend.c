/* Simulated cuDNN: the backend, for graphs of one convolution. A descriptor is what was set of it;
 * finalizing one looks at that, and for each such graph there is one engine, without knobs.
 * Numbers: cudnn_graph.h. */
#include "dnn.h"

#include <stdio.h>

#include "cudnn.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { CONVOLUTION = 1, ENGINE, ENGINE_CONFIG, HEURISTICS, PLAN, GRAPH = 15, PACK, TENSOR };
enum { OPERATION_FORWARD = 10, OPERATION_FILTER, OPERATION_DATA };
enum { TYPE_HANDLE = 0, TYPE_BOOLEAN = 2, TYPE_INT64 = 3, TYPE_DOUBLE = 5, TYPE_DESCRIPTOR = 15 };
enum { CONV_MODE = 101, DILATIONS, STRIDES, POST_PADDINGS, PRE_PADDINGS, SPATIAL_DIMS };
enum { HEURISTICS_GRAPH = 201, HEURISTICS_RESULTS };
enum { CONFIG_ENGINE = 300, CONFIG_KNOBS = 302, PLAN_CONFIG = 401, PLAN_WORKSPACE };
enum { GRAPH_OPERATIONS = 801, GRAPH_ENGINES, ENGINE_GRAPH = 1300, ENGINE_INDEX, ENGINE_KNOBS };
enum { ENGINE_NUMERICAL_NOTES = 1303, ENGINE_LAYOUTS, ENGINE_BEHAVIOR_NOTES };
enum { DATA_TYPE = 901, SIZES, STEPS, UNIQUE_ID = 906, IS_VIRTUAL, IS_BY_VALUE };
enum { PACK_IDS = 1000, PACK_POINTERS };
enum { MOST_ATTRIBUTES = 16 };

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

/* ---- what was set ---- */

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

static struct descriptor *referred(struct descriptor *d, int attribute) {
    struct value *value = find(d, attribute);
    if (value == NULL || value->type != TYPE_DESCRIPTOR || value->count != 1) return NULL;
    return *(struct descriptor **)(void *)value->data;
}

/* Numbers of 64 bits, as many as are there: how many. */
static int numbers(struct descriptor *d, int attribute, int64_t *to, int most) {
    struct value *value = find(d, attribute);
    if (value == NULL || value->type != TYPE_INT64 || value->count > most) return 0;
    memcpy(to, value->data, (size_t)value->count * sizeof *to);
    return (int)value->count;
}

static int whole(struct descriptor *d, int attribute, int otherwise) {
    struct value *value = find(d, attribute);
    int number = otherwise;
    if (value != NULL && value->count == 1 && cudnn_elements_of(value->type).bytes == sizeof number)
        memcpy(&number, value->data, sizeof number);
    return number;
}

static double real(struct descriptor *d, int attribute, double otherwise) {
    struct value *value = find(d, attribute);
    if (value == NULL || value->count != 1) return otherwise;
    return element(value->type == TYPE_DOUBLE ? R_64F : R_32F, value->data, 0);
}

/* ---- what it means ---- */

static int tensor_of(struct descriptor *d, struct tensor *tensor) {
    int64_t size[DIMENSIONS], stride[DIMENSIONS];
    struct value *is_virtual = find(d, IS_VIRTUAL), *by_value = find(d, IS_BY_VALUE);
    if (d == NULL || d->type != TENSOR) return BAD_PARAM;
    if ((is_virtual != NULL && is_virtual->data[0]) || (by_value != NULL && by_value->data[0]))
        return NOT_SUPPORTED;
    int rank = numbers(d, SIZES, size, DIMENSIONS);
    if (rank == 0 || numbers(d, STEPS, stride, DIMENSIONS) != rank) return BAD_PARAM;
    return tensor_set(tensor, whole(d, DATA_TYPE, 0), rank, size, stride);
}

static int geometry_of(struct descriptor *d, struct geometry *g) {
    enum { CROSS_CORRELATION = 1 };
    int64_t rank = 0;
    if (d == NULL || d->type != CONVOLUTION) return BAD_PARAM;
    if (numbers(d, SPATIAL_DIMS, &rank, 1) != 1 || rank < 1) return BAD_PARAM;
    if (rank > SPATIAL) return NOT_SUPPORTED;
    *g = (struct geometry){.rank = (int)rank};
    g->is_convolution = whole(d, CONV_MODE, CROSS_CORRELATION) != CROSS_CORRELATION;
    bool all = numbers(d, DILATIONS, g->dilation, SPATIAL) == rank &&
               numbers(d, STRIDES, g->stride, SPATIAL) == rank &&
               numbers(d, PRE_PADDINGS, g->before, SPATIAL) == rank &&
               numbers(d, POST_PADDINGS, g->after, SPATIAL) == rank;
    return all ? OK : BAD_PARAM;
}

/* The attributes of an operation follow each other: alpha, beta, the convolution, three tensors. */
static const struct operation {
    int type;
    enum pass pass;
    int first, x, w, y;
} operations[] = {
    {OPERATION_FORWARD, FORWARD, 700, 704, 703, 705},
    {OPERATION_DATA, BACKWARD_DATA, 706, 710, 709, 711},
    {OPERATION_FILTER, BACKWARD_FILTER, 712, 716, 715, 717},
};

static const struct operation *operation_of(const struct descriptor *d) {
    for (unsigned i = 0; d != NULL && i < sizeof operations / sizeof *operations; i++)
        if (operations[i].type == d->type) return &operations[i];
    return NULL;
}

static int convolution_of(struct descriptor *d, struct convolution *c) {
    const struct operation *operation = operation_of(d);
    *c = (struct convolution){.pass = operation->pass};
    c->alpha = real(d, operation->first, 1);
    c->beta = real(d, operation->first + 1, 0);
    int status = geometry_of(referred(d, operation->first + 2), &c->geometry);
    if (status == OK) status = tensor_of(referred(d, operation->x), &c->x.is);
    if (status == OK) status = tensor_of(referred(d, operation->w), &c->w.is);
    if (status == OK) status = tensor_of(referred(d, operation->y), &c->y.is);
    return status == OK ? convolution_check(c) : status;
}

static struct descriptor *made(int type) {
    struct descriptor *d = calloc(1, sizeof *d);
    if (d != NULL) *d = (struct descriptor){.type = type, .references = 1};
    return d;
}

static int no_such(const struct descriptor *d) {
    fprintf(stderr, "egpu: the simulated cuDNN has no descriptors of type %d\n", d->type);
    return NOT_SUPPORTED;
}

/* A heuristic's one result: the engine that there is. */
static int suggest(struct descriptor *heuristics) {
    struct descriptor *graph = referred(heuristics, HEURISTICS_GRAPH);
    if (graph == NULL || !graph->final) return NOT_FINALIZED;
    struct descriptor *engine = made(ENGINE), *config = made(ENGINE_CONFIG);
    int64_t none = 0;
    int status = engine == NULL || config == NULL ? NO_MEMORY : OK;
    if (status == OK) status = set(engine, ENGINE_GRAPH, TYPE_DESCRIPTOR, 1, &graph);
    if (status == OK) status = set(engine, ENGINE_INDEX, TYPE_INT64, 1, &none);
    if (status == OK) status = set(config, CONFIG_ENGINE, TYPE_DESCRIPTOR, 1, &engine);
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

static int finalize(struct descriptor *d) {
    struct convolution convolution;
    struct tensor tensor;
    int64_t one = 1, none = 0;
    if (operation_of(d) != NULL) return convolution_of(d, &convolution);
    switch (d->type) {
    case CONVOLUTION: return geometry_of(d, &convolution.geometry);
    case TENSOR: return tensor_of(d, &tensor);
    case GRAPH:
        if (find(d, GRAPH_OPERATIONS) == NULL) return BAD_PARAM;
        if (operation_of(referred(d, GRAPH_OPERATIONS)) == NULL) return BAD_PATTERN;
        return set(d, GRAPH_ENGINES, TYPE_INT64, 1, &one);
    case HEURISTICS: return suggest(d);
    case ENGINE: return of_final(d, ENGINE_GRAPH);
    case ENGINE_CONFIG: return of_final(d, CONFIG_ENGINE);
    case PLAN:
        return of_final(d, PLAN_CONFIG) != OK ? NOT_FINALIZED
                                              : set(d, PLAN_WORKSPACE, TYPE_INT64, 1, &none);
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

/* A descriptor that the program made becomes one that is there. */
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

static void *pointer_of(struct descriptor *pack, struct descriptor *tensor) {
    struct value *ids = find(pack, PACK_IDS), *pointers = find(pack, PACK_POINTERS);
    int64_t id, each;
    if (ids == NULL || pointers == NULL || numbers(tensor, UNIQUE_ID, &id, 1) != 1) return NULL;
    for (int64_t i = 0; i < ids->count && i < pointers->count; i++) {
        memcpy(&each, ids->data + i * 8, sizeof each);
        if (each == id) return ((void **)(void *)pointers->data)[i];
    }
    return NULL;
}

API int cudnnBackendExecute(struct handle *handle, struct descriptor *plan,
                            struct descriptor *pack) {
    struct descriptor *engine = referred(referred(plan, PLAN_CONFIG), CONFIG_ENGINE);
    struct descriptor *what = referred(referred(engine, ENGINE_GRAPH), GRAPH_OPERATIONS);
    const struct operation *operation = operation_of(what);
    struct convolution c;
    if (handle == NULL || pack == NULL) return NULL_POINTER;
    if (operation == NULL || !plan->final || !pack->final) return NOT_FINALIZED;
    int status = convolution_of(what, &c);
    if (status != OK) return status;
    c.x.at = pointer_of(pack, referred(what, operation->x));
    c.w.at = pointer_of(pack, referred(what, operation->w));
    c.y.at = pointer_of(pack, referred(what, operation->y));
    return convolution_queue(handle->stream, &c);
}
