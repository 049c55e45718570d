/* Every decoder of the executor, and the greeting, on whatever bytes: libFuzzer calls LLVMFuzzerTestOneInput. The driver is one that
 * agrees to everything and does nothing; what is tested is that no length, index or handle leads outside.
 *
 * Input: frames of {op u16, flags u16, length u16, zero u16, payload}, all on one set of handles; a first byte of 'G' instead means a greeting.
 */
#include "executor.h"

#include <stdio.h>

#include "greeting.h"
#include "ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int agree(void) { return 0; }
static int no_memory(void) { return CUDA_ERROR_OUT_OF_MEMORY; }
/* Something that changes, so that handles get bound to it. */
static int give_object(void **object) {
    static uintptr_t next = 4096;
    if (object == NULL) return CUDA_ERROR_INVALID_VALUE;
    *object = (void *)(next += 16);
    return 0;
}

driver_pointer driver_function(egpu_driver_id id) {
    switch (id) {
    case EGPU_FN_cuMemHostAlloc:
    case EGPU_FN_cuFuncGetParamInfo:
    case EGPU_FN_cuKernelGetParamInfo: return (driver_pointer)no_memory;
    case EGPU_FN_cuModuleLoadDataEx:
    case EGPU_FN_cuLibraryLoadData:
    case EGPU_FN_cuStreamCreate:
    case EGPU_FN_cuEventCreate:
    case EGPU_FN_cuCtxCreate_v2:
    case EGPU_FN_cuDevicePrimaryCtxRetain:
    case EGPU_FN_cuModuleGetFunction:
    case EGPU_FN_cuKernelGetFunction:
    case EGPU_FN_cuLibraryGetModule:
    case EGPU_FN_cuLibraryGetKernel: return (driver_pointer)give_object;
    default: return (driver_pointer)agree;
    }
}

void session_callback(uint64_t id, CUresult status) { (void)id, (void)status; }
int session_receive_fd(void) { return -1; }
CUresult status_read(uint32_t device, struct writer *out) { return put_word(out, device), CUDA_SUCCESS; }
uint8_t *session_bulk(uint64_t offset, size_t bytes) {
    static uint8_t *bulk;
    if (bulk == NULL) bulk = malloc(SHARED_BULK_BYTES);
    return offset > SHARED_BULK_BYTES || bytes > SHARED_BULK_BYTES - offset ? NULL : bulk + offset;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool ready;
    static uint8_t space[192 << 10];
    if (!ready && !handles_init()) abort();
    ready = true;
    if (size != 0 && data[0] == 'G') {
        struct wire_hello hello;
        greeting_check(data + 1, size - 1, "token", 5, &hello);
        return 0;
    }
    for (unsigned frames = 0; size >= 8 && frames < 64; frames++) {
        uint16_t words[4];
        memcpy(words, data, sizeof words);
        size_t length = words[2] < size - 8 ? words[2] : size - 8;
        uint8_t *payload = malloc(length ? length : 1); /* of its very size: one byte too far is seen */
        if (payload == NULL) return 0;
        memcpy(payload, data + 8, length);
        data += 8 + length;
        size -= 8 + length;
        const struct operation *operation = operation_of((uint16_t)(64 + words[0] % (OP_COUNT - 64)));
        struct task task = {.in = {payload, length, false}, .out = {space, sizeof space, false}, .header = {.op = (uint16_t)(64 + words[0] % (OP_COUNT - 64)), .flags = words[1], .len = (uint32_t)length}};
        if (operation != NULL) operation->run(&task);
        if (task.out.at < space || task.out.at > space + sizeof space) abort();
        free(task.large);
        free(payload);
    }
    return 0;
}
