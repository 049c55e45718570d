/* Known answers of cuGetProcAddress and look-ups by symbol. Prints each failure; exits 1 if there
 * was one. */
#include "driver_table.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void expect(const char *name, int version, int per_thread, const char *symbol,
                   egpu_driver_status expected) {
    egpu_driver_status status = (egpu_driver_status)-1;
    const egpu_driver_fn *fn = egpu_driver_query(name, version, per_thread, &status);
    const char *got = fn ? fn->symbol : "(none)";
    if (strcmp(got, symbol ? symbol : "(none)") != 0 || status != expected ||
        fn != egpu_driver_find(name, version, per_thread)) {
        fprintf(stderr, "%s at %d%s: got %s, status %d; expected %s, status %d\n", name, version,
                per_thread ? " per thread" : "", got, (int)status, symbol ? symbol : "(none)",
                (int)expected);
        failures++;
    }
}

static void found(const char *name, int version, int per_thread, const char *symbol) {
    expect(name, version, per_thread, symbol, EGPU_DRIVER_FOUND);
}

static void check(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        failures++;
    }
}

static void versions(void) {
    found("cuMemAlloc", 2000, 0, "cuMemAlloc");
    found("cuMemAlloc", 3010, 0, "cuMemAlloc");
    found("cuMemAlloc", 3020, 0, "cuMemAlloc_v2");
    found("cuMemAlloc", 13050, 0, "cuMemAlloc_v2");
    found("cuCtxCreate", 2000, 0, "cuCtxCreate");
    found("cuCtxCreate", 3020, 0, "cuCtxCreate_v2");
    found("cuCtxCreate", 11030, 0, "cuCtxCreate_v2");
    found("cuCtxCreate", 11040, 0, "cuCtxCreate_v3");
    found("cuCtxCreate", 12050, 0, "cuCtxCreate_v4");
    found("cuGetProcAddress", 11030, 0, "cuGetProcAddress");
    found("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
    found("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate");
    found("cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2");
    found("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags");
    found("cuGraphInstantiateWithFlags", 11040, 0, "cuGraphInstantiateWithFlags");
    expect("cuMemAlloc", 1000, 0, NULL, EGPU_DRIVER_VERSION_NOT_SUFFICIENT);
    expect("cuMemAllocAsync", 11010, 0, NULL, EGPU_DRIVER_VERSION_NOT_SUFFICIENT);
    expect("cuMemAllocate", 13050, 0, NULL, EGPU_DRIVER_SYMBOL_NOT_FOUND);
    expect("cuMemAlloc_v2", 13050, 0, NULL, EGPU_DRIVER_SYMBOL_NOT_FOUND);
    expect("", 13050, 0, NULL, EGPU_DRIVER_SYMBOL_NOT_FOUND);
    expect("zzz", 13050, 1, NULL, EGPU_DRIVER_SYMBOL_NOT_FOUND);
    expect(NULL, 13050, 0, NULL, EGPU_DRIVER_SYMBOL_NOT_FOUND);
}

static void per_thread(void) {
    found("cuStreamSynchronize", 7000, 1, "cuStreamSynchronize_ptsz");
    found("cuStreamSynchronize", 7000, 0, "cuStreamSynchronize");
    found("cuMemcpyHtoD", 7000, 1, "cuMemcpyHtoD_v2_ptds");
    found("cuMemcpyHtoD", 7000, 0, "cuMemcpyHtoD_v2");
    /* No per-thread variant: the flag changes nothing. */
    found("cuMemAlloc", 13050, 1, "cuMemAlloc_v2");
    found("cuInit", 2000, 1, "cuInit");
    /* The variant is younger than the function: the legacy symbol stands in for it. */
    found("cuStreamSynchronize", 6000, 1, "cuStreamSynchronize");
    found("cuMemcpyHtoD", 2000, 1, "cuMemcpyHtoD");
    found("cuMemcpyHtoD", 3020, 1, "cuMemcpyHtoD_v2");
    expect("cuMemcpyHtoD", 1000, 1, NULL, EGPU_DRIVER_VERSION_NOT_SUFFICIENT);
}

static void symbols(void) {
    for (int id = 0; id < EGPU_DRIVER_FUNCTIONS; id++) {
        const egpu_driver_fn *fn = &egpu_driver_functions[id];
        if (egpu_driver_symbol(fn->symbol) != fn) {
            fprintf(stderr, "%s is not found by its own symbol\n", fn->symbol);
            failures++;
        }
        /* Each ABI answers for its own version. */
        found(fn->name, fn->version, fn->threads == EGPU_THREADS_PER_THREAD, fn->symbol);
    }
    check(egpu_driver_symbol("cuMemAlloc_v3") == NULL, "no cuMemAlloc_v3");
    check(egpu_driver_symbol(NULL) == NULL, "no symbol NULL");
    check(egpu_driver_symbol("cuMemAlloc_v2") == &egpu_driver_functions[EGPU_FN_cuMemAlloc_v2],
          "ids are indices");
}

static void classes(void) {
    const egpu_driver_fn *alloc = egpu_driver_symbol("cuMemAlloc_v2");
    check(alloc->interposer == EGPU_INTERPOSER_ALLOC, "cuMemAlloc_v2 is an allocation");
    check(alloc->remote == EGPU_REMOTE_SYNC, "cuMemAlloc_v2 waits for its answer");
    check(egpu_driver_symbol("cuLaunchKernelEx_ptsz")->interposer == EGPU_INTERPOSER_LAUNCH,
          "a launch is a launch");
    check(strcmp(egpu_interposer_class_name(EGPU_INTERPOSER_ALLOC), "ALLOC") == 0,
          "classes have names");
    check(strcmp(egpu_remote_class_name(EGPU_REMOTE_DENY), "DENY") == 0,
          "remote classes have names");
    check(strcmp(egpu_remote_class_name(EGPU_REMOTE_CLASSES), "?") == 0,
          "what is no class has no name");
}

int main(void) {
    versions();
    per_thread();
    symbols();
    classes();
    if (failures == 0)
        printf("driver table: %d symbols, all as expected\n", (int)EGPU_DRIVER_FUNCTIONS);
    return failures != 0;
}
