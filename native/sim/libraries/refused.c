/* What a simulated library does not have: it exists, says its name and fails. EXPORTS: the list of
 * the library's functions. What is written elsewhere stands in place of these. Arguments are
 * ignored, hence the empty parameter lists. */
#include <stdatomic.h>
#include <stdio.h>

static void refuse(atomic_bool *told, const char *symbol) {
    if (!atomic_exchange(told, 1))
        fprintf(stderr, "egpu: %s is not among what the simulated library has\n", symbol);
}

#define EXPORTED(symbol)                                           \
    __attribute__((weak, visibility("default"))) int symbol(void); \
    int symbol(void) {                                             \
        static atomic_bool told;                                   \
        refuse(&told, #symbol);                                    \
        return EXPORTS_NOT_SUPPORTED;                              \
    }
#include EXPORTS
