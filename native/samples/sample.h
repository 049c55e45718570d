/* Shared by the samples: the driver API by dlopen (so one binary runs on real and on simulated
 * GPUs), flags, and errors by their CUDA names. Exit codes: 0 the answer was checked, 1 a CUDA call
 * failed, 2 bad flags, 3 a wrong answer, 4 no driver.
 */
#ifndef EGPU_SAMPLE_H
#define EGPU_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EXIT_CUDA = 1, EXIT_USAGE = 2, EXIT_WRONG = 3, EXIT_NO_DRIVER = 4 };

/* The driver API's types, from its public reference. */
typedef int cu_result;
typedef int cu_device;
typedef unsigned long long cu_pointer;
typedef struct cu_context_object *cu_context;
typedef struct cu_module_object *cu_module;
typedef struct cu_function_object *cu_function;
typedef struct cu_event_object *cu_event;
typedef struct cu_stream_object *cu_stream;
typedef struct {
    unsigned char bytes[16];
} cu_uuid;
enum { CU_SUCCESS = 0, CU_OUT_OF_MEMORY = 2 };

/* Name in the library, name here, parameters. */
#define CUDA_FUNCTIONS(F)                                                                     \
    F(cuInit, init, (unsigned flags))                                                         \
    F(cuGetErrorName, error_name, (cu_result result, const char **name))                      \
    F(cuDriverGetVersion, driver_version, (int *version))                                     \
    F(cuDeviceGetCount, device_count, (int *count))                                           \
    F(cuDeviceGet, device_get, (cu_device * device, int ordinal))                             \
    F(cuDeviceGetName, device_name, (char *name, int length, cu_device device))               \
    F(cuDeviceGetUuid, device_uuid, (cu_uuid * uuid, cu_device device))                       \
    F(cuDeviceTotalMem_v2, device_total_memory, (size_t *bytes, cu_device device))            \
    F(cuDevicePrimaryCtxRetain, context_retain, (cu_context * context, cu_device device))     \
    F(cuCtxSetCurrent, context_use, (cu_context context))                                     \
    F(cuCtxSynchronize, synchronize, (void))                                                  \
    F(cuModuleLoadData, module_load, (cu_module * module, const void *image))                 \
    F(cuModuleGetFunction, function_get,                                                      \
      (cu_function * function, cu_module module, const char *name))                           \
    F(cuLaunchKernel, launch,                                                                 \
      (cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
       unsigned bz, unsigned shared, cu_stream stream, void **params, void **extra))          \
    F(cuMemAlloc_v2, alloc, (cu_pointer * pointer, size_t bytes))                             \
    F(cuMemFree_v2, release, (cu_pointer pointer))                                            \
    F(cuMemGetInfo_v2, memory_info, (size_t *available, size_t *total))                       \
    F(cuMemcpyHtoD_v2, to_device, (cu_pointer to, const void *from, size_t bytes))            \
    F(cuMemcpyDtoH_v2, from_device, (void *to, cu_pointer from, size_t bytes))                \
    F(cuEventCreate, event_create, (cu_event * event, unsigned flags))                        \
    F(cuEventRecord, event_record, (cu_event event, cu_stream stream))                        \
    F(cuEventSynchronize, event_wait, (cu_event event))                                       \
    F(cuEventElapsedTime_v2, event_elapsed, (float *ms, cu_event start, cu_event end))

struct cuda {
#define MEMBER(symbol, name, parameters) cu_result(*name) parameters;
    CUDA_FUNCTIONS(MEMBER)
#undef MEMBER
};
extern struct cuda cuda;

/* End the program with the error's CUDA name unless the call succeeds. */
#define CUDA(name, ...) cuda_check(cuda.name(__VA_ARGS__), #name)
void cuda_check(cu_result result, const char *what);
const char *cuda_error_name(cu_result result);

/* A flag: `--name VALUE` or `--name=VALUE`. Byte flags take KiB, MiB, GiB suffixes. */
struct flag {
    const char *name, *help;
    enum { FLAG_COUNT, FLAG_BYTES, FLAG_SECONDS } kind;
    union {
        uint64_t *count;
        double *seconds;
    } value;
    uint64_t most; /* of a count; 0: no limit */
};

/* Read the flags (--help, --json and --device are in every sample), load the driver if requested,
 * and make a context current. */
void sample_begin(int argc, char **argv, const char *name, const char *purpose,
                  const struct flag *flags, bool context);
extern bool sample_json;
extern const char *sample_name;
extern int sample_device; /* ordinal */
extern char sample_device_name[128];

cu_function sample_kernel(const char *ptx, const char *name);
cu_pointer sample_upload(const void *data, size_t bytes);
cu_pointer sample_alloc(size_t bytes);
double sample_seconds(void); /* a monotonic clock */
void sample_json_string(const char *text);

/* Print the last line: "vectoradd: … ok" or one JSON object with `fields` ("\"n\": 12") in it.
 * Return the exit code. */
int sample_end(bool right, const char *fields, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define PTX_HEADER ".version 7.0\n.target sm_70\n.address_size 64\n"

#endif
