/* Replaces CUPTI, NVIDIA's interface for profilers, which uses undocumented parts of NVIDIA's
 * driver and crashes over another one. All its functions exist and report that they are not
 * supported, so a program continues without a profile of the card. Arguments are ignored, hence the
 * empty parameter lists. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define API __attribute__((visibility("default")))

/* From enum CUptiResult. */
enum { INVALID_PARAMETER = 1, NOT_SUPPORTED = 27 };

static int refuse(const char *function) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        fprintf(stderr, "egpu: %s: profiling this GPU (CUPTI) is not supported\n", function);
    return NOT_SUPPORTED;
}

#define EXPORTED(function)  \
    API int function(void); \
    int function(void) { return refuse(#function); }
#include "exports_cupti.h"

/* The version of these functions: JAX treats a library without a version as missing. */
enum { VERSION = 130200 };

API int cuptiGetVersion(uint32_t *version);

int cuptiGetVersion(uint32_t *version) {
    if (!version) return INVALID_PARAMETER;
    *version = VERSION;
    return 0;
}

API int cuptiGetResultString(int result, const char **text);

int cuptiGetResultString(int result, const char **text) {
    if (!text || result != NOT_SUPPORTED) return INVALID_PARAMETER;
    *text = "CUPTI_ERROR_NOT_SUPPORTED";
    return 0;
}
