#include "driver_table.h"

#include <string.h>

const egpu_driver_fn egpu_driver_functions[EGPU_DRIVER_FUNCTIONS] = {
#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    {#symbol,                                                                            \
     #name,                                                                              \
     version,                                                                            \
     EGPU_THREADS_##threads,                                                             \
     EGPU_INTERPOSER_##interposer,                                                       \
     EGPU_REMOTE_##remote},
#include "generated/driver_table.inc"
};

/* Sorted by name, threads, version. A symbol may answer for two names (cuGraphInstantiate is one of
 * them). */
typedef struct answer {
    const char *name;
    int version;
    egpu_driver_threads threads;
    egpu_driver_id id;
} answer;

static const answer answers[] = {
#define EGPU_DRIVER_ANSWER(name, version, threads, symbol) \
    {#name, version, EGPU_THREADS_##threads, EGPU_FN_##symbol},
#include "generated/driver_table.inc"
};

enum { ANSWERS = sizeof answers / sizeof *answers };

/* Index of the first answer for a name that is not smaller than `name`. */
static size_t first_answer(const char *name) {
    size_t low = 0, high = ANSWERS;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(answers[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const egpu_driver_fn *egpu_driver_query(const char *name, int cuda_version, int per_thread,
                                        egpu_driver_status *status) {
    egpu_driver_status ignored;
    if (status == NULL) status = &ignored;
    *status = EGPU_DRIVER_SYMBOL_NOT_FOUND;
    if (name == NULL) return NULL;

    /* Answers come oldest first, legacy before per-thread: the last that fits is the best. A
     * per-thread variant younger than cuda_version leaves the legacy symbol standing, as the
     * driver's documentation has it. */
    const egpu_driver_fn *best = NULL;
    for (size_t i = first_answer(name); i < ANSWERS && strcmp(answers[i].name, name) == 0; i++) {
        *status = EGPU_DRIVER_VERSION_NOT_SUFFICIENT;
        if (answers[i].threads == EGPU_THREADS_PER_THREAD && !per_thread) continue;
        if (answers[i].version <= cuda_version) best = &egpu_driver_functions[answers[i].id];
    }
    if (best != NULL) *status = EGPU_DRIVER_FOUND;
    return best;
}

const egpu_driver_fn *egpu_driver_answer(const char *name, int asked, int has, int per_thread,
                                         egpu_driver_status *status) {
    /* What came later is no symbol of that driver, whichever version is asked for. */
    if (egpu_driver_query(name, has, per_thread, status) == NULL) {
        if (status != NULL) *status = EGPU_DRIVER_SYMBOL_NOT_FOUND;
        return NULL;
    }
    return egpu_driver_query(name, asked < has ? asked : has, per_thread, status);
}

const egpu_driver_fn *egpu_driver_find(const char *name, int cuda_version, int per_thread) {
    return egpu_driver_query(name, cuda_version, per_thread, NULL);
}

const egpu_driver_fn *egpu_driver_symbol(const char *symbol) {
    if (symbol == NULL) return NULL;
    size_t low = 0, high = EGPU_DRIVER_FUNCTIONS;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(egpu_driver_functions[middle].symbol, symbol);
        if (order == 0) return &egpu_driver_functions[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Names as the table spells them. */
static const char *const interposer_names[] = {
#define EGPU_DRIVER_INTERPOSER_CLASS(class_) #class_,
#include "generated/driver_table.inc"
};

static const char *const remote_names[] = {
#define EGPU_DRIVER_REMOTE_CLASS(class_) #class_,
#include "generated/driver_table.inc"
};

const char *egpu_interposer_class_name(egpu_interposer_class class_) {
    return (unsigned)class_ < EGPU_INTERPOSER_CLASSES ? interposer_names[class_] : "?";
}

const char *egpu_remote_class_name(egpu_remote_class class_) {
    return (unsigned)class_ < EGPU_REMOTE_CLASSES ? remote_names[class_] : "?";
}
