/* Measures calls of CUDA's runtime and its libraries, beside the equivalent calls of the driver.
 * Prints one JSON object. See remote.py. */
#include "measure.h"

struct dim3 {
    unsigned x, y, z;
};
enum { HOST_TO_DEVICE = 1 };

/* `count` calls in a burst: as many as a program makes between two waits, and too few to fill a
 * pipe, because a full pipe would measure its reader. */
enum { BURST = 100 };

/* The time of a call: the median of `rounds` bursts, in ns. */
#define MEASURE(each, r, call)                                \
    do {                                                      \
        double begin_ = now();                                \
        for (int i_ = 0; i_ < BURST; i_++) OK(call);          \
        (each)[(r) < 0 ? 0 : (r)] = (now() - begin_) / BURST; \
    } while (0)

static const struct dim3 one = {1, 1, 1};

/* ---- the driver ---- */

static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *),
    (*load)(void **, const void *), (*get)(void **, void *, const char *),
    (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
              void **, void **),
    (*synchronize)(void), (*event_create)(void **, unsigned), (*event_record)(void *, void *),
    (*query)(void *), (*copy)(unsigned long long, unsigned long long, size_t, void *);

static void open_driver(void) {
    void *context;
    open_library("libcuda.so.1");
    find(&init, "cuInit"), find(&retain, "cuDevicePrimaryCtxRetain");
    find(&set_current, "cuCtxSetCurrent"), find(&synchronize, "cuCtxSynchronize");
    find(&load, "cuModuleLoadData"), find(&get, "cuModuleGetFunction");
    find(&launch, "cuLaunchKernel"), find(&query, "cuStreamQuery");
    find(&event_create, "cuEventCreate"), find(&event_record, "cuEventRecord");
    find(&copy, "cuMemcpyAsync");
    OK(init(0)), OK(retain(&context, 0)), OK(set_current(context));
}

/* ---- the runtime ---- */

static int (*runtime_malloc)(void **, size_t), (*runtime_synchronize)(void),
    (*runtime_launch)(const void *, struct dim3, struct dim3, void **, size_t, void *),
    (*runtime_copy)(void *, const void *, size_t, int, void *), (*runtime_query)(void *),
    (*runtime_event_create)(void **), (*runtime_event_record)(void *, void *);
static void **(*register_binary)(const void *);
static void (*register_function)(void **, const char *, char *, const char *, int, void *, void *,
                                 void *, void *, int *);

/* A kernel as nvcc compiles it: a function that stands for it, and a binary in a wrapper. */
static const char stub;
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry work(.param .u64 at, .param .u32 value)\n"
    "{\n.pragma \"egpu.duration_us 200\";\n"
    ".reg .b32 %r<2>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [at];\nld.param.u32 %r1, [value];\n"
    "st.global.u32 [%d1], %r1;\nret;\n}\n";
static const struct {
    unsigned magic, version;
    const void *image;
    void *unused;
} wrapper = {0x466243b1, 1, ptx, NULL};

static void open_runtime(void) {
    open_library("libcudart.so.13");
    find(&runtime_malloc, "cudaMalloc"), find(&runtime_launch, "cudaLaunchKernel");
    find(&runtime_copy, "cudaMemcpyAsync"), find(&runtime_query, "cudaStreamQuery");
    find(&runtime_synchronize, "cudaDeviceSynchronize");
    find(&runtime_event_create, "cudaEventCreate"), find(&runtime_event_record, "cudaEventRecord");
    find(&register_binary, "__cudaRegisterFatBinary");
    find(&register_function, "__cudaRegisterFunction");
    register_function(register_binary(&wrapper), &stub, NULL, "work", -1, NULL, NULL, NULL, NULL,
                      NULL);
}

/* ---- cuBLAS ---- */

static int (*blas_set)(void *, int),
    (*blas_axpy)(void *, int, const float *, void *, int, void *, int);
static const float two = 2;

static void *open_blas(void) {
    int (*create)(void **);
    void *handle;
    open_library("libcublas.so.13");
    find(&create, "cublasCreate_v2"), find(&blas_set, "cublasSetMathMode");
    find(&blas_axpy, "cublasSaxpy_v2");
    OK(create(&handle));
    return handle;
}

