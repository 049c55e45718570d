/* The way out depends on the library that has the runtime inside. */
#define _GNU_SOURCE
#include "runtime_remedy.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { FRAMES = 16 };

/* Our driver and interposer are the first callers. */
static bool is_ours(const char *file) {
    static const char *const names[] = {"/libcuda.so", "/libegpu-"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(file, names[i])) return true;
    return false;
}

/* Return the file that has the runtime; NULL: the program itself, or unknown. */
static const char *file_of_runtime(void) {
    void *frames[FRAMES];
    Dl_info caller;
    int count = backtrace(frames, FRAMES);
    for (int i = 0; i < count; i++)
        if (dladdr(frames[i], &caller) && caller.dli_fname && !is_ours(caller.dli_fname))
            return strstr(caller.dli_fname, ".so") ? caller.dli_fname : NULL;
    return NULL;
}

void runtime_remedy(char *remedy, size_t size) {
    const char *file = file_of_runtime();
    if (!file)
        snprintf(remedy, size, "link the program with `nvcc -cudart shared`");
    else if (strstr(file, "/libcudart.so"))
        snprintf(remedy, size, "%s is NVIDIA's, remove it from the program's library path", file);
    else
        snprintf(remedy, size, "%s has it inside, use a build of it with `nvcc -cudart shared`",
                 file);
}
