/* Weak definitions of every driver function, so that a library which implements some of them
 * exports all of them: programs link and load, and what is missing says so by name and fails.
 *
 * The library's own (strong) definitions win. Arguments are ignored, hence the empty parameter
 * list: callers of the x86-64 and AArch64 C ABIs pass theirs in registers or on a stack that they
 * clean up themselves.
 */
#include "not_supported.h"
#include "driver_table.h"

#include <stdatomic.h>
#include <stdio.h>

enum { CUDA_ERROR_NOT_SUPPORTED = 801 };

__attribute__((weak)) int egpu_driver_not_supported(const char *symbol) {
    static _Atomic unsigned char told[EGPU_DRIVER_FUNCTIONS];
    const egpu_driver_fn *fn = egpu_driver_symbol(symbol);
    const char *remedy = egpu_driver_remedy(symbol);
    if (fn == NULL ||
        atomic_exchange_explicit(&told[fn - egpu_driver_functions], 1, memory_order_relaxed) == 0)
        fprintf(stderr, "egpu: %s is not supported by this driver%s%s\n", symbol,
                remedy ? ": " : "", remedy ? remedy : "");
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    __attribute__((weak, visibility("default"))) int symbol(void);                       \
    int symbol(void) { return egpu_driver_not_supported(#symbol); }
#include "generated/driver_table.inc"