/* Calls of the runtime, and their driver calls, on a driver that does nothing. */
static void runtime_calls(double scale) {
    enum { KINDS = 6 };
    void *module, *function, *at = NULL;
    unsigned value = 1;
    void *arguments[] = {&at, &value};
    char from[8];
    open_driver(), open_runtime();
    OK(load(&module, ptx)), OK(get(&function, module, "work"));
    int rounds = (int)(20000 * scale);
    double *each[KINDS];
    for (int i = 0; i < KINDS; i++) each[i] = calloc((size_t)rounds + 1, sizeof *each[i]);
    for (int r = -FIRST_LAPS; r < rounds; r++) {
        MEASURE(each[0], r, launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
        MEASURE(each[1], r, runtime_launch(&stub, one, one, arguments, 0, NULL));
        MEASURE(each[2], r, copy((size_t)&from, (size_t)&from, sizeof from, NULL));
        MEASURE(each[3], r, runtime_copy(from, from, sizeof from, HOST_TO_DEVICE, NULL));
        MEASURE(each[4], r, query(NULL));
        MEASURE(each[5], r, runtime_query(NULL));
    }
    const char *names[KINDS] = {"launch",       "runtime_launch", "copy",
                                "runtime_copy", "query",          "runtime_query"};
    for (int i = 0; i < KINDS; i++)
        printf("%s\"%s_ns\": %.2f", i ? ", " : "{", names[i], middle(each[i], rounds));
    puts("}");
}

/* A library's calls without result, beside driver calls of the same length on the wire: one with a
 * handle or two, and one with a scalar and two vectors beside a launch with as many arguments. */
static void library_calls(double scale) {
    enum { KINDS = 4 };
    void *event, *module, *function;
    void *vector = NULL;
    int count = 8;
    void *arguments[] = {&count, (void *)&two, &vector, &vector};
    open_driver();
    OK(event_create(&event, 0)), OK(load(&module, ptx)), OK(get(&function, module, "axpy"));
    void *handle = open_blas();
    int rounds = (int)(1000 * scale);
    double *each[KINDS];
    for (int i = 0; i < KINDS; i++) each[i] = calloc((size_t)rounds + 1, sizeof *each[i]);
    for (int r = -FIRST_LAPS; r < rounds; r++) {
        MEASURE(each[0], r, event_record(event, NULL));
        OK(synchronize());
        MEASURE(each[1], r, blas_set(handle, 0));
        OK(synchronize());
        MEASURE(each[2], r, launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
        OK(synchronize());
        MEASURE(each[3], r, blas_axpy(handle, count, &two, vector, 1, vector, 1));
        OK(synchronize());
    }
    const char *names[KINDS] = {"record", "set", "launch", "axpy"};
    for (int i = 0; i < KINDS; i++)
        printf("%s\"%s_ns\": %.2f", i ? ", " : "{", names[i], middle(each[i], rounds));
    puts("}");
}

/* The loop of remote_client.c by the runtime, with a library's calls in it: steps of 40 kernels of
 * 200 us, a few small calls between, and one synchronisation. */
static void loop(double scale) {
    enum { VALUES = 64 };
    void *at, *event;
    unsigned value = 1;
    open_runtime();
    OK(runtime_malloc(&at, VALUES * sizeof(float))), OK(runtime_event_create(&event));
    void *arguments[] = {&at, &value}, *handle = open_blas();
    OK(runtime_launch(&stub, one, one, arguments, 0, NULL));
    OK(blas_axpy(handle, VALUES, &two, at, 1, at, 1)), OK(runtime_synchronize());
    int steps = (int)(100 * scale);
    double begin = now();
    for (int s = 0; s < steps; s++) {
        for (int k = 0; k < 40; k++) {
            OK(runtime_launch(&stub, one, one, arguments, 0, NULL));
            if (k % 10 == 0) OK(runtime_event_record(event, NULL));
            if (k % 10 == 5) OK(blas_axpy(handle, VALUES, &two, at, 1, at, 1));
        }
        OK(runtime_synchronize());
    }
    printf("{\"runtime_steps_per_second\": %.3f}\n", steps / (now() - begin));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    double scale = argc > 2 ? atof(argv[2]) : 1;
    if (strcmp(what, "calls") == 0)
        runtime_calls(scale);
    else if (strcmp(what, "library") == 0)
        library_calls(scale);
    else if (strcmp(what, "loop") == 0)
        loop(scale);
    else
        return 2;
    return 0;
}
