/* Every way to put work on a GPU, and the calls that change a stream under a batch that is being
 * timed. */
#include "interposer.h"
#include "parking/parking.h"

static inline uint64_t work_key(const void *function, unsigned x, unsigned y, unsigned z,
                                unsigned threads) {
    uint64_t key = ((uint64_t)(uintptr_t)function ^ (uint64_t)x << 40 ^ (uint64_t)x >> 8) *
                   0x9E3779B97F4A7C15ull;
    key ^= ((uint64_t)y << 32 ^ (uint64_t)z << 16 ^ threads) * 0xBF58476D1CE4E5B9ull;
    return (key ^ key >> 32) | 1; /* never 0: that is an empty place */
}

#define LAUNCH(FUNCTION, KEY, STREAM, CALL)                    \
    do {                                                       \
        struct launch launch;                                  \
        CUresult result = kernel_settle((FUNCTION), (STREAM)); \
        if (result != CUDA_SUCCESS) return result;             \
        if (launch_is_free()) return CALL;                     \
        result = launch_begin(&launch, (KEY), (STREAM));       \
        if (result != CUDA_SUCCESS) return result;             \
        result = (CALL);                                       \
        launch_end(&launch, result);                           \
        return result;                                         \
    } while (0)

/* In the _ptsz variants "no stream" means the calling thread's own. */
#define STREAM_legacy(stream) (stream)
#define STREAM_ptsz(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

#define FORMS(SUFFIX, STREAM)                                                                      \
    EXPORT CUresult cuLaunchKernel##SUFFIX(CUfunction f, unsigned gx, unsigned gy, unsigned gz,    \
                                           unsigned bx, unsigned by, unsigned bz, unsigned shared, \
                                           CUstream stream, void **parameters, void **extra) {     \
        LAUNCH(f, work_key(f, gx, gy, gz, bx * by * bz), STREAM(stream),                           \
               REAL(cuLaunchKernel##SUFFIX)(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, \
                                            extra));                                               \
    }                                                                                              \
    EXPORT CUresult cuLaunchCooperativeKernel##SUFFIX(                                             \
        CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,             \
        unsigned bz, unsigned shared, CUstream stream, void **parameters) {                        \
        LAUNCH(f, work_key(f, gx, gy, gz, bx * by * bz), STREAM(stream),                           \
               REAL(cuLaunchCooperativeKernel##SUFFIX)(f, gx, gy, gz, bx, by, bz, shared, stream,  \
                                                       parameters));                               \
    }                                                                                              \
    EXPORT CUresult cuLaunchKernelEx##SUFFIX(const CUlaunchConfig *c, CUfunction f,                \
                                             void **parameters, void **extra) {                    \
        if (c == NULL) return REAL(cuLaunchKernelEx##SUFFIX)(c, f, parameters, extra);             \
        LAUNCH(f,                                                                                  \
               work_key(f, c->gridDimX, c->gridDimY, c->gridDimZ,                                  \
                        c->blockDimX * c->blockDimY * c->blockDimZ),                               \
               STREAM(c->hStream), REAL(cuLaunchKernelEx##SUFFIX)(c, f, parameters, extra));       \
    }                                                                                              \
    EXPORT CUresult cuGraphLaunch##SUFFIX(CUgraphExec graph, CUstream stream) {                    \
        uint64_t reserved = 0;                                                                     \
        int device = 0;                                                                            \
        if (!slice_open()) return REFUSED;                                                         \
        struct launch launch;                                                                      \
        CUresult result = launch_begin(&launch, work_key(graph, 0, 0, 0, 0), STREAM(stream));      \
        if (result != CUDA_SUCCESS) return result;                                                 \
        /* who waits for his turn holds no memory yet */                                           \
        result = graph_admit(graph, &reserved, &device)                                            \
                     ? REAL(cuGraphLaunch##SUFFIX)(graph, stream)                                  \
                     : CUDA_ERROR_OUT_OF_MEMORY;                                                   \
        launch_end(&launch, result);                                                               \
        graph_settle(graph, result, reserved, device);                                             \
        return result;                                                                             \
    }

FORMS(, STREAM_legacy)
FORMS(_ptsz, STREAM_ptsz)

/* One work of its own per list of kernels; it is timed and held back on the device of the current
 * context. */
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count,
                                                     unsigned flags) {
    if (REAL(cuLaunchCooperativeKernelMultiDevice) == NULL) return CUDA_ERROR_NOT_FOUND;
    if (list == NULL || count == 0)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned i = 1; i < count; i++) {
        CUresult settled = kernel_settle(list[i].function, list[i].hStream);
        if (settled != CUDA_SUCCESS) return settled;
    }
    LAUNCH(list[0].function,
           work_key(list[0].function, list[0].gridDimX, list[0].gridDimY, list[0].gridDimZ, count),
           list[0].hStream, REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags));
}

