/* A driver that counts calls, and makes them in the driver DRIVER: see counting_driver.py, which
 * writes counted.h with COUNT, AT_… (a function's place), OFFSETS, FUNCTIONS, and all functions but
 * those below. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int cuKernelGetFunction(void **function, void *kernel);
int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **values, void **extra);
__typeof__(cuLaunchKernel) cuLaunchKernel_ptsz;
int cuLaunchKernelEx(const void *how, void *kernel, void **values, void **extra);
__typeof__(cuLaunchKernelEx) cuLaunchKernelEx_ptsz;
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status);

#include "counted.h"

__attribute__((visibility("hidden"))) void *real[COUNT];
__attribute__((visibility("hidden"))) uint64_t *counts;
static const uint64_t offsets[COUNT] = {OFFSETS};
static void *const here[COUNT] = {FUNCTIONS};

__attribute__((constructor)) static void begin(void) {
    static uint64_t nowhere[COUNT + 1];
    counts = nowhere;
    const char *folder = getenv("CALLS_FOLDER");
    if (folder != NULL) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.calls", folder, (int)getpid());
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0 && ftruncate(fd, sizeof nowhere) == 0) {
            void *mapped = mmap(NULL, sizeof nowhere, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (mapped != MAP_FAILED) counts = mapped;
        }
        if (fd >= 0) close(fd);
    }
    void *driver = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    /* Not with dlsym, which an interposer answers. */
    struct link_map *map;
    if (dlinfo(driver, RTLD_DI_LINKMAP, &map) != 0) abort();
    for (int i = 0; i < COUNT; i++) real[i] = (void *)(map->l_addr + offsets[i]);
}

static void *counted(void *function) {
    for (int i = 0; i < COUNT; i++)
        if (real[i] == function) return here[i];
    return function;
}

#define COUNTED(name) __atomic_fetch_add(&counts[AT_##name], 1, __ATOMIC_RELAXED)
#define CALL(name, ...) ((int (*)(__VA_ARGS__))real[AT_##name])
#define SEEN (1 << 16)

/* Counts a kernel when it is seen for the first time. */
static void seen(void *kernel) {
    static void *table[SEEN];
    for (uintptr_t at = (uintptr_t)kernel >> 4, tries = 0; tries < SEEN; at++, tries++) {
        void *none = NULL;
        if (__atomic_load_n(&table[at % SEEN], __ATOMIC_RELAXED) == kernel) return;
        if (!__atomic_compare_exchange_n(&table[at % SEEN], &none, kernel, 0, __ATOMIC_RELAXED,
                                         __ATOMIC_RELAXED)) {
            if (none == kernel) return;
            continue;
        }
        __atomic_fetch_add(&counts[COUNT], 1, __ATOMIC_RELAXED);
        return;
    }
}

int cuKernelGetFunction(void **function, void *kernel) {
    COUNTED(cuKernelGetFunction);
    seen(kernel);
    return CALL(cuKernelGetFunction, void **, void *)(function, kernel);
}

#define LAUNCH(name)                                                                          \
    int name(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,   \
             unsigned bz, unsigned shared, void *stream, void **values, void **extra) {       \
        COUNTED(name);                                                                        \
        seen(kernel);                                                                         \
        return CALL(name, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                    unsigned, void *, void **,                                                \
                    void **)(kernel, gx, gy, gz, bx, by, bz, shared, stream, values, extra);  \
    }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)

#define LAUNCH_EX(name)                                                                        \
    int name(const void *how, void *kernel, void **values, void **extra) {                     \
        COUNTED(name);                                                                         \
        seen(kernel);                                                                          \
        return CALL(name, const void *, void *, void **, void **)(how, kernel, values, extra); \
    }
LAUNCH_EX(cuLaunchKernelEx)
LAUNCH_EX(cuLaunchKernelEx_ptsz)

int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    COUNTED(cuGetProcAddress);
    int result =
        CALL(cuGetProcAddress, const char *, void **, int, uint64_t)(name, found, version, flags);
    if (result == 0) *found = counted(*found);
    return result;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    COUNTED(cuGetProcAddress_v2);
    int result = CALL(cuGetProcAddress_v2, const char *, void **, int, uint64_t,
                      int *)(name, found, version, flags, status);
    if (result == 0 && found != NULL) *found = counted(*found);
    return result;
}
