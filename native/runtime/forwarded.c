/* Functions that are one driver call with the same arguments. The runtime's header is not included:
 * values cross here as in the ABI, and some parameters differ between the major versions. */
#include <stddef.h>

#include "driver.h"
#include "major.h"

#define DEFINE(symbol, function, parameters, arguments)   \
    API int symbol parameters;                            \
    int symbol parameters {                               \
        NEED_CONTEXT();                                   \
        return runtime_result(driver.function arguments); \
    }
#define EGPU_RUNTIME_FORWARDED(symbol, major, function, parameters, arguments) \
    IF_##major(DEFINE(symbol, function, parameters, arguments))
#include "generated/runtime_table.inc"
