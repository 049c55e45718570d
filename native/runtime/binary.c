/* Registration by compiled programs: fat binaries with their kernels and variables. Nothing is
 * loaded before its first use. The driver then loads a binary into each context that needs it.
 *
 * crt/host_runtime.h declares these functions; nvcc's output calls them before main. */
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/fat_binary.h"
#include "registration.h"

struct binary {
    const void *image;
    pthread_mutex_t lock;
    CUlibrary library; /* once loaded */
    struct symbol *symbols;
};

/* A kernel or a variable, by the address of its host counterpart. */
struct symbol {
    const void *host;
    const char *name;
    struct binary *binary;
    struct symbol *next;      /* of the same binary */
    _Atomic(CUkernel) kernel; /* once looked up */
};

static _Atomic int load_failure; /* the reason, for launches of a missing kernel */

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static void *by_host; /* tree of struct symbol */

/* Each launch looks up its kernel: a thread finds recent ones without the lock, until anything is
 * registered or unregistered. */
enum { RECENT_KERNELS = 64 };
static _Atomic unsigned registrations = 1;
static _Thread_local struct {
    const void *host;
    CUkernel kernel;
    unsigned registrations; /* at the time of the lookup */
} recent[RECENT_KERNELS];

static int compare(const void *a, const void *b) {
    const void *left = ((const struct symbol *)a)->host, *right = ((const struct symbol *)b)->host;
    return left < right ? -1 : left > right;
}

API void **__cudaRegisterFatBinary(void *wrapped) {
    struct binary *binary = calloc(1, sizeof *binary);
    if (!binary) abort(); /* before main, so no error can be returned */
    binary->image = fat_binary_unwrapped(wrapped);
    pthread_mutex_init(&binary->lock, NULL);
    return (void **)binary;
}

API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

API char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

API void __cudaUnregisterFatBinary(void **handle) {
    struct binary *binary = (struct binary *)handle;
    if (!binary) return;
    pthread_rwlock_wrlock(&lock);
    for (struct symbol *symbol = binary->symbols, *next; symbol; symbol = next) {
        next = symbol->next;
        tdelete(symbol, &by_host, compare);
        free(symbol);
    }
    atomic_fetch_add(&registrations, 1);
    pthread_rwlock_unlock(&lock);
    if (binary->library) driver.cuLibraryUnload(binary->library);
    pthread_mutex_destroy(&binary->lock);
    free(binary);
}

static void add(void **handle, const void *host, const char *name) {
    struct symbol *symbol = calloc(1, sizeof *symbol);
    if (!symbol) abort();
    symbol->host = host;
    symbol->name = name;
    symbol->binary = (struct binary *)handle;
    pthread_rwlock_wrlock(&lock);
    struct symbol **found = tsearch(symbol, &by_host, compare);
    if (found && *found == symbol) {
        symbol->next = symbol->binary->symbols;
        symbol->binary->symbols = symbol;
    } else {
        free(symbol); /* the same inline function in two binaries: the first one counts */
    }
    atomic_fetch_add(&registrations, 1);
    pthread_rwlock_unlock(&lock);
}

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                                int thread_limit, void *thread, void *block, void *block_dim,
                                void *grid_dim, int *warp_size) {
    (void)device, (void)thread_limit, (void)thread, (void)block, (void)block_dim, (void)grid_dim,
        (void)warp_size; /* used by launches before CUDA 7 */
    add(handle, host, name);
}

API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                           size_t bytes, int constant, int global) {
    (void)device, (void)external, (void)bytes, (void)constant, (void)global;
    add(handle, host, name);
}

/* The host accesses a __managed__ variable through a pointer that loading the module sets. It would
 * have to be loaded before main, which a runtime over any driver cannot promise. */
API void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name,
                                  int external, size_t bytes, int constant, int global) {
    (void)handle, (void)host, (void)device, (void)external, (void)bytes, (void)constant,
        (void)global;
    runtime_refuse(name, "a __managed__ variable; cudaMallocManaged works");
}

static struct symbol *find(const void *host) {
    struct symbol key = {.host = host};
    pthread_rwlock_rdlock(&lock);
    struct symbol **found = tfind(&key, &by_host, compare);
    struct symbol *symbol = found ? *found : NULL;
    pthread_rwlock_unlock(&lock);
    return symbol;
}

static cudaError_t load(struct binary *binary, CUlibrary *library) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&binary->lock);
    if (!binary->library)
        result =
            driver.cuLibraryLoadData(&binary->library, binary->image, NULL, NULL, 0, NULL, NULL, 0);
    *library = binary->library;
    pthread_mutex_unlock(&binary->lock);
    if (result != CUDA_SUCCESS) atomic_store(&load_failure, (int)result);
    return (cudaError_t)result;
}

cudaError_t runtime_load_failure(void) {
    int failure = atomic_load(&load_failure);
    return failure ? (cudaError_t)failure : cudaErrorInvalidDeviceFunction;
}

