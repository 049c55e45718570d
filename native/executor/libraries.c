/* See libraries.h. A library is found beside the driver, where a simulated machine has its own, and
 * else as the loader finds it: in LD_LIBRARY_PATH and in the system's directories, which are what
 * the sandbox shows. */
#define _GNU_SOURCE
#include "libraries.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>

static struct {
    bool tried;
    void *handle;
} loaded[LIBRARIES];

static void *load(const char *soname) {
    Dl_info driver;
    char path[PATH_MAX];
    void *known = (void *)(uintptr_t)driver_function(EGPU_FN_cuInit);
    if (known != NULL && dladdr(known, &driver) != 0) {
        const char *slash = strrchr(driver.dli_fname, '/');
        int folder = slash == NULL ? 0 : (int)(slash - driver.dli_fname + 1);
        snprintf(path, sizeof path, "%.*s%s", folder, driver.dli_fname, soname);
        void *beside = slash == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (beside != NULL) return beside;
    }
    void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "egpu-executor: %s\n", dlerror());
    return library;
}

void *library_function(enum library_id id, const char *symbol) {
    if (!loaded[id].tried) loaded[id].handle = load(library_facts[id].soname);
    loaded[id].tried = true;
    return loaded[id].handle == NULL ? NULL : dlsym(loaded[id].handle, symbol);
}

CUresult library_missing(enum library_id id) {
    return loaded[id].handle == NULL ? CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
                                     : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
}
