/* Unsupported functions of a simulated library: they exist, print their name and fail. EXPORTS: the
 * list of the library's functions. Definitions elsewhere replace these. Arguments are ignored,
 * hence the empty parameter lists. */
#include <stdatomic.h>
#include <stdio.h>

static void refuse(atomic_bool *told, const char *symbol) {
    if (!atomic_exchange(told, 1))
        fprintf(stderr, "egpu: the simulated library does not support %s\n", symbol);
}

#define EXPORTED(symbol)                                           \
    __attribute__((weak, visibility("default"))) int symbol(void); \
    int symbol(void) {                                             \
        static atomic_bool told;                                   \
        refuse(&told, #symbol);                                    \
        return EXPORTS_NOT_SUPPORTED;                              \
    }
#include EXPORTS