static cudaError_t find_kernel(const void *host, CUkernel *kernel) {
    struct symbol *symbol = find(host);
    if (!symbol) { /* handles from cudaGetKernel and cudaLibraryGetKernel stand for themselves */
        *kernel = (CUkernel)host;
        return host ? cudaSuccess : cudaErrorInvalidDeviceFunction;
    }
    *kernel = atomic_load_explicit(&symbol->kernel, memory_order_acquire);
    if (*kernel) return cudaSuccess;
    CUlibrary library;
    cudaError_t loaded = load(symbol->binary, &library);
    if (loaded != cudaSuccess) return loaded;
    CUresult result = driver.cuLibraryGetKernel(kernel, library, symbol->name);
    if (result == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidDeviceFunction;
    if (result == CUDA_SUCCESS)
        atomic_store_explicit(&symbol->kernel, *kernel, memory_order_release);
    return (cudaError_t)result;
}

cudaError_t runtime_kernel(const void *host, CUkernel *kernel) {
    int error = runtime_context();
    if (error) return (cudaError_t)error;
    unsigned now = atomic_load_explicit(&registrations, memory_order_acquire);
    __typeof__(&recent[0]) known = &recent[(uintptr_t)host / 16 % RECENT_KERNELS];
    if (known->host == host && known->registrations == now) {
        *kernel = known->kernel;
        return cudaSuccess;
    }
    cudaError_t found = find_kernel(host, kernel);
    if (found != cudaSuccess) return found;
    known->host = host;
    known->kernel = *kernel;
    known->registrations = now;
    return cudaSuccess;
}

typedef CUresult (*variable_finder)(CUdeviceptr *, size_t *, CUlibrary, const char *);

static cudaError_t find_variable(const void *host, CUdeviceptr *address, size_t *bytes,
                                 variable_finder finder) {
    struct symbol *symbol = find(host);
    if (!symbol) return cudaErrorInvalidSymbol;
    CUlibrary library;
    cudaError_t loaded = load(symbol->binary, &library);
    if (loaded != cudaSuccess) return loaded;
    CUresult result = finder(address, bytes, library, symbol->name);
    return result == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidSymbol : (cudaError_t)result;
}

cudaError_t runtime_variable(const void *host, CUdeviceptr *address, size_t *bytes) {
    int error = runtime_context();
    return error ? (cudaError_t)error
                 : find_variable(host, address, bytes, driver.cuLibraryGetGlobal);
}

static cudaError_t part(CUdeviceptr base, size_t size, size_t offset, size_t bytes,
                        void **address) {
    if (offset > size || bytes > size - offset) return cudaErrorInvalidValue;
    *address = (void *)(base + offset);
    return cudaSuccess;
}

cudaError_t runtime_part_of(const void *symbol, size_t offset, size_t bytes, void **address) {
    CUdeviceptr base;
    size_t size;
    cudaError_t error = runtime_variable(symbol, &base, &size);
    return error == cudaSuccess ? part(base, size, offset, bytes, address) : error;
}

cudaError_t runtime_variable_begin(const void *symbol, size_t offset, size_t bytes,
                                   void **address) {
    CUdeviceptr base;
    size_t size;
    int unready = runtime_context();
    if (unready) return (cudaError_t)unready;
    cudaError_t error =
        find_variable(symbol, &base, &size,
                      driver_variable_begin ? driver_variable_begin : driver.cuLibraryGetGlobal);
    if (error != cudaSuccess) return error;
    error = part(base, size, offset, bytes, address);
    if (error != cudaSuccess) runtime_variable_end(symbol);
    return error;
}

void runtime_variable_end(const void *host) {
    const struct symbol *symbol = find(host);
    if (driver_variable_begin && symbol) driver_variable_end(symbol->binary->library);
}

/* A kernel's host function is rarely asked for, so search all loaded kernels. */
static _Thread_local struct {
    CUfunction function;
    CUkernel kernel;
    const void *host;
} sought;

static void compare_kernel(const void *at, VISIT visit, int depth) {
    (void)depth;
    const struct symbol *symbol = *(const struct symbol *const *)at;
    CUkernel kernel = atomic_load_explicit(&symbol->kernel, memory_order_acquire);
    if (!kernel || sought.host || (visit != leaf && visit != postorder)) return;
    CUfunction function = NULL;
    if (kernel != sought.kernel && sought.function) driver.cuKernelGetFunction(&function, kernel);
    if (kernel == sought.kernel || (function && function == sought.function))
        sought.host = symbol->host;
}

void *runtime_host(CUfunction function, CUkernel kernel) {
    sought.function = function;
    sought.kernel = kernel;
    sought.host = NULL;
    pthread_rwlock_rdlock(&lock);
    twalk(by_host, compare_kernel);
    pthread_rwlock_unlock(&lock);
    if (sought.host) return (void *)sought.host;
    return kernel ? (void *)kernel : (void *)function;
}

API cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    size_t bytes;
    if (!address) return runtime_error(cudaErrorInvalidValue);
    return runtime_error(runtime_variable(symbol, (CUdeviceptr *)address, &bytes));
}

API cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
    CUdeviceptr address;
    if (!bytes) return runtime_error(cudaErrorInvalidValue);
    return runtime_error(runtime_variable(symbol, &address, bytes));
}
