/* See libraries.h. A library is found beside the driver, where a simulated machine has its own, in
 * the folders of LD_LIBRARY_PATH, in the toolkit's directory, or as the loader finds it: all of
 * them are what the sandbox shows. `egpu.adapters.executors.libraries` tells people by this order.
 */
#define _GNU_SOURCE
#include "executor/libraries/libraries.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* threads beside call libraries too */
static struct {
    bool tried;
    void *handle;
} loaded[LIBRARIES];

#define TOOLKIT "/usr/local/cuda/lib64"

/* A file that is there and does not load says why: a later one may be another version. */
static void *load_from(const char *folder, size_t length, const char *soname) {
    char path[PATH_MAX];
    int wrote = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, soname);
    if (length == 0 || wrote >= PATH_MAX || access(path, F_OK) != 0) return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "egpu-executor: %s\n", dlerror());
    return library;
}

static void *load_from_path(const char *folders, const char *soname) {
    void *library = NULL;
    while (folders != NULL && library == NULL) {
        size_t length = strcspn(folders, ":");
        library = load_from(folders, length, soname);
        folders = folders[length] == ':' ? folders + length + 1 : NULL;
    }
    return library;
}

static void *load(const char *soname) {
    const char *driver = driver_path(), *slash = strrchr(driver, '/');
    void *library = NULL;
    if (slash != NULL) library = load_from(driver, (size_t)(slash - driver), soname);
    if (library == NULL) library = load_from_path(getenv("LD_LIBRARY_PATH"), soname);
    if (library == NULL) library = load_from(TOOLKIT, strlen(TOOLKIT), soname);
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
