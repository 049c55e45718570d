/* A driver that does nothing, to measure an executor's calls: only the way there and back remains.
 * See remote.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE = 1, NOT_FOUND = 500 };

static char context, event;

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
int cuDeviceGetName(char *name, int room, int device) {
    return (void)device, strncpy(name, "nothing", (size_t)room), SUCCESS;
}
int cuDeviceGetPCIBusId(char *id, int room, int device) {
    return (void)device, strncpy(id, "0000:00:00.0", (size_t)room), SUCCESS;
}
int cuDeviceGetUuid_v2(void *uuid, int device) {
    return (void)device, memset(uuid, 1, 16), SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    return (void)device, *bytes = 1u << 30, SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return (void)attribute, (void)device, *value = 1, SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **made, int device) {
    return (void)device, *made = &context, SUCCESS;
}
int cuCtxSetCurrent(void *wanted) { return (void)wanted, SUCCESS; }
int cuCtxSynchronize(void) { return SUCCESS; }
int cuEventCreate(void **made, unsigned flags) { return (void)flags, *made = &event, SUCCESS; }
int cuEventRecord(void *recorded, void *stream) { return (void)recorded, (void)stream, SUCCESS; }
int cuStreamQuery(void *stream) { return (void)stream, SUCCESS; }
/* Before its sandbox closes, an executor makes a context and loads a module once. */
int cuCtxPushCurrent_v2(void *wanted) { return (void)wanted, SUCCESS; }
int cuCtxPopCurrent_v2(void **was) { return *was = &context, SUCCESS; }
int cuModuleLoadDataEx(void **made, const void *image, unsigned count, int *names, void **values) {
    return (void)image, (void)count, (void)names, (void)values, *made = &event, SUCCESS;
}
int cuModuleLoadData(void **made, const void *image) {
    return (void)image, *made = &event, SUCCESS;
}
int cuModuleUnload(void *module) { return (void)module, SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, SUCCESS; }

/* Kernels: all have the arguments of one that adds vectors. */
int cuModuleGetFunction(void **made, void *module, const char *name) {
    return (void)module, (void)name, *made = &event, SUCCESS;
}
int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *bytes) {
    static const size_t of[] = {0, 4, 8, 16, 24};
    if (index > 3) return INVALID_VALUE;
    return (void)function, *offset = of[index], *bytes = of[index + 1] - of[index], SUCCESS;
}
/* Attributes of a kernel for any block, without clusters. */
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    return (void)function, *value = attribute == 0 ? 1024 : 0, SUCCESS;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    return (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared,
           (void)stream, (void)arguments, (void)extra, SUCCESS;
}

/* Further functions that a runtime needs. */
int cuCtxGetCurrent(void **current) { return *current = &context, SUCCESS; }
int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
    return (void)to, (void)from, (void)bytes, (void)stream, SUCCESS;
}
int cuLibraryLoadData(void **made, const void *image, int *names, void **values, unsigned count,
                      int *library_names, void **library_values, unsigned library_count) {
    return (void)image, (void)names, (void)values, (void)count, (void)library_names,
           (void)library_values, (void)library_count, *made = &event, SUCCESS;
}
int cuLibraryUnload(void *unloaded) { return (void)unloaded, SUCCESS; }
int cuLibraryGetKernel(void **made, void *of, const char *name) {
    return (void)of, (void)name, *made = &event, SUCCESS;
}
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags,
                        int *status) {
    (void)version, (void)flags, (void)status;
    *found = dlsym(RTLD_DEFAULT, name);
    return *found == NULL ? NOT_FOUND : SUCCESS;
}

/* Such a cuBLAS, for calls that the server's own library runs. */
int cublasCreate_v2(void **made) { return *made = &event, SUCCESS; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return (void)handle, *mode = 0, SUCCESS; }
int cublasSaxpy_v2(void *handle, int n, const float *alpha, const float *x, int incx, float *y,
                   int incy) {
    return (void)handle, (void)n, (void)alpha, (void)x, (void)incx, (void)y, (void)incy, SUCCESS;
}
int cublasSetMathMode(void *handle, int mode) { return (void)handle, (void)mode, SUCCESS; }