EXPORT CUresult cuLaunch(CUfunction f) {
    if (REAL(cuLaunch) == NULL) return CUDA_ERROR_NOT_FOUND;
    LAUNCH(f, work_key(f, 1, 1, 1, 0), NULL, REAL(cuLaunch)(f));
}

EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    if (REAL(cuLaunchGrid) == NULL) return CUDA_ERROR_NOT_FOUND;
    LAUNCH(f, work_key(f, (unsigned)width, (unsigned)height, 1, 0), NULL,
           REAL(cuLaunchGrid)(f, width, height));
}

EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    if (REAL(cuLaunchGridAsync) == NULL) return CUDA_ERROR_NOT_FOUND;
    LAUNCH(f, work_key(f, (unsigned)width, (unsigned)height, 1, 0), stream,
           REAL(cuLaunchGridAsync)(f, width, height, stream));
}

/* ---- captures: what they record must be the program's own calls ---- */

#define CAPTURE(CALL)                                \
    do {                                             \
        if (!slice_open()) return REFUSED;           \
        compute_flush();                             \
        capture_began();                             \
        park_wait();                                 \
        CUresult result = (CALL);                    \
        if (result != CUDA_SUCCESS) capture_ended(); \
        return result;                               \
    } while (0)

#define CAPTURES(SUFFIX)                                                                           \
    EXPORT CUresult cuStreamBeginCapture##SUFFIX(CUstream stream) {                                \
        CAPTURE(REAL(cuStreamBeginCapture##SUFFIX)(stream));                                       \
    }                                                                                              \
    EXPORT CUresult cuStreamBeginCapture_v2##SUFFIX(CUstream stream, CUstreamCaptureMode mode) {   \
        CAPTURE(REAL(cuStreamBeginCapture_v2##SUFFIX)(stream, mode));                              \
    }                                                                                              \
    EXPORT CUresult cuStreamBeginCaptureToGraph##SUFFIX(                                           \
        CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges,    \
        size_t count, CUstreamCaptureMode mode) {                                                  \
        CAPTURE(                                                                                   \
            REAL(cuStreamBeginCaptureToGraph##SUFFIX)(stream, graph, nodes, edges, count, mode));  \
    }                                                                                              \
    EXPORT CUresult cuStreamEndCapture##SUFFIX(CUstream stream, CUgraph *graph) {                  \
        CUresult result = REAL(cuStreamEndCapture##SUFFIX)(stream, graph);                         \
        /* an invalidated capture has ended as well */                                             \
        if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && \
            result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)                                      \
            capture_ended();                                                                       \
        return result;                                                                             \
    }
CAPTURES()
CAPTURES(_ptsz)

#define STREAM_GOES(SYMBOL)                   \
    EXPORT CUresult SYMBOL(CUstream stream) { \
        if (!slice_open()) return REFUSED;    \
        compute_flush();                      \
        kernels_changed();                    \
        return REAL(SYMBOL)(stream);          \
    }
STREAM_GOES(cuStreamDestroy)
STREAM_GOES(cuStreamDestroy_v2)

/* ---- waiting: what ran can be charged now, and pools may have given memory back ---- */

#define WAIT(CALL)                         \
    do {                                   \
        if (!slice_open()) return REFUSED; \
        compute_flush();                   \
        CUresult result = (CALL);          \
        compute_collect();                 \
        pools_settle();                    \
        return result;                     \
    } while (0)

EXPORT CUresult cuCtxSynchronize(void) { WAIT(REAL(cuCtxSynchronize)()); }
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) { WAIT(REAL(cuCtxSynchronize_v2)(context)); }
EXPORT CUresult cuStreamSynchronize(CUstream stream) { WAIT(REAL(cuStreamSynchronize)(stream)); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    WAIT(REAL(cuStreamSynchronize_ptsz)(stream));
}
EXPORT CUresult cuEventSynchronize(CUevent event) { WAIT(REAL(cuEventSynchronize)(event)); }
