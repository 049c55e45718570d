/* Work that is queued in a stream. */
#include "work.h"

/* A thread without a context, such as a framework's own, gets the first device's primary one: in
 * the originals a built-in runtime does that. */
static bool have_context(void) {
    CUcontext context = NULL;
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS) return false;
    return context != NULL || (cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                               cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

bool open_context(void) { return cuInit(0) == CUDA_SUCCESS && have_context(); }

bool on_card(const void *at, int64_t bytes) {
    CUdeviceptr base;
    size_t size;
    if (bytes == 0) return true;
    have_context();
    if (bytes < 0 || cuMemGetAddressRange(&base, &size, (CUdeviceptr)(uintptr_t)at) != CUDA_SUCCESS)
        return false;
    uint64_t offset = (uint64_t)(uintptr_t)at - base;
    return offset <= size && (uint64_t)bytes <= size - offset;
}

struct work {
    void (*run)(void *);
    bool again; /* a graph may run it several times */
    _Alignas(16) uint8_t what[];
};

static void do_work(void *data) {
    struct work *work = data;
    work->run(work->what);
    if (!work->again) free(work);
}

CUresult queue(CUstream stream, void (*run)(void *), const void *what, size_t bytes) {
    return queue_with_room(stream, run, what, bytes, 0);
}

CUresult queue_with_room(CUstream stream, void (*run)(void *), const void *what, size_t bytes,
                         size_t room) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    struct work *work = malloc(sizeof *work + bytes + room);
    if (work == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    have_context();
    work->run = run;
    work->again = cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
                  capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    memcpy(work->what, what, bytes);
    CUresult result = cuLaunchHostFunc(stream, do_work, work);
    if (result != CUDA_SUCCESS) free(work);
    return result;
}
