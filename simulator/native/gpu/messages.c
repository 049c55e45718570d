/* Lines on standard error: what a program needs or calls that is not simulated, and the way out. */
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool engine_verbose(void) {
    const char *value = getenv("EGPU_SIM_VERBOSE");
    return value && *value && strcmp(value, "0") != 0;
}

static bool quiet(void) {
    const char *value = getenv("EGPU_SIM_VERBOSE");
    return value && strcmp(value, "0") == 0;
}

void engine_explain(const char *format, ...) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char line[900];
    if (quiet() || (atomic_flag_test_and_set(&told) && !engine_verbose())) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    engine_say("%s (EGPU_SIM_VERBOSE=0 hides this line)", line);
}

void engine_lacks(const char *needed, const char *remedy) {
    engine_explain("this program needs %s: %s", needed, remedy);
}

void engine_needs_compiled(const char *kind) {
    char needed[128];
    snprintf(needed, sizeof needed, "compiled kernels (%s), which only a real card runs", kind);
    engine_lacks(needed, "use PTX, such as of `nvcc -gencode arch=compute_80,code=compute_80` or "
                         "nvrtcGetPTX");
}

void engine_needs_newer(unsigned target, unsigned card) {
    char needed[64], remedy[80];
    snprintf(needed, sizeof needed, "a card of sm_%u for its PTX, and this one is of sm_%u", target,
             card);
    snprintf(remedy, sizeof remedy, "build with `nvcc -gencode arch=compute_%u,code=compute_%u`",
             card, card);
    engine_lacks(needed, remedy);
}

CUresult engine_unsupported(const char *call, const char *remedy) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *told[512]; /* more than the driver has functions that are not simulated */
    enum { ROOM = sizeof told / sizeof *told };
    unsigned i = 0;
    pthread_mutex_lock(&lock);
    while (i < ROOM && told[i] && strcmp(told[i], call) != 0) i++;
    bool first = i < ROOM && !told[i];
    if (first) told[i] = call;
    pthread_mutex_unlock(&lock);
    if (first && !quiet())
        engine_say("%s is not simulated%s%s", call, remedy ? ": " : "", remedy ? remedy : "");
    return CUDA_ERROR_NOT_SUPPORTED;
}

void engine_say(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "egpu-sim: %s\n", line);
}
