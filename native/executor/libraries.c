/* See libraries.h. A library is found beside the driver, where a simulated machine has its own, or
 * as the loader finds it, or in the toolkit's directory: all of them are what the sandbox shows. */
#define _GNU_SOURCE
#include "libraries.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* threads beside call libraries too */
static struct {
    bool tried;
    void *handle;
} loaded[LIBRARIES];

#define TOOLKIT "/usr/local/cuda/lib64/"

static void *load_from(const char *folder, int length, const char *soname) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s%s", length, folder, soname);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *load(const char *soname) {
    const char *driver = driver_path(), *slash = strrchr(driver, '/');
    void *library = NULL;
    if (slash != NULL) library = load_from(driver, (int)(slash - driver + 1), soname);
    if (library == NULL) library = load_from(TOOLKIT, (int)strlen(TOOLKIT), soname);
    if (library == NULL) library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "egpu-executor: %s\n", dlerror());
    return library;
}

static void *library(enum library_id id) {
    pthread_mutex_lock(&lock);
    if (!loaded[id].tried) loaded[id].handle = load(library_facts[id].soname);
    loaded[id].tried = true;
    void *handle = loaded[id].handle;
    pthread_mutex_unlock(&lock);
    return handle;
}

void *library_function(enum library_id id, const char *symbol) {
    void *handle = library(id);
    return handle == NULL ? NULL : dlsym(handle, symbol);
}

CUresult library_missing(enum library_id id) {
    return library(id) == NULL ? CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
                               : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
}
