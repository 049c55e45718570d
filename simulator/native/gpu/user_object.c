/* User objects: a program's object that lives while the program or a graph refers to it. The thread
 * that drops the last reference calls the destructor. */
#include "graph.h"

#include <stdlib.h>

struct user_object {
    void *value;
    CUhostFn destroy;
    /* Separate, so a program cannot release a graph's references. */
    uint64_t refs_of_program, refs_of_graphs;
};

/* References of one graph to one object. */
struct kept {
    struct user_object *object;
    uint64_t refs;
    struct kept *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all counts */

struct user_object *user_object_create(void *value, CUhostFn destroy, unsigned refs) {
    struct user_object *object = calloc(1, sizeof *object);
    if (!object || !handle_add(object, HANDLE_USER_OBJECT)) {
        free(object);
        return NULL;
    }
    *object = (struct user_object){.value = value, .destroy = destroy, .refs_of_program = refs};
    return object;
}

/* Drop references from one of the two counts. The destructor runs without the lock: it may take the
 * program's locks. */
static bool drop(struct user_object *object, uint64_t *refs, uint64_t count) {
    pthread_mutex_lock(&lock);
    bool has = *refs >= count;
    if (has) *refs -= count;
    bool last = has && object->refs_of_program == 0 && object->refs_of_graphs == 0;
    if (last) handle_remove(object);
    pthread_mutex_unlock(&lock);
    if (!last) return has;
    object->destroy(object->value);
    free(object);
    return true;
}

void user_object_retain(struct user_object *object, unsigned count) {
    pthread_mutex_lock(&lock);
    object->refs_of_program += count;
    pthread_mutex_unlock(&lock);
}

bool user_object_release(struct user_object *object, unsigned count) {
    return drop(object, &object->refs_of_program, count);
}

/* Return the graph's entry for the object, or a new one at the end; NULL: no memory. */
static struct kept *entry_of(struct graph *graph, struct user_object *object) {
    struct kept **at = &graph->kept;
    while (*at && (*at)->object != object) at = &(*at)->next;
    if (!*at && (*at = calloc(1, sizeof **at)) != NULL) (*at)->object = object;
    return *at;
}

CUresult graph_keep(struct graph *graph, struct user_object *object, unsigned count, bool move) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct kept *kept = NULL;
    if (move && object->refs_of_program < count)
        result = CUDA_ERROR_INVALID_VALUE;
    else if ((kept = entry_of(graph, object)) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else {
        kept->refs += count;
        object->refs_of_graphs += count;
        if (move) object->refs_of_program -= count;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

bool graph_unkeep(struct graph *graph, struct user_object *object, unsigned count) {
    pthread_mutex_lock(&lock);
    struct kept **at = &graph->kept;
    while (*at && (*at)->object != object) at = &(*at)->next;
    struct kept *kept = *at;
    bool has = kept && kept->refs >= count;
    if (has) kept->refs -= count;
    bool empty = has && kept->refs == 0;
    if (empty) *at = kept->next;
    pthread_mutex_unlock(&lock);
    if (empty) free(kept);
    return has && drop(object, &object->refs_of_graphs, count);
}

bool graph_keep_the_same(struct graph *graph, const struct graph *other) {
    bool fine = true;
    pthread_mutex_lock(&lock);
    for (const struct kept *kept = other->kept; kept; kept = kept->next) {
        struct kept *copy = entry_of(graph, kept->object);
        fine = copy != NULL;
        if (!copy) break;
        copy->refs += kept->refs;
        kept->object->refs_of_graphs += kept->refs;
    }
    pthread_mutex_unlock(&lock);
    return fine;
}

void graph_keep_nothing(struct graph *graph) {
    while (graph->kept) {
        struct kept *kept = graph->kept;
        graph->kept = kept->next;
        drop(kept->object, &kept->object->refs_of_graphs, kept->refs);
        free(kept);
    }
}
