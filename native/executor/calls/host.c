/* Host memory that client and executor share: mapping it at the client's address, and copies
 * between it and the card. See special.h. */
#define _GNU_SOURCE
#include "executor/executor.h"
#include "executor/moves/moves.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define HOST_MAPS 4096
#define HOST_BYTES (UINT64_C(64) << 30)

/* Descriptors that are kept to be handed over. A session has 1024, and a driver needs some. */
#define HOST_KEPT 384

static struct host_range host_maps[HOST_MAPS]; /* bytes 0: free */
static uint64_t host_bytes;
static unsigned host_kept;
static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;

bool within_host(uint64_t address, uint64_t bytes) {
    bool inside = false;
    pthread_mutex_lock(&host_lock);
    for (unsigned i = 0; i < HOST_MAPS && !inside; i++)
        inside = host_maps[i].bytes != 0 && bytes <= host_maps[i].bytes &&
                 address >= host_maps[i].address &&
                 address - host_maps[i].address <= host_maps[i].bytes - bytes;
    pthread_mutex_unlock(&host_lock);
    return inside;
}

static CUresult copy_host(struct task *task, bool in) {
    struct wire_copy_host copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    if (!within_host(copy.host, copy.bytes)) return CUDA_ERROR_INVALID_VALUE;
    void *host = (void *)(uintptr_t)copy.host;
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy.stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (!in) {
        if (copy.wait)
            return DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)(host, copy.device,
                                                                        copy.bytes);
        return DRIVER(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t,
                      CUstream)(host, copy.device, copy.bytes, stream);
    }
    if (copy.wait)
        return DRIVER(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)(copy.device, host,
                                                                          copy.bytes);
    return DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t,
                  CUstream)(copy.device, host, copy.bytes, stream);
}
CUresult copy_host_in(struct task *task) { return copy_host(task, true); }
CUresult copy_host_out(struct task *task) { return copy_host(task, false); }

static CUresult registered(const struct host_range *range, int fd) {
    void *pages = mmap((void *)(uintptr_t)range->address, range->bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    if (range->context == 0) return CUDA_SUCCESS;
    CUresult result = DRIVER(cuMemHostRegister_v2, void *, size_t, unsigned)(
        pages, range->bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result != CUDA_SUCCESS) munmap(pages, range->bytes);
    return result;
}

CUresult host_add(struct host_range map, int fd) {
    struct stat status;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    bool sane = map.bytes != 0 && map.bytes % 4096 == 0 && map.address % 4096 == 0 &&
                map.address >= WIRE_HOST_LOWEST && map.bytes <= HOST_BYTES - host_bytes &&
                map.address <= WIRE_HOST_HIGHEST - map.bytes && fstat(fd, &status) == 0 &&
                (uint64_t)status.st_size >= map.bytes && fcntl(fd, F_GET_SEALS) >= 0 &&
                (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0;
    unsigned slot = 0;
    while (slot < HOST_MAPS && host_maps[slot].bytes != 0) slot++;
    if (sane && slot < HOST_MAPS) result = registered(&map, fd);
    map.kept = moves_on && result == CUDA_SUCCESS && host_kept < HOST_KEPT ? fd : -1;
    if (map.kept < 0) close(fd);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&host_lock);
        host_kept += map.kept >= 0;
        host_maps[slot] = map;
        host_bytes += map.bytes;
        pthread_mutex_unlock(&host_lock);
    }
    return result;
}

CUresult host_map(struct task *task) {
    struct wire_host_map map;
    if (!begins(task, &map, sizeof map, false) || task->in.left) return violation(task);
    int fd = session_receive_fd();
    if (fd < 0) return violation(task);
    return host_add((struct host_range){map.address, map.bytes, driver_context(), -1}, fd);
}

CUresult host_unmap(struct task *task) {
    struct wire_host_unmap unmap;
    if (!begins(task, &unmap, sizeof unmap, false) || task->in.left) return violation(task);
    struct host_range found = {.bytes = 0};
    pthread_mutex_lock(&host_lock);
    for (unsigned i = 0; i < HOST_MAPS; i++)
        if (host_maps[i].bytes != 0 && host_maps[i].address == unmap.address) {
            found = host_maps[i];
            host_maps[i].bytes = 0;
            host_bytes -= found.bytes;
            host_kept -= found.kept >= 0;
        }
    pthread_mutex_unlock(&host_lock);
    if (found.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (found.kept >= 0) close(found.kept);
    DRIVER(cuMemHostUnregister, void *)((void *)(uintptr_t)found.address);
    munmap((void *)(uintptr_t)found.address, found.bytes);
    return CUDA_SUCCESS;
}

/* ---- moves ---- */

bool host_prevents(char *why) {
    bool prevents = false;
    pthread_mutex_lock(&host_lock);
    for (unsigned i = 0; i < HOST_MAPS && !prevents; i++)
        prevents = host_maps[i].bytes != 0 && host_maps[i].kept < 0;
    pthread_mutex_unlock(&host_lock);
    if (prevents)
        snprintf(why, MOVES_WHY_BYTES, "pinned host memory: more than %d ranges", HOST_KEPT);
    return prevents;
}

const struct host_range *host_next(const struct host_range *last) {
    const struct host_range *next = last == NULL ? host_maps : last + 1;
    while (next < host_maps + HOST_MAPS && next->bytes == 0) next++;
    return next < host_maps + HOST_MAPS ? next : NULL;
}
