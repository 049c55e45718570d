/* What no call allocates: code, variables and constants of modules, heaps, and local memory.
 *
 * How much a load takes is the driver's secret, so it is asked before and after how much the card
 * has left; what the slice counted meanwhile is its own and is taken off. A neighbour that takes
 * memory at that moment would be paid for, too: what seems much is unloaded and loaded again, and
 * the least counts. Images are never looked into: they are whatever a program makes of them.
 *
 * Heaps and local memory are taken when a kernel first needs them: they are charged by the driver's
 * rule (a thread's bytes × all threads that can be resident) when a limit is set or a function
 * looked up. What comes later still, the agent sees.
 */
#include "interposer.h"

#include <string.h>

enum {
    SURPRISE_BYTES = 32 << 20, /* from here on a neighbour may be the cause */
    ATTEMPTS = 3,
    MAX_OPTIONS = 64, /* of a load that can be made again */
    HANDLE_BITS = 56, /* of a table key; above them lies what the handle has several of */
    KERNEL_LOCAL = 0x40,
};

/* One load at a time, so that none is charged another's: the driver, too, has a lock for these. */
static egpu_lock loading;

void modules_forget(void) { loading.word = 0; }

static uint64_t key_of(const void *handle, unsigned which) {
    return (uint64_t)(uintptr_t)handle | (uint64_t)which << HANDLE_BITS;
}

/* Bytes of the card that are in use and that the slice has not counted: of others, mostly. */
static int64_t uncounted(int device) {
    size_t left = 0, total = 0;
    if (REAL(cuMemGetInfo_v2) == NULL || REAL(cuMemGetInfo_v2)(&left, &total) != CUDA_SUCCESS)
        return 0;
    return (int64_t)(total - left) - (int64_t)account_counted(device);
}

static uint64_t grown_since(int64_t before, int device) {
    int64_t after = uncounted(device);
    return after > before ? charge_of((uint64_t)(after - before)) : 0;
}

static bool reserve(int device, uint64_t bytes) {
    if (bytes == 0 || memory_reserve(device, EGPU_MEMORY_MODULE, bytes)) return true;
    account_refused(device);
    return false;
}

static bool book(enum holding_kind kind, uint64_t key, uint64_t bytes, CUcontext context,
                 int device) {
    struct holding holding = {.key = key,
                              .bytes = bytes,
                              .owner = (uint64_t)(uintptr_t)context,
                              .references = 1,
                              .kind = (uint8_t)kind,
                              .class = EGPU_MEMORY_MODULE,
                              .device = (int8_t)device};
    if (table_add(&holding)) return true;
    account_release(device, EGPU_MEMORY_MODULE, bytes);
    return false;
}

static void give_back(const struct holding *holding) {
    account_release(holding->device, holding->class, holding->bytes);
}

/* ---- loads ---- */

struct load {
    CUresult (*make)(struct load *load);
    CUresult (*undo)(struct load *load);
    const void *image; /* or a path */
    unsigned count;
    CUjit_option *names;
    void **values;
    unsigned library_count;
    CUlibraryOption *library_names;
    void **library_values;
    CUmodule module;
    CUlibrary library;
};

static CUresult unload_module(struct load *load) { return REAL(cuModuleUnload)(load->module); }

static CUresult module_file(struct load *load) {
    return REAL(cuModuleLoad)(&load->module, load->image);
}
static CUresult module_data(struct load *load) {
    return REAL(cuModuleLoadData)(&load->module, load->image);
}
static CUresult module_data_ex(struct load *load) {
    return REAL(cuModuleLoadDataEx)(&load->module, load->image, load->count, load->names,
                                    load->values);
}
static CUresult module_fat(struct load *load) {
    return REAL(cuModuleLoadFatBinary)(&load->module, load->image);
}

static CUresult unload_library(struct load *load) { return REAL(cuLibraryUnload)(load->library); }

/* Into the calling thread's context at once: nothing tells us later when a launch does it. A
 * library without code for this card stays loaded all the same. */
