/* Code and variables of modules: what no call allocates.
 *
 * What the image says that it takes is charged before the driver is asked. What a load really takes
 * is measured (measure.c), and charged where it is more. A neighbour that takes memory at that
 * moment would be paid for, too: what seems more than the image says is unloaded and loaded again,
 * and the least counts. A driver's own memory, which stays after the unload, is then charged by the
 * look at the whole process, not to the module.
 */
#include "loads.h"

#include <string.h>

enum {
    SURPRISE_BYTES = 4 << 20, /* more than a driver rounds up: a neighbour may be the cause */
    ATTEMPTS = 3,
    MAX_OPTIONS = 64, /* of a load that can be made again */
};

bool module_reserve(int device, uint64_t bytes) {
    if (bytes == 0 || memory_reserve(device, EGPU_MEMORY_MODULE, bytes)) return true;
    account_refused(device);
    return false;
}

bool module_book(enum holding_kind kind, uint64_t key, uint64_t bytes, CUcontext context,
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

/* Loads until what it takes is sure; *bytes are reserved already, and more where it takes more. */
static CUresult load_measured(struct load *load, int device, uint64_t *bytes) {
    void *values[MAX_OPTIONS]; /* the driver answers in the options, too: it is asked anew each time
                                */
    bool again = load->values == NULL || load->count <= MAX_OPTIONS;
    if (load->values != NULL && again) memcpy(values, load->values, load->count * sizeof *values);
    uint64_t more = UINT64_MAX;
    for (int attempt = 1;; attempt++) {
        int64_t before = measure_uncounted(device, *bytes);
        CUresult result = load->make(load);
        if (result != CUDA_SUCCESS) return result;
        uint64_t took = measure_grown(before, measure_uncounted(device, *bytes));
        took = took > *bytes ? took - *bytes : 0;
        if (took < more) more = took;
        bool last = attempt == ATTEMPTS || !again;
        if ((more < SURPRISE_BYTES || last) && module_reserve(device, more)) {
            *bytes += more;
            return CUDA_SUCCESS;
        }
        load->undo(load);
        if (last) return CUDA_ERROR_OUT_OF_MEMORY;
        if (load->values != NULL) memcpy(load->values, values, load->count * sizeof *values);
    }
}

CUresult load_charged(struct load *load, CUcontext context, int device, uint64_t *bytes) {
    *bytes = 0;
    if (context == NULL) return load->make(load); /* a module: it has the right error */
    if (device < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(&loading);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (module_reserve(device, charge_of(load->least))) {
        *bytes = charge_of(load->least);
        result = load_measured(load, device, bytes);
        if (result != CUDA_SUCCESS) account_release(device, EGPU_MEMORY_MODULE, *bytes);
    }
    lock_drop(&loading);
    return result;
}

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

static CUresult load_module(CUmodule *module, struct load *load) {
    CUcontext context;
    uint64_t bytes;
    int device = device_current(&context);
    load->undo = unload_module;
    CUresult result = load_charged(load, context, device, &bytes);
    if (result != CUDA_SUCCESS) return result;
    *module = load->module;
    if (module_book(HOLDING_MODULE, (uint64_t)(uintptr_t)load->module, bytes, context, device))
        return CUDA_SUCCESS;
    unload_module(load);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoad)(module, path);
    return load_module(
        module,
        &(struct load){.make = module_file, .image = path, .least = image_file_bytes(path)});
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoadData)(module, image);
    return load_module(
        module, &(struct load){.make = module_data, .image = image, .least = image_bytes(image)});
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                   CUjit_option *names, void **values) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoadDataEx)(module, image, count, names, values);
    return load_module(module, &(struct load){.make = module_data_ex,
                                              .image = image,
                                              .least = image_bytes(image),
                                              .count = count,
                                              .names = names,
                                              .values = values});
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    if (!slice_open()) return REFUSED;
    if (module == NULL) return REAL(cuModuleLoadFatBinary)(module, image);
    return load_module(
        module, &(struct load){.make = module_fat, .image = image, .least = image_bytes(image)});
}

/* Taken out before the driver unloads: afterwards another may be given the same handle. */
EXPORT CUresult cuModuleUnload(CUmodule module) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    bool known = table_take(HOLDING_MODULE, (uint64_t)(uintptr_t)module, &holding);
    CUresult result = REAL(cuModuleUnload)(module);
    if (known && result == CUDA_SUCCESS)
        account_release(holding.device, holding.class, holding.bytes);
    if (known && result != CUDA_SUCCESS) table_add(&holding);
    return result;
}
