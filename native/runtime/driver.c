/* Finding the driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>

#include "driver_table.h"
#include "runtime.h"

struct driver driver;
CUresult (*driver_variable_begin)(CUdeviceptr *, size_t *, CUlibrary, const char *);
CUresult (*driver_variable_end)(CUlibrary);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int outcome = cudaErrorInsufficientDriver;

static CUresult lacks(void) { return CUDA_ERROR_NOT_SUPPORTED; }

/* A driver's state does not survive fork: the child gets an error, the parent continues. */
static void after_fork(void) { outcome = cudaErrorInitializationError; }

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

/* An older driver that lacks the requested form of a function returns another form, which has other
 * parameters. */
static void *look_up(__typeof__(cuGetProcAddress) *find, int has, const char *symbol) {
    const egpu_driver_fn *function = egpu_driver_symbol(symbol);
    void *found = NULL;
    if (!function || function->version > has ||
        find(function->name, &found, function->version, 0, NULL) != CUDA_SUCCESS || !found)
        return (void *)lacks;
    return found;
}

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) return;
    __typeof__(cuGetProcAddress) *find =
        (__typeof__(cuGetProcAddress) *)dlsym(library, TEXT(cuGetProcAddress));
    if (!find) return;
    /* First: a driver for remote cards knows its version only after it has found them. */
    outcome = (int)((__typeof__(cuInit) *)look_up(find, INT_MAX, TEXT(cuInit)))(0);
    int has = 0;
    ((__typeof__(cuDriverGetVersion) *)look_up(find, INT_MAX, TEXT(cuDriverGetVersion)))(&has);
#define X(name) driver.name = (__typeof__(name) *)look_up(find, has, TEXT(name));
#include "driver.def"
#undef X
    driver_variable_end = (__typeof__(driver_variable_end))dlsym(library, "egpuVariableEnd");
    if (driver_variable_end)
        driver_variable_begin =
            (__typeof__(driver_variable_begin))dlsym(library, "egpuVariableBegin");
    pthread_atfork(NULL, NULL, after_fork);
}

int runtime_driver(void) {
    pthread_once(&once, load);
    return outcome;
}