static CUresult settled(struct load *load, CUresult result) {
    if (result == CUDA_SUCCESS && REAL(cuLibraryGetModule) != NULL &&
        REAL(cuLibraryGetModule)(&load->module, load->library) == CUDA_ERROR_OUT_OF_MEMORY) {
        unload_library(load);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}
static CUresult library_data(struct load *load) {
    return settled(load, REAL(cuLibraryLoadData)(&load->library, load->image, load->names,
                                                 load->values, load->count, load->library_names,
                                                 load->library_values, load->library_count));
}
static CUresult library_file(struct load *load) {
    return settled(load, REAL(cuLibraryLoadFromFile)(&load->library, load->image, load->names,
                                                     load->values, load->count, load->library_names,
                                                     load->library_values, load->library_count));
}

/* Loads until what it takes is sure, and charges that; what does not fit is unloaded. */
static CUresult load_charged(struct load *load, int device, uint64_t *bytes) {
    void *values[MAX_OPTIONS]; /* the driver answers in the options, too: it is asked anew each time
                                */
    bool again = load->values == NULL || load->count <= MAX_OPTIONS;
    if (load->values != NULL && again) memcpy(values, load->values, load->count * sizeof *values);
    *bytes = UINT64_MAX;
    for (int attempt = 1;; attempt++) {
        int64_t before = uncounted(device);
        CUresult result = load->make(load);
        if (result != CUDA_SUCCESS) return result;
        uint64_t took = grown_since(before, device);
        if (took < *bytes) *bytes = took;
        bool last = attempt == ATTEMPTS || !again;
        if (*bytes < SURPRISE_BYTES || last) {
            if (reserve(device, *bytes)) return CUDA_SUCCESS;
        }
        load->undo(load);
        if (last) return CUDA_ERROR_OUT_OF_MEMORY;
        if (load->values != NULL) memcpy(load->values, values, load->count * sizeof *values);
    }
}

static CUresult load_booked(struct load *load, enum holding_kind kind) {
    CUcontext context;
    uint64_t bytes;
    int device = device_current(&context);
    if (context == NULL) return load->make(load); /* a module: it has the right error */
    if (device < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(&loading);
    CUresult result = load_charged(load, device, &bytes);
    lock_drop(&loading);
    if (result != CUDA_SUCCESS) return result;
    uint64_t key = kind == HOLDING_MODULE ? key_of(load->module, 0)
                                          : key_of(load->library, (unsigned)device + 1);
    if (book(kind, key, bytes, context, device)) return CUDA_SUCCESS;
    load->undo(load);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult load_module(CUmodule *module, struct load *load) {
    load->undo = unload_module;
    CUresult result = load_booked(load, HOLDING_MODULE);
    if (result == CUDA_SUCCESS) *module = load->module;
    return result;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoad)(module, path);
    return load_module(module, &(struct load){.make = module_file, .image = path});
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoadData)(module, image);
    return load_module(module, &(struct load){.make = module_data, .image = image});
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                   CUjit_option *names, void **values) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoadDataEx)(module, image, count, names, values);
    return load_module(module, &(struct load){.make = module_data_ex,
                                              .image = image,
                                              .count = count,
                                              .names = names,
                                              .values = values});
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoadFatBinary)(module, image);
    return load_module(module, &(struct load){.make = module_fat, .image = image});
}

/* Taken out before the driver unloads: afterwards another may be given the same handle. */
EXPORT CUresult cuModuleUnload(CUmodule module) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    bool known = table_take(HOLDING_MODULE, key_of(module, 0), &holding);
    CUresult result = REAL(cuModuleUnload)(module);
    if (known && result == CUDA_SUCCESS) give_back(&holding);
    if (known && result != CUDA_SUCCESS) table_add(&holding);
    return result;
}

/* ---- libraries: loaded once, and taken into each context that uses them ---- */

