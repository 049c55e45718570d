/* A driver that does nothing, for an executor whose calls are measured: what is left is the way
 * there and back. See remote.py. */
#include <stddef.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE = 1 };

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
int cuModuleUnload(void *module) { return (void)module, SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, SUCCESS; }

/* As much of cuBLAS, for calls that are carried to the server's own library. */
int cublasCreate_v2(void **made) { return *made = &event, SUCCESS; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return (void)handle, *mode = 0, SUCCESS; }
int cublasSaxpy_v2(void *handle, int n, const float *alpha, const float *x, int incx, float *y,
                   int incy) {
    return (void)handle, (void)n, (void)alpha, (void)x, (void)incx, (void)y, (void)incy, SUCCESS;
}
int cublasSetMathMode(void *handle, int mode) { return (void)handle, (void)mode, SUCCESS; }
