/* Lookup of the driver's functions, cuInit, occupancy that needs the program's own code, and
 * unsupported functions. */
#define _GNU_SOURCE
#include "client.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver_table.h"
#include "common/export_table.h"
#include "common/runtime_remedy.h"
#include "not_supported.h"

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static CUresult start(bool needs_device) {
    pthread_mutex_lock(&opening);
    CUresult answer = links_open(); /* a lease may exist now that did not before */
    if (answer == CUDA_SUCCESS && needs_device) {
        visible_choose();
        launches_choose();
        if (visible_count() == 0) answer = CUDA_ERROR_NO_DEVICE;
    }
    if (answer == CUDA_SUCCESS) links_use();
    pthread_mutex_unlock(&opening);
    return answer == CUDA_SUCCESS ? call_ready() : answer;
}

API CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : start(true); }

/* For our NVML: the number of all cards, of which none needs to be visible. */
API CUresult egpuCardCount(int *count);
CUresult egpuCardCount(int *count) {
    CUresult result = start(false);
    *count = (int)card_count();
    return result;
}

/* Programs ask for it, and for functions by name, before cuInit. The servers are asked then.
 * Without servers cuInit fails, and this returns what the table knows. */
static int driver_version(void) {
    static int asked; /* the pid */
    int oldest = CUDA_VERSION;
    pthread_mutex_lock(&opening);
    if (asked != getpid()) {
        asked = getpid();
        links_open();
    }
    for (unsigned i = 0; i < link_count; i++)
        if (i == 0 || (int)links[i]->driver_version < oldest)
            oldest = (int)links[i]->driver_version;
    pthread_mutex_unlock(&opening);
    return oldest;
}

API CUresult cuDriverGetVersion(int *version) {
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = driver_version();
    return CUDA_SUCCESS;
}

/* ---- functions by name ---- */

void *driver_entry(int id); /* entries.c */

static CUresult look_up(const char *symbol, void **entry, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status) {
    if (symbol == NULL || *symbol == 0 || entry == NULL ||
        flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    egpu_driver_status found;
    const egpu_driver_fn *function =
        egpu_driver_answer(symbol, version, driver_version(),
                           flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &found);
    *entry = function == NULL ? NULL : driver_entry((int)(function - egpu_driver_functions));
    if (status != NULL) *status = (CUdriverProcAddressQueryResult)found;
    return function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **entry, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status) {
    return look_up(symbol, entry, version, flags, status);
}

API CUresult cuGetProcAddress(const char *symbol, void **entry, int version, cuuint64_t flags) {
    return look_up(symbol, entry, version, flags, NULL);
}

/* ---- unsupported functions ---- */

void say_once(const char *what, const char *why) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *told[256];
    pthread_mutex_lock(&lock);
    unsigned i = 0;
    while (i < 256 && told[i] != NULL && told[i] != what) i++;
    bool first = i < 256 && told[i] == NULL;
    if (first) told[i] = what;
    pthread_mutex_unlock(&lock);
    if (first) fprintf(stderr, "egpu: %s %s\n", what, why);
}

CUresult not_supported(const char *what) {
    char why[256] = "is not supported on a remote GPU";
    const char *remedy = egpu_driver_remedy(what);
    if (remedy != NULL) snprintf(why + strlen(why), sizeof why - strlen(why), ": %s", remedy);
    say_once(what, why);
    return CUDA_ERROR_NOT_SUPPORTED;
}

int egpu_driver_not_supported(const char *symbol) { return not_supported(symbol); }

API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    if (table != NULL) *table = NULL;
    if (export_table_of_runtime(id)) {
        char why[2 * PATH_MAX] = "is not supported on a remote GPU: ";
        runtime_remedy(why + strlen(why), sizeof why - strlen(why));
        say_once("NVIDIA's runtime library (cuGetExportTable)", why);
    }
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuProfilerStart(void) {
    struct link *link;
    return context_needed(&link);
}
API CUresult cuProfilerStop(void) { return cuProfilerStart(); }

/* ---- occupancy with the program's own function of the block size ---- */

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *min_grid, int *block_size,
                                                       CUfunction handle,
                                                       CUoccupancyB2DSize shared_of, size_t shared,
                                                       int limit, unsigned int flags) {
    struct link *link;
    struct function *function;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (min_grid == NULL || block_size == NULL || flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
    if ((result = function_limits((uint64_t)(uintptr_t)handle, &function)) != CUDA_SUCCESS)
        return result;
    CUdevice device;
    int processors = 0, best = 0, largest = (int)function->max_threads;
    if ((result = cuCtxGetDevice(&device)) != CUDA_SUCCESS) return result;
    if ((result = cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                       device)) != CUDA_SUCCESS)
        return result;
    if (limit > 0 && limit < largest) largest = limit;
    for (int size = largest; size > 0; size -= size % 32 ? size % 32 : 32) {
        int blocks = 0;
        result = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            &blocks, handle, size, shared_of ? shared_of(size) : shared, flags);
        if (result != CUDA_SUCCESS) return result;
        if (blocks * size <= best) continue;
        best = blocks * size;
        *block_size = size;
        *min_grid = blocks * processors;
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *min_grid, int *block_size, CUfunction function,
                                              CUoccupancyB2DSize shared_of, size_t shared,
                                              int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, block_size, function, shared_of,
                                                     shared, limit, 0);
}
