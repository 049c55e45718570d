/* Shared by the files of the driver's C ABI. They use cuda.h's plain names: its macros turn
 * cuMemAlloc into cuMemAlloc_v2, and into the _ptds/_ptsz variant where
 * CUDA_API_PER_THREAD_DEFAULT_STREAM is set (cuda_streamed.c is compiled both ways).
 */
#ifndef EGPU_SIM_CUDA_API_H
#define EGPU_SIM_CUDA_API_H

#include "engine.h"

#define API __attribute__((visibility("default")))

/* Common first checks. Each returns from the calling function if its condition does not hold. */
#define NEED_INIT()                                             \
    do {                                                        \
        if (!engine_ready()) return CUDA_ERROR_NOT_INITIALIZED; \
    } while (0)
#define NEED(pointer)                                    \
    do {                                                 \
        if (!(pointer)) return CUDA_ERROR_INVALID_VALUE; \
    } while (0)
#define NEED_CONTEXT(context)                                     \
    struct context *context;                                      \
    do {                                                          \
        CUresult need_result = context_current_checked(&context); \
        if (need_result != CUDA_SUCCESS) return need_result;      \
    } while (0)
#define NEED_DEVICE(device, ordinal)                   \
    NEED_INIT();                                       \
    struct device *device = engine_device(ordinal);    \
    do {                                               \
        if (!device) return CUDA_ERROR_INVALID_DEVICE; \
    } while (0)
#define NEED_HANDLE(pointer, kind)                                               \
    do {                                                                         \
        if (handle_kind_of(pointer) != (kind)) return CUDA_ERROR_INVALID_HANDLE; \
    } while (0)

/* For files that are compiled once per default stream. */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define PER_THREAD true
#else
#define PER_THREAD false
#endif

#define NEED_STREAM(stream, handle)                                                    \
    NEED_CONTEXT(context);                                                             \
    struct stream *stream;                                                             \
    do {                                                                               \
        CUresult stream_result = stream_resolve(handle, PER_THREAD, context, &stream); \
        if (stream_result != CUDA_SUCCESS) return stream_result;                       \
        int stream_error = atomic_load(&stream->context->error);                       \
        if (stream_error != CUDA_SUCCESS) return (CUresult)stream_error;               \
    } while (0)

static inline CUresult of_memory_error(int error) {
    return error ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Return the function of a CUfunction, which may also be a CUkernel. */
CUresult function_of(CUfunction handle, struct context *context, struct function **out);

/* Managed memory: charge the part not on the card to it, as far as there is room; translate a
 * location (memory.h). */
void managed_charge(uint64_t address, struct context *context);
int managed_place(CUmemLocation location);

CUresult graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags);

#endif
