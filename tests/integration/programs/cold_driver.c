/* The driver that it is linked with, but for what it does once in a process: at the first context
 * and the first module it makes the directory of its code cache and listens on a socket, as some
 * drivers do, and without that there is none. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void *real(const char *symbol) {
    return dlsym(dlopen(DRIVER, RTLD_NOW | RTLD_NOLOAD), symbol);
}

static bool first_time(const char *directory) {
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    bool done = listener >= 0 && mkdir(directory, 0700) == 0 && rmdir(directory) == 0;
    if (listener >= 0) close(listener);
    return done;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    static bool done;
    if (!done && !(done = first_time(CACHE "-context"))) return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult (*retain)(CUcontext *, CUdevice) = real("cuDevicePrimaryCtxRetain");
    return retain(context, device);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                            CUjit_option *options, void **values) {
    static bool done;
    if (!done && !(done = first_time(CACHE "-module"))) return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult (*load)(CUmodule *, const void *, unsigned, CUjit_option *, void **) =
        real("cuModuleLoadDataEx");
    return load(module, image, count, options, values);
}
