/* A driver that does nothing but write down which function was called with which arguments. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "driver_table.h"

typedef uint64_t word;

const char *recorded_symbol;
word recorded[8];

/* How a function is passed integers and pointers on x86-64 and AArch64: eight of them cover all
 * that are forwarded. */
#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result,         \
                             parameters, arguments)                                              \
    static int record_##symbol(word a, word b, word c, word d, word e, word f, word g, word h) { \
        recorded_symbol = #symbol;                                                               \
        memcpy(recorded, (word[]){a, b, c, d, e, f, g, h}, sizeof recorded);                     \
        return 0;                                                                                \
    }
#include "generated/driver_table.inc"

static int (*const entries[])(word, word, word, word, word, word, word, word) = {
#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    record_##symbol,
#include "generated/driver_table.inc"
};

static int initialise(unsigned int flags) { return (int)flags; }

/* The thread has a context already, so nothing but what is asked is called. */
static int current(void **context) {
    *context = (void *)1;
    return 0;
}

/* The newest: it has every function. */
static int version(int *is) {
    *is = 99990;
    return 0;
}

int cuGetProcAddress_v2(const char *name, void **function, int asked, uint64_t flags, int *status) {
    const egpu_driver_fn *found = egpu_driver_find(name, asked, (flags & 2) != 0);
    *function = found ? (void *)entries[found - egpu_driver_functions] : NULL;
    if (strcmp(name, "cuInit") == 0) *function = (void *)initialise;
    if (strcmp(name, "cuDriverGetVersion") == 0) *function = (void *)version;
    if (strcmp(name, "cuCtxGetCurrent") == 0) *function = (void *)current;
    if (status) *status = found ? 0 : 1;
    return found ? 0 : 500;
}
