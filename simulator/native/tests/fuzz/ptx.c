/* The simulator's PTX: invalid text is refused with a reason, valid text runs for a moment, within
 * its memory. The executor parses a tenant's text.
 *
 * Input: the text.
 */
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BUFFERS = 64, LARGEST = 1 << 20 };
static egpu_ptx_range buffers[BUFFERS];
static unsigned buffer_count;

static bool give_memory(void *ctx, uint64_t size, uint64_t align, uint64_t *address, void **host) {
    (void)ctx;
    if (buffer_count == BUFFERS || size > LARGEST || align > 4096) return false;
    size_t unit = align < 16 ? 16 : (size_t)align;
    *host = aligned_alloc(unit, (size_t)(size + unit) / unit * unit);
    if (*host == NULL) return false;
    memset(*host, 0, (size_t)size);
    *address = (uint64_t)(uintptr_t)*host;
    buffers[buffer_count++] = (egpu_ptx_range){*address, size, *host, true};
    return true;
}

static void take_memory(void *ctx, uint64_t address, uint64_t size) {
    (void)ctx;
    for (unsigned i = 0; i < buffer_count; i++)
        if (buffers[i].base == address && buffers[i].size == size) {
            free(buffers[i].host);
            buffers[i] = buffers[--buffer_count];
            return;
        }
    abort(); /* memory that it did not get from us */
}

static bool within(void *ctx, uint64_t address, uint64_t length, bool write,
                   egpu_ptx_range *range) {
    (void)ctx, (void)write;
    for (unsigned i = 0; i < buffer_count; i++)
        if (address >= buffers[i].base && address - buffers[i].base <= buffers[i].size &&
            buffers[i].size - (address - buffers[i].base) >= length) {
            *range = buffers[i];
            return true;
        }
    return false;
}

/* Every number is an object: a mipmap of two levels, over parameters' memory and beyond. */
static const egpu_ptx_texture *texture(void *ctx, uint64_t object, bool surface) {
    static egpu_ptx_texture texture = {
        .channel = EGPU_PTX_UNSIGNED,
        .channel_bytes = 1,
        .channels = 2,
        .level_count = 2,
        .normalized_coordinates = true,
        .normalized_values = true,
        .interpolate = true,
        .interpolate_levels = true,
        .addressing = {EGPU_PTX_WRAP, EGPU_PTX_MIRROR, EGPU_PTX_BORDER},
        .level_most = 9,
    };
    (void)ctx, (void)surface;
    texture.levels[0] = (egpu_ptx_level){object, 13, 11, 6, 64, 704};
    texture.levels[1] = (egpu_ptx_level){object, 6, 5, 6, 64, 704};
    return &texture;
}

/* All of it is readable, and it is short. */
static bool print(void *ctx, const char *text, size_t length, bool error) {
    static uint8_t seen;
    (void)ctx, (void)error;
    for (size_t i = 0; i < length; i++) seen ^= (uint8_t)text[i];
    if (length > 1 << 20) abort();
    return seen & 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const egpu_ptx_allocator allocator = {NULL, give_memory, take_memory};
    static uint64_t parameters[64];
    static uint8_t memory[4096];
    char log[256] = "";
    egpu_ptx_module *module = NULL;
    if (size == 0) return 0; /* means text that ends with NUL */
    egpu_ptx_status status =
        egpu_ptx_load((const char *)data, size, &allocator, log, sizeof log, &module);
    if ((status == EGPU_PTX_OK) != (module != NULL) || (status != EGPU_PTX_OK && log[0] == 0))
        abort();
    for (size_t k = 0; module != NULL && k < egpu_ptx_kernel_count(module) && k < 4; k++) {
        const egpu_ptx_kernel *kernel = egpu_ptx_kernel_at(module, k);
        unsigned own = buffer_count;
        if (egpu_ptx_kernel_describe(kernel)->param_bytes > sizeof parameters || own == BUFFERS)
            continue;
        buffers[buffer_count++] =
            (egpu_ptx_range){(uint64_t)(uintptr_t)memory, sizeof memory, memory, true};
        for (unsigned i = 0; i < 64; i++) parameters[i] = (uint64_t)(uintptr_t)memory;
        egpu_ptx_launch launch = {.grid = {2, 1, 1},
                                  .block = {40, 1, 1},
                                  .params = parameters,
                                  .param_bytes = sizeof parameters,
                                  .max_shared_bytes = 4096,
                                  .check = within,
                                  .texture = texture,
                                  .print = print,
                                  .max_instructions = 5000};
        egpu_ptx_stats stats = {0};
        egpu_ptx_fault fault = {0};
        egpu_ptx_run(kernel, &launch, &stats, &fault);
        buffer_count = own;
    }
    egpu_ptx_unload(module);
    if (buffer_count != 0) abort(); /* some was not released */
    return 0;
}
