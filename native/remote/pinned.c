/* Pinned host memory. Over shared memory it is a memfd that both processes map at one address, so
 * the GPU reaches it and copies need no detour. Over a stream it is plain memory of this process:
 * copies from it work, kernels cannot see it (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY is 0). */
#define _GNU_SOURCE
#include "client.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/descriptor.h"
#include "common/kernel.h"

static bool map_there(struct link *link, void *pages, size_t bytes, int fd, unsigned flags) {
    struct call call;
    call_start(&call, OP_HOST_MAP);
    call.link = link;
    struct wire_host_map map = {(uint64_t)(uintptr_t)pages, bytes, flags, 0};
    if (call_begin(&call, sizeof map, CALL_WAITS) != CUDA_SUCCESS) return false;
    put_bytes(&call.out, &map, sizeof map);
    /* If it does not arrive: the frame has its number, so send it; the executor refuses it. */
    struct iovec mark = {&(char){'F'}, 1};
    descriptor_send_all(link->fd, &mark, 1, fd, 0);
    CUresult result = call_exchange(&call);
    call_end(&call);
    return result == CUDA_SUCCESS;
}

static void *pages_shared(struct link *link, size_t bytes, unsigned flags) {
    static _Atomic uint64_t next = WIRE_HOST_LOWEST;
    int fd = kernel_memfd("egpu-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return NULL;
    uint64_t at = atomic_fetch_add(&next, bytes + (1u << 21));
    void *pages = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        pages = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (pages != MAP_FAILED && !map_there(link, pages, bytes, fd, flags)) {
        munmap(pages, bytes);
        pages = MAP_FAILED;
    }
    close(fd);
    return pages == MAP_FAILED ? NULL : pages;
}

#define HOST_FLAGS \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)

API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0 || flags & ~(unsigned)HOST_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    size_t whole = (bytes + 4095) & ~(size_t)4095;
    if (whole < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = link->transport->maps_host_memory ? pages_shared(link, whole, flags) : NULL;
    bool shared = pages != NULL;
    if (pages == NULL)
        pages = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    allocation_add((struct allocation){.base = (uint64_t)(uintptr_t)pages,
                                       .bytes = bytes,
                                       .context = context_current(),
                                       .link = link,
                                       .kind = ALLOCATION_PINNED,
                                       .flags = flags,
                                       .shared = shared});
    *pointer = pages;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

API CUresult cuMemFreeHost(void *pointer) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS || pointer == NULL) return result;
    if (!allocation_find(NULL, (uint64_t)(uintptr_t)pointer, &a) || a.kind != ALLOCATION_PINNED ||
        a.base != (uint64_t)(uintptr_t)pointer)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = cuCtxSynchronize()) != CUDA_SUCCESS) return result;
    if (a.shared) {
        struct call call;
        call_start(&call, OP_HOST_UNMAP);
        call.link = a.link;
        struct wire_host_unmap unmap = {a.base};
        if (call_begin(&call, sizeof unmap, CALL_WAITS) == CUDA_SUCCESS) {
            put_bytes(&call.out, &unmap, sizeof unmap);
            call_exchange(&call);
            call_end(&call);
        }
    }
    allocation_forget(a.link, a.base);
    munmap(pointer, (a.bytes + 4095) & ~(size_t)4095);
    return CUDA_SUCCESS;
}

#define REGISTER_FLAGS                                                                          \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | \
     CU_MEMHOSTREGISTER_READ_ONLY)

/* Registered memory stays the program's own: copies work as from any memory, the GPU does not see
 * it. */
API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0 || flags & ~(unsigned)REGISTER_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation_find(NULL, (uint64_t)(uintptr_t)pointer, &a))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    allocation_add((struct allocation){.base = (uint64_t)(uintptr_t)pointer,
                                       .bytes = bytes,
                                       .context = context_current(),
                                       .link = link,
                                       .kind = ALLOCATION_REGISTERED,
                                       .flags = flags});
    return CUDA_SUCCESS;
}

API CUresult cuMemHostUnregister(void *pointer) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!allocation_find(NULL, (uint64_t)(uintptr_t)pointer, &a) ||
        a.kind != ALLOCATION_REGISTERED || a.base != (uint64_t)(uintptr_t)pointer)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    result = cuCtxSynchronize();
    if (result == CUDA_SUCCESS) allocation_forget(a.link, a.base);
    return result;
}

static CUresult host_allocation(const void *pointer, struct allocation *a) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    return allocation_find(NULL, (uint64_t)(uintptr_t)pointer, a) && a->kind != ALLOCATION_DEVICE
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned int flags) {
    struct allocation a;
    CUresult result = host_allocation(pointer, &a);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL || flags) return CUDA_ERROR_INVALID_VALUE;
    if (!a.shared)
        return not_supported(
            "cuMemHostGetDevicePointer (of memory that the GPU's host does not share)");
    *device = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer) {
    struct allocation a;
    CUresult result = host_allocation(pointer, &a);
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = a.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}
