/* PTX that is read without a device: for the names in it, or to see that it is valid. */
#include "engine.h"

#include <sys/mman.h>

static bool scratch_alloc(void *argument, uint64_t size, uint64_t align, uint64_t *address,
                          void **host) {
    (void)argument, (void)align;
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return false;
    *host = pages;
    *address = (uint64_t)(uintptr_t)pages;
    return true;
}

static void scratch_release(void *argument, uint64_t address, uint64_t size) {
    (void)argument;
    munmap((void *)(uintptr_t)address, size);
}

egpu_ptx_status scratch_load(const char *text, char *log, size_t log_size, egpu_ptx_module **ptx) {
    egpu_ptx_allocator allocator = {.alloc = scratch_alloc, .release = scratch_release};
    return egpu_ptx_load(text, 0, &allocator, log, log_size, ptx);
}
