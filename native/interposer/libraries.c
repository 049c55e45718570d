/* Libraries: loaded once, and taken into each context that uses them, by the driver, when it is
 * first asked for something of theirs there. Each context's part is charged before that happens.
 *
 * A library that is loaded with a context is taken into it at once, so that what does not fit is
 * refused where it is loaded. Elsewhere it is taken in where a kernel of it is launched
 * (kernels.c), or a module, a variable or a kernel asked for.
 */
#include "loads.h"

#include <stdlib.h>

enum { GIVEN_UP = 1 }; /* the owner of such an image: no context has this address */

static CUresult unload_library(struct load *load) { return REAL(cuLibraryUnload)(load->library); }

/* Into the calling thread's context. A library without code for this card stays loaded all the
 * same. */
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

static uint64_t key_of(const void *handle) { return (uint64_t)(uintptr_t)handle; }

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What a context will be charged for it; or that it was given up, and its handle means nothing. */
static bool note(CUlibrary library, uint64_t bytes, uint64_t state) {
    struct holding image = {.key = key_of(library),
                            .bytes = bytes,
                            .owner = state,
                            .references = 1,
                            .kind = HOLDING_IMAGE,
                            .device = DEVICE_NONE};
    struct holding before;
    table_take(HOLDING_IMAGE, image.key, &before);
    return table_add(&image);
}

static bool is_given_up(CUlibrary library) {
    struct holding image;
    return table_look_owned(HOLDING_IMAGE, key_of(library), GIVEN_UP, &image);
}

static void forget(CUlibrary library) {
    struct holdings gone = {0};
    table_take_key(HOLDING_IMAGE, key_of(library), &gone);
    table_take_owned(key_of(library), 1u << HOLDING_KERNEL, &gone);
    free(gone.list);
}

static CUresult load_library(CUlibrary *library, struct load *load) {
    CUcontext context;
    uint64_t bytes;
    int device = device_current(&context);
    load->undo = unload_library;
    CUresult result = load_charged(load, context, device, &bytes);
    if (result != CUDA_SUCCESS) return result;
    forget(load->library); /* of one that was given up, and had this handle */
    *library = load->library;
    if (context != NULL &&
        !module_book(HOLDING_LIBRARY, key_of(load->library), bytes, context, device))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && note(load->library, larger(bytes, charge_of(load->least)), 0))
        return CUDA_SUCCESS;
    cuLibraryUnload(load->library);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define LOAD_LIBRARY(SYMBOL, CODE, MAKE, LEAST)                                                   \
    EXPORT CUresult SYMBOL(CUlibrary *library, CODE code, CUjit_option *names, void **values,     \
                           unsigned count, CUlibraryOption *library_names, void **library_values, \
                           unsigned library_count) {                                              \
        if (!slice_open()) return REFUSED;                                                        \
        if (library == NULL) return CUDA_ERROR_INVALID_VALUE;                                     \
        return load_library(library, &(struct load){.make = (MAKE),                               \
                                                    .image = code,                                \
                                                    .least = LEAST(code),                         \
                                                    .count = count,                               \
                                                    .names = names,                               \
                                                    .values = values,                             \
                                                    .library_count = library_count,               \
                                                    .library_names = library_names,               \
                                                    .library_values = library_values});           \
    }
LOAD_LIBRARY(cuLibraryLoadData, const void *, library_data, image_bytes)
LOAD_LIBRARY(cuLibraryLoadFromFile, const char *, library_file, image_file_bytes)

/* Taken out before the driver unloads: afterwards another may be given the same handle. */
EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    struct holdings parts = {0}, others = {0};
    if (!slice_open()) return REFUSED;
    if (is_given_up(library)) {
        forget(library);
        return CUDA_SUCCESS; /* that was done then */
    }
    table_take_key(HOLDING_LIBRARY, key_of(library), &parts);
    table_take_key(HOLDING_IMAGE, key_of(library), &others);
    table_take_owned(key_of(library), 1u << HOLDING_KERNEL, &others);
    CUresult result = REAL(cuLibraryUnload)(library);
    if (result != CUDA_SUCCESS) {
        table_put_back(&parts);
        table_put_back(&others);
        return result;
    }
    for (unsigned i = 0; i < parts.count; i++)
        account_release(parts.list[i].device, EGPU_MEMORY_MODULE, parts.list[i].bytes);
    free(parts.list);
    free(others.list);
    return result;
}

/* ---- taken into a context ---- */

/* It turned out larger than its image said, and than there is room for. One context's part cannot
 * be undone: the library is unloaded as a whole, where nothing of it was ever given out, and its
 * handles are refused from now on. Else it is counted, so that nothing else fits. */