static CUresult load_library(CUlibrary *library, struct load *load) {
    load->undo = unload_library;
    CUresult result = load_booked(load, HOLDING_LIBRARY);
    if (result == CUDA_SUCCESS) *library = load->library;
    return result;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *names,
                                  void **values, unsigned count, CUlibraryOption *library_names,
                                  void **library_values, unsigned library_count) {
    if (!slice_open()) return REFUSED;
    if (library == NULL) return CUDA_ERROR_INVALID_VALUE;
    return load_library(library, &(struct load){.make = library_data,
                                                .image = code,
                                                .count = count,
                                                .names = names,
                                                .values = values,
                                                .library_count = library_count,
                                                .library_names = library_names,
                                                .library_values = library_values});
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *names,
                                      void **values, unsigned count, CUlibraryOption *library_names,
                                      void **library_values, unsigned library_count) {
    if (!slice_open()) return REFUSED;
    if (library == NULL) return CUDA_ERROR_INVALID_VALUE;
    return load_library(library, &(struct load){.make = library_file,
                                                .image = path,
                                                .count = count,
                                                .names = names,
                                                .values = values,
                                                .library_count = library_count,
                                                .library_names = library_names,
                                                .library_values = library_values});
}

EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    struct holding holdings[EGPU_MAX_DEVICES];
    unsigned count = 0;
    if (!slice_open()) return REFUSED;
    for (unsigned device = 0; device < slice_device_count(); device++)
        count += table_take(HOLDING_LIBRARY, key_of(library, device + 1), &holdings[count]);
    CUresult result = REAL(cuLibraryUnload)(library);
    for (unsigned i = 0; i < count; i++) {
        if (result == CUDA_SUCCESS)
            give_back(&holdings[i]);
        else
            table_add(&holdings[i]);
    }
    return result;
}

/* Of a library that was loaded before there was this context. One context's part cannot be undone:
 * what does not fit is counted, so that nothing else does until the library is unloaded. */
static CUresult library_settle(CUlibrary library) {
    CUcontext context;
    CUmodule module;
    struct holding holding;
    int device = device_current(&context);
    uint64_t key = key_of(library, (unsigned)device + 1);
    if (context == NULL || library == NULL || REAL(cuLibraryGetModule) == NULL) return CUDA_SUCCESS;
    if (device < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (table_look(HOLDING_LIBRARY, key, &holding) && holding.owner == (uint64_t)(uintptr_t)context)
        return CUDA_SUCCESS;
    lock_take(&loading);
    int64_t before = uncounted(device);
    bool there = REAL(cuLibraryGetModule)(&module, library) == CUDA_SUCCESS;
    uint64_t bytes = there ? grown_since(before, device) : 0;
    bool fits = reserve(device, bytes);
    if (!fits) account_force(device, EGPU_MEMORY_MODULE, bytes);
    lock_drop(&loading);
    if (!there) return CUDA_SUCCESS; /* the call itself has the right error */
    if (table_take(HOLDING_LIBRARY, key, &holding)) give_back(&holding); /* another context's */
    return book(HOLDING_LIBRARY, key, bytes, context, device) && fits ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    if (!slice_open()) return REFUSED;
    CUresult result = library_settle(library);
    return result == CUDA_SUCCESS ? REAL(cuLibraryGetModule)(module, library) : result;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                                   const char *name) {
    if (!slice_open()) return REFUSED;
    CUresult result = library_settle(library);
    return result == CUDA_SUCCESS ? REAL(cuLibraryGetGlobal)(pointer, bytes, library, name)
                                  : result;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    if (!slice_open()) return REFUSED;
    CUresult result = library_settle(library);
    return result == CUDA_SUCCESS ? REAL(cuLibraryGetKernel)(kernel, library, name) : result;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    if (!slice_open()) return REFUSED;
    CUresult result = library_settle(library);
    return result == CUDA_SUCCESS ? REAL(cuLibraryEnumerateKernels)(kernels, count, library)
                                  : result;
}

/* ---- heaps and local memory: of a context, until it ends ---- */

/* All threads that the current device can have at one time. */
static uint64_t resident_threads(void) {
    CUdevice ordinal;
    int processors = 0, threads = 0;
    if (REAL(cuCtxGetDevice) == NULL || REAL(cuDeviceGetAttribute) == NULL ||
        REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS ||
        REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                   ordinal) != CUDA_SUCCESS ||
        REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                   ordinal) != CUDA_SUCCESS)
        return 0;
    return (uint64_t)processors * (uint64_t)threads;
}

