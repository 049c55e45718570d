/* The driver below the runtime: the libcuda.so.1 that the program finds. */
#ifndef EGPU_RUNTIME_DRIVER_H
#define EGPU_RUNTIME_DRIVER_H

#include <cuda.h>

#define API __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)

struct driver {
#define X(name) __typeof__(name) *name;
#include "driver.def"
#undef X
};

/* A driver for remote cards moves programs to other cards, as long as they do not have addresses of
 * variables. From Begin to End it leaves a variable where it is. NULL: variables stay anyway. */
extern CUresult (*driver_variable_begin)(CUdeviceptr *, size_t *, CUlibrary, const char *);
extern CUresult (*driver_variable_end)(CUlibrary);

/* Complete once runtime_driver has succeeded; missing functions return CUDA_ERROR_NOT_SUPPORTED. */
extern struct driver driver;

/* Both return a cudaError_t, as do all functions below. runtime_driver loads and initialises the
 * driver, once. runtime_context also makes sure that the thread has a context: its own, or the
 * primary one of its device. */
int runtime_driver(void);
int runtime_context(void);

/* Keep an error for cudaGetLastError and return it. */
int runtime_error(int error);

/* The same for a driver's result: both APIs share one list of numbers. */
static inline int runtime_result(CUresult result) {
    return __builtin_expect(result == CUDA_SUCCESS, 1) ? 0 : runtime_error((int)result);
}

/* Return cudaErrorNotSupported after one line on stderr: `function` is refused, and why. */
int runtime_refuse(const char *function, const char *reason);

/* In a function whose name ends in _ptsz or _ptds stream 0 is the thread's own. */
static inline void *stream_of(void *stream) {
    return stream ? stream : (void *)CU_STREAM_PER_THREAD;
}

#define NEED_DRIVER()                             \
    do {                                          \
        int error_ = runtime_driver();            \
        if (error_) return runtime_error(error_); \
    } while (0)

#define NEED_CONTEXT()                            \
    do {                                          \
        int error_ = runtime_context();           \
        if (error_) return runtime_error(error_); \
    } while (0)

#pragma GCC visibility pop

#endif
