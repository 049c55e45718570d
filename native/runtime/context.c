/* The thread's device and its context. */
#include <pthread.h>
#include <stdlib.h>

#include "runtime.h"

static _Thread_local int chosen = -1; /* until the thread has a context, which then decides */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[RUNTIME_DEVICES];

cudaError_t runtime_primary(int device, CUcontext *context) {
    if (device < 0 || device >= RUNTIME_DEVICES) return cudaErrorInvalidDevice;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!primaries[device]) result = driver.cuDevicePrimaryCtxRetain(&primaries[device], device);
    *context = primaries[device];
    pthread_mutex_unlock(&lock);
    return (cudaError_t)result;
}

/* Devices for threads that chose none; the first available one is used. Empty: all. */
static int valid[RUNTIME_DEVICES], valid_count;

static int choice(int at) {
    if (chosen >= 0) return at == 0 ? chosen : -1;
    pthread_mutex_lock(&lock);
    int device = valid_count == 0 && at == 0 ? 0 : at < valid_count ? valid[at] : -1;
    pthread_mutex_unlock(&lock);
    return device;
}

static cudaError_t use(int device) {
    CUcontext context;
    cudaError_t error = runtime_primary(device, &context);
    if (error == cudaSuccess) error = (cudaError_t)driver.cuCtxSetCurrent(context);
    if (error == cudaSuccess) chosen = device;
    return error;
}

/* A program that uses both APIs may have made its own context current: then use that. */
int runtime_context(void) {
    int error = runtime_driver();
    if (error) return error;
    CUcontext current = NULL;
    CUresult result = driver.cuCtxGetCurrent(&current);
    if (result != CUDA_SUCCESS) return (int)result;
    if (current) return 0;
    error = (int)use(choice(0));
    for (int at = 1; error && choice(at) >= 0; at++) error = (int)use(choice(at));
    return error;
}

cudaError_t runtime_current(CUcontext *context) {
    int error = runtime_context();
    return error ? (cudaError_t)error : (cudaError_t)driver.cuCtxGetCurrent(context);
}

API cudaError_t cudaGetDeviceCount(int *count) {
    if (!count) return runtime_error(cudaErrorInvalidValue);
    *count = 0;
    NEED_DRIVER();
    cudaError_t error = runtime_result(driver.cuDeviceGetCount(count));
    return error == cudaSuccess && *count == 0 ? runtime_error(cudaErrorNoDevice) : error;
}

static cudaError_t check(int device) {
    int count;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) return error;
    return device < 0 || device >= count ? cudaErrorInvalidDevice : cudaSuccess;
}

API cudaError_t cudaSetDevice(int device) {
    cudaError_t error = check(device);
    return runtime_error(error == cudaSuccess ? use(device) : error);
}

API cudaError_t cudaSetValidDevices(int *devices, int count) {
    int all;
    cudaError_t error = cudaGetDeviceCount(&all);
    if (error != cudaSuccess) return error;
    if (count < 0 || count > all || count > RUNTIME_DEVICES || !devices != !count)
        return runtime_error(cudaErrorInvalidValue);
    for (int i = 0; i < count; i++)
        if (devices[i] < 0 || devices[i] >= all) return runtime_error(cudaErrorInvalidDevice);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) valid[i] = devices[i];
    valid_count = count;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

API cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
    (void)device_flags;
    if (flags & ~(unsigned)cudaInitDeviceFlagsAreValid) return runtime_error(cudaErrorInvalidValue);
    CUcontext context;
    cudaError_t error = check(device);
    return runtime_error(error == cudaSuccess ? runtime_primary(device, &context) : error);
}

API cudaError_t cudaGetDevice(int *device) {
    if (!device) return runtime_error(cudaErrorInvalidValue);
    NEED_DRIVER();
    CUcontext current = NULL;
    driver.cuCtxGetCurrent(&current);
    *device = choice(0);
    return current ? runtime_result(driver.cuCtxGetDevice(device)) : cudaSuccess;
}

API cudaError_t cudaGetDeviceFlags(unsigned int *flags) {
    if (!flags) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    return runtime_result(driver.cuCtxGetFlags(flags));
}

API cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    int device;
    cudaError_t error = cudaGetDevice(&device);
    return error == cudaSuccess ? runtime_result(driver.cuDevicePrimaryCtxSetFlags(device, flags))
                                : error;
}

API cudaError_t cudaDeviceReset(void) {
    int device;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    pthread_mutex_lock(&lock);
    if (primaries[device]) driver.cuDevicePrimaryCtxRelease(device);
    primaries[device] = NULL;
    pthread_mutex_unlock(&lock);
    driver.cuCtxSetCurrent(NULL);
    runtime_forget_errors();
    return runtime_result(driver.cuDevicePrimaryCtxReset(device));
}

static cudaError_t peer_context(int device, CUcontext *peer) {
    int error = runtime_context();
    return error ? (cudaError_t)error : runtime_primary(device, peer);
}

API cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned int flags) {
    CUcontext peer;
    cudaError_t error = peer_context(device, &peer);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuCtxEnablePeerAccess(peer, flags));
}

API cudaError_t cudaDeviceDisablePeerAccess(int device) {
    CUcontext peer;
    cudaError_t error = peer_context(device, &peer);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuCtxDisablePeerAccess(peer));
}
