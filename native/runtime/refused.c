/* Unsupported functions of the runtime: they exist, print their name and fail. Arguments are
 * ignored, hence the empty parameter lists: in the x86-64 and AArch64 C ABIs callers clean up their
 * own. */
#include <stdio.h>

#include "driver.h"
#include "major.h"

enum { NOT_SUPPORTED = 801 };

int runtime_refuse(const char *function, const char *reason) {
    fprintf(stderr, "egpu: %s is not supported by this CUDA runtime (%s)\n", function, reason);
    return runtime_error(NOT_SUPPORTED);
}

static int refuse_once(unsigned char *told, const char *function, const char *reason) {
    if (__atomic_exchange_n(told, 1, __ATOMIC_RELAXED) == 0)
        return runtime_refuse(function, reason);
    return runtime_error(NOT_SUPPORTED);
}

#define DEFINE(symbol, reason)                      \
    API int symbol(void);                           \
    int symbol(void) {                              \
        static unsigned char told;                  \
        return refuse_once(&told, #symbol, reason); \
    }
#define EGPU_RUNTIME_REFUSED(symbol, major, reason) IF_##major(DEFINE(symbol, reason))
#include "generated/runtime_table.inc"
