/* Helpers of the PTX tests: counted checks, and device memory with bounds checked by the
 * interpreter's callback. */
#ifndef EGPU_PTX_TEST_HARNESS_H
#define EGPU_PTX_TEST_HARNESS_H

#include "ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;

#define CHECK(condition, ...)                      \
    do {                                           \
        checks++;                                  \
        if (!(condition)) {                        \
            failures++;                            \
            printf("%s:%d: ", __FILE__, __LINE__); \
            printf(__VA_ARGS__);                   \
            printf("\n");                          \
        }                                          \
    } while (0)

enum { MAX_BUFFERS = 64 };
static struct {
    uint64_t base, size;
    bool writable;
} buffers[MAX_BUFFERS];
static size_t buffer_count;

static bool buffer_check(void *ctx, uint64_t address, uint64_t length, bool write,
                         egpu_ptx_range *range) {
    (void)ctx;
    for (size_t i = 0; i < buffer_count; i++)
        if (address >= buffers[i].base && address - buffers[i].base < buffers[i].size &&
            buffers[i].size - (address - buffers[i].base) >= length &&
            (buffers[i].writable || !write)) {
            *range = (egpu_ptx_range){buffers[i].base, buffers[i].size,
                                      (void *)(uintptr_t)buffers[i].base, buffers[i].writable};
            return true;
        }
    return false;
}

static void *device(size_t size) {
    void *memory = calloc(1, size + 256);
    if (!memory || buffer_count == MAX_BUFFERS) abort();
    buffers[buffer_count].base = (uint64_t)(uintptr_t)memory;
    buffers[buffer_count].size = size;
    buffers[buffer_count++].writable = true;
    return memory;
}

static void device_free_all(void) {
    while (buffer_count) free((void *)(uintptr_t)buffers[--buffer_count].base);
}

static bool module_alloc(void *ctx, uint64_t size, uint64_t align, uint64_t *address, void **host) {
    (void)ctx, (void)align;
    *host = device(size);
    *address = (uint64_t)(uintptr_t)*host;
    return true;
}

static void module_release(void *ctx, uint64_t address, uint64_t size) {
    (void)ctx, (void)size;
    for (size_t i = 0; i < buffer_count; i++)
        if (buffers[i].base == address) {
            free((void *)(uintptr_t)address);
            buffers[i] = buffers[--buffer_count];
            return;
        }
    CHECK(false, "release of an unknown address");
}

static const egpu_ptx_allocator allocator = {NULL, module_alloc, module_release};
static char load_log[512];

static egpu_ptx_module *load(const char *text) {
    egpu_ptx_module *module;
    egpu_ptx_status status = egpu_ptx_load(text, 0, &allocator, load_log, sizeof load_log, &module);
    CHECK(status == EGPU_PTX_OK, "load: %s: %s", egpu_ptx_status_name(status), load_log);
    return module;
}

static egpu_ptx_stats last_stats;
static egpu_ptx_fault last_fault;

static egpu_ptx_launch shape(unsigned grid, unsigned block, const void *params, size_t bytes) {
    return (egpu_ptx_launch){.grid = {grid, 1, 1},
                             .block = {block, 1, 1},
                             .params = params,
                             .param_bytes = bytes,
                             .check = buffer_check,
                             .max_instructions = 1u << 28};
}

static inline egpu_ptx_status run_kernel(const egpu_ptx_module *module, const char *name,
                                         egpu_ptx_launch launch) {
    const egpu_ptx_kernel *kernel = egpu_ptx_find_kernel(module, name);
    if (!kernel) {
        CHECK(false, "no kernel '%s'", name);
        return EGPU_PTX_UNRESOLVED;
    }
    memset(&last_stats, 0, sizeof last_stats);
    memset(&last_fault, 0, sizeof last_fault);
    return egpu_ptx_run(kernel, &launch, &last_stats, &last_fault);
}

static inline int report(const char *name) {
    device_free_all();
    printf("%s: %d checks, %d failures\n", name, checks, failures);
    return failures != 0;
}

#define HEADER ".version 8.0\n.target sm_80\n.address_size 64\n"

#endif
