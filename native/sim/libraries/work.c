/* Elements and streams. */
#include "blas.h"

#include "ptx/internal.h"

double element(int type, const void *base, int64_t index) {
    switch (type) {
    case R_32F: return ((const float *)base)[index];
    case R_64F: return ((const double *)base)[index];
    case R_16F: return half_to_float(((const uint16_t *)base)[index]);
    default: {
        uint32_t bits = (uint32_t)((const uint16_t *)base)[index] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    }
}

void set_element(int type, void *base, int64_t index, double value) {
    switch (type) {
    case R_32F: ((float *)base)[index] = (float)value; break;
    case R_64F: ((double *)base)[index] = value; break;
    case R_16F: ((uint16_t *)base)[index] = half_from_double(value, ROUND_NEAREST); break;
    default: ((uint16_t *)base)[index] = bfloat_from_double(value, ROUND_NEAREST);
    }
}

struct factor factor_of(int type, const void *at, bool host) {
    return host ? (struct factor){type, element(type, at, 0), NULL} : (struct factor){type, 0, at};
}

bool on_card(const void *at, int64_t bytes) {
    CUdeviceptr base;
    size_t size;
    if (bytes == 0) return true;
    if (bytes < 0 || cuMemGetAddressRange(&base, &size, (CUdeviceptr)(uintptr_t)at) != CUDA_SUCCESS)
        return false;
    uint64_t offset = (uint64_t)(uintptr_t)at - base;
    return offset <= size && (uint64_t)bytes <= size - offset;
}

struct work {
    void (*run)(void *);
    bool again; /* a graph may do it more than once */
    _Alignas(16) uint8_t what[];
};

static void do_work(void *data) {
    struct work *work = data;
    work->run(work->what);
    if (!work->again) free(work);
}

int queue(CUstream stream, void (*run)(void *), const void *what, size_t bytes) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    struct work *work = malloc(sizeof *work + bytes);
    if (work == NULL) return NO_MEMORY;
    work->run = run;
    work->again = cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
                  capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    memcpy(work->what, what, bytes);
    if (cuLaunchHostFunc(stream, do_work, work) == CUDA_SUCCESS) return OK;
    free(work);
    return FAILED;
}
