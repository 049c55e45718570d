/* A driver that accepts everything. It reads all of its inputs and fills all of its outputs, so a
 * sanitizer detects a length that leads outside of memory. Otherwise it does nothing. */
#ifndef EGPU_FUZZ_DRIVER_H
#define EGPU_FUZZ_DRIVER_H

#include "executor/executor.h"

static bool driver_called; /* a call reached the driver */
static volatile uint8_t driver_sink;

static void driver_reads(const void *from, size_t bytes) {
    const uint8_t *at = from;
    uint8_t sum = 0;
    for (size_t i = 0; i < bytes; i += i + 64 < bytes ? 64 : 1) sum ^= at[i];
    driver_sink = sum;
}
static void driver_writes(void *to, size_t bytes) { memset(to, 0x5a, bytes); }

static int driver_agrees(void) {
    driver_called = true;
    return CUDA_SUCCESS;
}

/* Returns changing objects, so handles get bound to them. */
static uintptr_t driver_objects = 4096;
static int driver_gives(void **object) {
    driver_called = true;
    if (object == NULL) return CUDA_ERROR_INVALID_VALUE;
    *object = (void *)(driver_objects += 16);
    return CUDA_SUCCESS;
}

static int driver_pages(void **pages, size_t bytes) {
    static uint8_t *kept;
    if (kept == NULL) kept = malloc(WIRE_MAX_BULK);
    *pages = kept;
    return bytes <= WIRE_MAX_BULK ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int driver_copies_in(CUdeviceptr to, const void *from, size_t bytes) {
    (void)to;
    driver_called = true;
    driver_reads(from, bytes);
    return CUDA_SUCCESS;
}
static int driver_copies_out(void *to, CUdeviceptr from, size_t bytes) {
    driver_called = true;
    if (from == 0xbad) return CUDA_ERROR_INVALID_VALUE;
    driver_writes(to, bytes);
    return CUDA_SUCCESS;
}
/* One end of a copy of rows, if it is in this process. */
static void driver_moves(CUmemorytype type, const void *read, void *written, size_t pitch,
                         size_t width, size_t rows) {
    for (size_t row = 0; type == CU_MEMORYTYPE_HOST && row < rows && width != 0; row++) {
        if (read != NULL) driver_reads((const uint8_t *)read + row * pitch, width);
        if (written != NULL) driver_writes((uint8_t *)written + row * pitch, width);
    }
    driver_called = true;
}
static int driver_copies_rows(const CUDA_MEMCPY2D *plan) {
    size_t width = plan->WidthInBytes, rows = plan->Height;
    driver_moves(plan->srcMemoryType, plan->srcHost, NULL, plan->srcPitch, width, rows);
    driver_moves(plan->dstMemoryType, NULL, plan->dstHost, plan->dstPitch, width, rows);
    return plan->srcDevice == 0xbad ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
/* The same for slices; 0: as wide or high as the copy. */
static void driver_moves_slices(CUmemorytype type, const void *read, void *written, size_t pitch,
                                size_t height, const CUDA_MEMCPY3D *plan) {
    size_t width = plan->WidthInBytes, rows = plan->Height;
    if (type != CU_MEMORYTYPE_HOST || width == 0 || rows == 0) return;
    if (pitch == 0) pitch = width;
    if (height == 0) height = rows;
    for (size_t slice = 0; slice < plan->Depth; slice++) {
        size_t at = slice * height * pitch;
        driver_moves(type, read == NULL ? NULL : (const uint8_t *)read + at,
                     written == NULL ? NULL : (uint8_t *)written + at, pitch, width, rows);
    }
}
static int driver_copies_slices(const CUDA_MEMCPY3D *plan) {
    driver_moves_slices(plan->srcMemoryType, plan->srcHost, NULL, plan->srcPitch, plan->srcHeight,
                        plan);
    driver_moves_slices(plan->dstMemoryType, NULL, plan->dstHost, plan->dstPitch, plan->dstHeight,
                        plan);
    driver_called = true;
    return plan->srcXInBytes == 0xbad ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Nodes of graphs: launched at once. */
static int driver_adds_copy(void **node, void *graph, void *const *before, size_t count,
                            const CUDA_MEMCPY3D *plan) {
    (void)graph;
    driver_reads(before, count * sizeof *before);
    int result = driver_copies_slices(plan);
    return result == CUDA_SUCCESS ? driver_gives(node) : result;
}
static int driver_sets_copy(void *node, const CUDA_MEMCPY3D *plan) {
    (void)node;
    return driver_copies_slices(plan);
}
static int driver_sets_copy_in(void *exec, void *node, const CUDA_MEMCPY3D *plan) {
    (void)exec;
    return driver_sets_copy(node, plan);
}

/* A capture of a graph of three nodes, two of which come last. */
static int driver_captures(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                           CUgraph *graph, const CUgraphNode **nodes, const CUgraphEdgeData **edges,
                           size_t *count) {
    static CUgraphNode last[2];
    driver_called = true;
    *status = (uintptr_t)stream >> 4 & 1 ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                         : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    *id = 1;
    *graph = (CUgraph)((uintptr_t)stream + 8);
    for (size_t i = 0; i < 2; i++) last[i] = (CUgraphNode)((uintptr_t)stream + 2 + i);
    *nodes = last;
    *edges = NULL;
    *count = 2;
    return CUDA_SUCCESS;
}

static int driver_describes(CUDA_RESOURCE_DESC *out, CUtexObject object) {
    driver_called = true;
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    out->resType = (CUresourcetype)(object >> 4 & 3);
    out->res.array.hArray = (CUarray)(uintptr_t)object;
    return CUDA_SUCCESS;
}

static int driver_loads(void **module, const char *image, unsigned count, CUjit_option *options,
                        void **values) {
    (void)options;
    driver_reads(image, strlen(image) + 1);
    for (unsigned i = 0; i + 1 < count; i += 2)
        driver_writes(values[i], (size_t)(uintptr_t)values[i + 1]);
    return *image == '!' ? CUDA_ERROR_INVALID_PTX : driver_gives(module);
}
static int driver_loads_library(void **library, const char *image, CUjit_option *options,
                                void **values, unsigned count) {
    return driver_loads(library, image, count, options, values);
}
/* These are also called on the client's request, with the arguments that it leaves out. */
static int driver_counts(unsigned *count) {
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    return *count = 3, CUDA_SUCCESS;
}
static int driver_lists(void **objects, unsigned count) {
    for (unsigned i = 0; objects != NULL && i < count && i < 3; i++) driver_gives(&objects[i]);
    return CUDA_SUCCESS;
}
static int driver_parameter(void *function, size_t index, size_t *offset, size_t *size) {
    driver_called = true;
    if (offset == NULL || size == NULL || index >= ((uintptr_t)function >> 4 & 3))
        return CUDA_ERROR_INVALID_VALUE;
    return *offset = index * 8, *size = 8, CUDA_SUCCESS;
}
static int driver_name(const char **name) {
    driver_called = true;
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    return *name = "kernel", CUDA_SUCCESS;
}

static int driver_launches(void *function, unsigned a, unsigned b, unsigned c, unsigned d,
                           unsigned e, unsigned f, unsigned shared, void *stream, void **parameters,
                           void **extra) {
    (void)function, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)shared,
        (void)stream, (void)parameters;
    driver_called = true;
    if (extra != NULL) driver_reads(extra[1], *(size_t *)extra[3]);
    return CUDA_SUCCESS;
}
static int driver_launches_so(const CUlaunchConfig *config, void *function, void **parameters,
                              void **extra) {
    driver_reads(config->attrs, config->numAttrs * sizeof *config->attrs);
    return driver_launches(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, extra);
}

static int driver_calls(void *stream, void (*function)(void *), void *data) {
    (void)stream;
    driver_called = true;
    function(data);
    return CUDA_SUCCESS;
}
static int driver_calls_back(void *stream, CUstreamCallback function, void *data) {
    driver_called = true;
    function(stream, CUDA_SUCCESS, data);
    return CUDA_SUCCESS;
}

static driver_pointer agreeing_driver(egpu_driver_id id) {
    switch (id) {
    case EGPU_FN_cuModuleLoadDataEx: return (driver_pointer)driver_loads;
    case EGPU_FN_cuLibraryLoadData: return (driver_pointer)driver_loads_library;
    case EGPU_FN_cuModuleGetFunctionCount:
    case EGPU_FN_cuLibraryGetKernelCount: return (driver_pointer)driver_counts;
    case EGPU_FN_cuModuleEnumerateFunctions:
    case EGPU_FN_cuLibraryEnumerateKernels: return (driver_pointer)driver_lists;
    case EGPU_FN_cuFuncGetParamInfo:
    case EGPU_FN_cuKernelGetParamInfo: return (driver_pointer)driver_parameter;
    case EGPU_FN_cuFuncGetName:
    case EGPU_FN_cuKernelGetName: return (driver_pointer)driver_name;
    case EGPU_FN_cuStreamCreate:
    case EGPU_FN_cuEventCreate:
    case EGPU_FN_cuCtxCreate_v2:
    case EGPU_FN_cuDevicePrimaryCtxRetain:
    case EGPU_FN_cuModuleGetFunction:
    case EGPU_FN_cuKernelGetFunction:
    case EGPU_FN_cuLibraryGetModule:
    case EGPU_FN_cuArray3DCreate_v2:
    case EGPU_FN_cuArrayGetPlane:
    case EGPU_FN_cuMipmappedArrayCreate:
    case EGPU_FN_cuMipmappedArrayGetLevel:
    case EGPU_FN_cuTexObjectCreate:
    case EGPU_FN_cuSurfObjectCreate:
    case EGPU_FN_cuLibraryGetKernel: return (driver_pointer)driver_gives;
    case EGPU_FN_cuTexObjectGetResourceDesc:
    case EGPU_FN_cuSurfObjectGetResourceDesc: return (driver_pointer)driver_describes;
    case EGPU_FN_cuMemHostAlloc: return (driver_pointer)driver_pages;
    case EGPU_FN_cuMemcpyHtoD_v2:
    case EGPU_FN_cuMemcpyHtoDAsync_v2: return (driver_pointer)driver_copies_in;
    case EGPU_FN_cuMemcpyDtoH_v2:
    case EGPU_FN_cuMemcpyDtoHAsync_v2: return (driver_pointer)driver_copies_out;
    case EGPU_FN_cuMemcpy2DUnaligned_v2:
    case EGPU_FN_cuMemcpy2DAsync_v2: return (driver_pointer)driver_copies_rows;
    case EGPU_FN_cuMemcpy3D_v2:
    case EGPU_FN_cuMemcpy3DAsync_v2: return (driver_pointer)driver_copies_slices;
    case EGPU_FN_cuStreamGetCaptureInfo_v3: return (driver_pointer)driver_captures;
    case EGPU_FN_cuGraphAddMemcpyNode: return (driver_pointer)driver_adds_copy;
    case EGPU_FN_cuGraphMemcpyNodeSetParams: return (driver_pointer)driver_sets_copy;
    case EGPU_FN_cuGraphExecMemcpyNodeSetParams: return (driver_pointer)driver_sets_copy_in;
    case EGPU_FN_cuLaunchKernel: return (driver_pointer)driver_launches;
    case EGPU_FN_cuLaunchKernelEx: return (driver_pointer)driver_launches_so;
    case EGPU_FN_cuLaunchHostFunc: return (driver_pointer)driver_calls;
    case EGPU_FN_cuStreamAddCallback: return (driver_pointer)driver_calls_back;
    default: return (driver_pointer)driver_agrees;
    }
}

void forget_handles(void); /* executor_handles.c: as in a new session */
void forget_calls(void);   /* executor_calls.c */

#endif