static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t bytes;
    return __builtin_mul_overflow(a, b, &bytes) ? UINT64_MAX : bytes;
}

/* Bytes of the card that one byte of a limit stands for; 0: none. */
static uint64_t bytes_per(CUlimit limit) {
    switch ((int)limit) {
    case CU_LIMIT_STACK_SIZE: return resident_threads();
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE: return 1;
    default: return 0;
    }
}

/* Adds to what a context holds of one kind, or takes off; false: no room for it. Under the lock. */
static bool context_hold(CUcontext context, int device, unsigned which, uint64_t more,
                         uint64_t less) {
    struct holding holding;
    uint64_t key = key_of(context, which);
    if (!reserve(device, more)) return false;
    uint64_t held = table_take(HOLDING_CONTEXT, key, &holding) ? holding.bytes : 0;
    if (less > held) less = held; /* below where the driver began: that was never charged */
    if (less != 0) account_release(device, EGPU_MEMORY_MODULE, less);
    return held + more - less == 0 ||
           book(HOLDING_CONTEXT, key, held + more - less, context, device);
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    CUcontext context;
    size_t before = 0, now = 0;
    if (!slice_open()) return REFUSED;
    int device = device_current(&context);
    uint64_t each = context == NULL ? 0 : bytes_per(limit);
    if (each == 0 || REAL(cuCtxGetLimit) == NULL ||
        REAL(cuCtxGetLimit)(&before, limit) != CUDA_SUCCESS)
        return REAL(cuCtxSetLimit)(limit, value);
    lock_take(&loading);
    uint64_t more = value > before ? charge_of(product(value - before, each)) : 0;
    CUresult result = device >= 0 && context_hold(context, device, limit, more, 0)
                          ? CUDA_SUCCESS
                          : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        result = REAL(cuCtxSetLimit)(limit, value);
        if (REAL(cuCtxGetLimit)(&now, limit) != CUDA_SUCCESS) now = value;
        /* what was refused, or rounded; and all of a decrease */
        uint64_t most = before + more / each;
        if (now < most) context_hold(context, device, limit, 0, product(most - now, each));
    }
    lock_drop(&loading);
    return result;
}

/* Local memory beyond what the stack limit has already: the largest kernel's stays for good. */
static CUresult function_settle(CUfunction function) {
    CUcontext context;
    struct holding holding;
    int bytes = 0, device = device_current(&context);
    size_t stack = 0;
    if (context == NULL || REAL(cuFuncGetAttribute) == NULL || REAL(cuCtxGetLimit) == NULL ||
        REAL(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) !=
            CUDA_SUCCESS ||
        REAL(cuCtxGetLimit)(&stack, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS || bytes <= 0 ||
        (size_t)bytes <= stack)
        return CUDA_SUCCESS;
    if (device < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t needed = charge_of(product((size_t)bytes - stack, resident_threads()));
    lock_take(&loading);
    bool known = table_look(HOLDING_CONTEXT, key_of(context, KERNEL_LOCAL), &holding);
    uint64_t held = known ? holding.bytes : 0;
    bool fits = needed <= held || context_hold(context, device, KERNEL_LOCAL, needed - held, 0);
    lock_drop(&loading);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuModuleGetFunction)(function, module, name);
    return result == CUDA_SUCCESS ? function_settle(*function) : result;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
    if (!slice_open()) return REFUSED;
    unsigned all = 0;
    CUresult result = REAL(cuModuleEnumerateFunctions)(functions, count, module);
    if (result == CUDA_SUCCESS && REAL(cuModuleGetFunctionCount) != NULL)
        result = REAL(cuModuleGetFunctionCount)(&all, module);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count && i < all; i++)
        result = function_settle(functions[i]);
    return result;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUlibrary library = NULL;
    if (!slice_open()) return REFUSED;
    if (REAL(cuKernelGetLibrary) != NULL) REAL(cuKernelGetLibrary)(&library, kernel);
    CUresult result = library_settle(library);
    if (result == CUDA_SUCCESS) result = REAL(cuKernelGetFunction)(function, kernel);
    return result == CUDA_SUCCESS ? function_settle(*function) : result;
}
