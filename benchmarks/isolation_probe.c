/* Measures the cost of a call, on the libcuda.so.1 that the loader finds. Prints one number: the
 * median of batches, in nanoseconds a call.
 *
 *   isolation_probe alloc LIVE     cuMemAlloc and cuMemFree of 512 bytes, while LIVE others are
 *                                  held (and one more in any case: a driver that has nothing gives
 *                                  its page back each time)
 *   isolation_probe launch         cuLaunchKernel of a kernel that stores a word
 *   isolation_probe start          cuInit, a context, free memory; prints nothing
 *
 * Time is the thread's own processor time, without that of other programs.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 400, CALLS = 250 };

static void *library;
#define CALL(symbol) ((__typeof__(&symbol))look_up(#symbol))

static void *look_up(const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol != NULL) return symbol;
    fprintf(stderr, "no %s\n", name);
    exit(3);
}

static void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: error %d\n", what, result);
    exit(2);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static void print_median(double *batches) {
    qsort(batches, BATCHES, sizeof *batches, ascending);
    printf("%.2f\n", batches[BATCHES / 2]);
}

static void alloc_cost(unsigned long live) {
    double batches[BATCHES];
    CUdeviceptr p;
    __typeof__(&cuMemAlloc_v2) alloc = CALL(cuMemAlloc_v2);
    __typeof__(&cuMemFree_v2) release = CALL(cuMemFree_v2);
    for (unsigned long i = 0; i <= live; i++) must(alloc(&p, 512), "cuMemAlloc");
    for (int b = 0; b < BATCHES; b++) {
        double start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            alloc(&p, 512);
            release(p);
        }
        batches[b] = (now_ns() - start) / CALLS;
    }
    print_median(batches);
}

static const char ptx[] =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry store(.param .u64 at)\n{\n.pragma \"egpu.duration_us 1\";\n"
    ".reg .b32 %r<2>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [at];\nmov.u32 %r1, 1;\nst.global.u32 [%d1], %r1;\nret;\n}\n";

static void launch_cost(void) {
    double batches[BATCHES];
    CUmodule module;
    CUfunction function;
    CUdeviceptr at;
    must(CALL(cuMemAlloc_v2)(&at, 512), "cuMemAlloc");
    must(CALL(cuModuleLoadData)(&module, ptx), "cuModuleLoadData");
    must(CALL(cuModuleGetFunction)(&function, module, "store"), "cuModuleGetFunction");
    void *parameters[] = {&at};
    __typeof__(&cuLaunchKernel) launch = CALL(cuLaunchKernel);
    __typeof__(&cuCtxSynchronize) synchronize = CALL(cuCtxSynchronize);
    for (int b = 0; b < BATCHES; b++) {
        struct timespec pause = {0, 1000000}; /* so that the share is never used up */
        double start = now_ns();
        for (int i = 0; i < CALLS; i++)
            launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
        batches[b] = (now_ns() - start) / CALLS;
        synchronize();
        nanosleep(&pause, NULL);
    }
    print_median(batches);
}

int main(int count, char **arguments) {
    CUdevice device;
    CUcontext context;
    size_t free_bytes, total;
    if (count < 2) return 2;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    must(CALL(cuInit)(0), "cuInit");
    must(CALL(cuDeviceGet)(&device, 0), "cuDeviceGet");
    must(CALL(cuDevicePrimaryCtxRetain)(&context, device), "cuDevicePrimaryCtxRetain");
    must(CALL(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
    must(CALL(cuMemGetInfo_v2)(&free_bytes, &total), "cuMemGetInfo");
    if (strcmp(arguments[1], "alloc") == 0)
        alloc_cost(count > 2 ? strtoul(arguments[2], NULL, 10) : 0);
    if (strcmp(arguments[1], "launch") == 0) launch_cost();
    return 0;
}