static bool give_up(CUlibrary library) {
    struct holding part;
    return !table_look(HOLDING_LIBRARY, key_of(library), &part) && note(library, 0, GIVEN_UP) &&
           REAL(cuLibraryUnload)(library) == CUDA_SUCCESS;
}

/* Under the lock. */
static CUresult take_in(CUlibrary library, CUcontext context, int device) {
    struct holding image = {0};
    CUmodule module;
    table_look(HOLDING_IMAGE, key_of(library), &image);
    if (!module_reserve(device, image.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    int64_t before = measure_uncounted(device, image.bytes);
    if (REAL(cuLibraryGetModule)(&module, library) != CUDA_SUCCESS) {
        account_release(device, EGPU_MEMORY_MODULE, image.bytes);
        return CUDA_SUCCESS; /* the call itself has the right error */
    }
    uint64_t bytes =
        larger(image.bytes, measure_grown(before, measure_uncounted(device, image.bytes)));
    bool fits = module_reserve(device, bytes - image.bytes);
    if (!fits && give_up(library)) {
        account_release(device, EGPU_MEMORY_MODULE, image.bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!fits) account_force(device, EGPU_MEMORY_MODULE, bytes - image.bytes);
    note(library, bytes, 0); /* the next context's part will be as large */
    return module_book(HOLDING_LIBRARY, key_of(library), bytes, context, device) && fits
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult library_settle(CUlibrary library) {
    CUcontext context;
    struct holding part;
    int device = device_current(&context);
    uint64_t owner = (uint64_t)(uintptr_t)context;
    if (is_given_up(library)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (context == NULL || library == NULL || REAL(cuLibraryGetModule) == NULL) return CUDA_SUCCESS;
    if (device < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    if (table_look_owned(HOLDING_LIBRARY, key_of(library), owner, &part)) return CUDA_SUCCESS;
    lock_take(&loading);
    /* another thread may have been faster */
    if (is_given_up(library))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!table_look_owned(HOLDING_LIBRARY, key_of(library), owner, &part))
        result = take_in(library, context, device);
    lock_drop(&loading);
    return result;
}

#define OF_LIBRARY(SYMBOL, PARAMETERS, ARGUMENTS)                        \
    EXPORT CUresult SYMBOL PARAMETERS {                                  \
        if (!slice_open()) return REFUSED;                               \
        CUresult result = library_settle(library);                       \
        return result == CUDA_SUCCESS ? REAL(SYMBOL) ARGUMENTS : result; \
    }
OF_LIBRARY(cuLibraryGetModule, (CUmodule * module, CUlibrary library), (module, library))
OF_LIBRARY(cuLibraryGetGlobal,
           (CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name),
           (pointer, bytes, library, name))
OF_LIBRARY(cuLibraryGetManaged,
           (CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name),
           (pointer, bytes, library, name))
OF_LIBRARY(cuLibraryGetUnifiedFunction, (void **function, CUlibrary library, const char *symbol),
           (function, library, symbol))

OF_LIBRARY(cuLibraryGetKernelCount, (unsigned *count, CUlibrary library), (count, library))

/* ---- its kernels ---- */

/* From now on its handle is known for a kernel. */
static CUresult know(CUkernel kernel, CUlibrary library) {
    struct holding known = {.key = key_of(kernel),
                            .owner = key_of(library),
                            .references = 1,
                            .kind = HOLDING_KERNEL,
                            .device = DEVICE_NONE};
    struct holding already;
    if (table_look_owned(HOLDING_KERNEL, known.key, known.owner, &already)) return CUDA_SUCCESS;
    /* a kernel of a library that was given up may have had the handle */
    while (table_take(HOLDING_KERNEL, known.key, &already)) continue;
    if (!table_add(&known)) return CUDA_ERROR_OUT_OF_MEMORY;
    kernels_announce();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    if (!slice_open()) return REFUSED;
    CUresult result = library_settle(library);
    if (result == CUDA_SUCCESS) result = REAL(cuLibraryGetKernel)(kernel, library, name);
    return result == CUDA_SUCCESS ? know(*kernel, library) : result;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    if (!slice_open()) return REFUSED;
    unsigned all = 0;
    CUresult result = library_settle(library);
    if (result == CUDA_SUCCESS) result = REAL(cuLibraryEnumerateKernels)(kernels, count, library);
    if (result == CUDA_SUCCESS && REAL(cuLibraryGetKernelCount) != NULL)
        result = REAL(cuLibraryGetKernelCount)(&all, library);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count && i < all; i++)
        result = know(kernels[i], library);
    return result;
}
