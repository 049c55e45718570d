/* The one list of CUDA driver functions, as data: which symbols libcuda exports, which of them
 * cuGetProcAddress answers with, and what the interposer and the remote client do with each.
 *
 * The data are in driver_table.inc, generated; this is how C reads them. Nothing here allocates,
 * locks or needs cuda.h; everything is constant and may be used from any thread, before main and
 * after fork.
 */
#ifndef EGPU_DRIVER_TABLE_H
#define EGPU_DRIVER_TABLE_H

#include <stddef.h>

/* Compiled into shared objects that others link against or preload: its symbols are nobody else's
 * business. */
#pragma GCC visibility push(hidden)

/* What the interposer does with a function: EGPU_INTERPOSER_ALLOC, _FREE, _INFO, _LAUNCH, ...
 * (classes.yaml). */
typedef enum egpu_interposer_class {
#define EGPU_DRIVER_INTERPOSER_CLASS(class_) EGPU_INTERPOSER_##class_,
#include "generated/driver_table.inc"
    EGPU_INTERPOSER_CLASSES
} egpu_interposer_class;

/* How the remote client answers a function: EGPU_REMOTE_SYNC, _ASYNC, _LOCAL, _CACHED, _DENY. */
typedef enum egpu_remote_class {
#define EGPU_DRIVER_REMOTE_CLASS(class_) EGPU_REMOTE_##class_,
#include "generated/driver_table.inc"
    EGPU_REMOTE_CLASSES
} egpu_remote_class;

/* Which default stream a symbol means: the legacy one, or the calling thread's (_ptds, _ptsz). */
typedef enum egpu_driver_threads {
    EGPU_THREADS_LEGACY,
    EGPU_THREADS_PER_THREAD
} egpu_driver_threads;

/* One exported symbol: EGPU_FN_cuMemAlloc_v2, ... Dense from 0, usable as an array index. */
typedef enum egpu_driver_id {
#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    EGPU_FN_##symbol,
#include "generated/driver_table.inc"
    EGPU_DRIVER_FUNCTIONS
} egpu_driver_id;

typedef struct egpu_driver_fn {
    const char *symbol; /* exported name: "cuMemAlloc_v2" */
    const char *name;   /* base name, as given to cuGetProcAddress: "cuMemAlloc" */
    int version;        /* CUDA version of this ABI: 3020 */
    egpu_driver_threads threads;
    egpu_interposer_class interposer;
    egpu_remote_class remote;
} egpu_driver_fn;

/* Values of CUdriverProcAddressQueryResult, which is what cuGetProcAddress_v2 stores. */
typedef enum egpu_driver_status {
    EGPU_DRIVER_FOUND = 0,
    EGPU_DRIVER_SYMBOL_NOT_FOUND = 1,
    EGPU_DRIVER_VERSION_NOT_SUFFICIENT = 2
} egpu_driver_status;

/* All functions, sorted by symbol and indexed by egpu_driver_id. */
extern const egpu_driver_fn egpu_driver_functions[EGPU_DRIVER_FUNCTIONS];

/* The symbol that cuGetProcAddress gives for a base name: the newest ABI that is not newer than
 * cuda_version. per_thread is CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: it selects the
 * per-thread variant where there is one that is old enough, and changes nothing elsewhere. NULL if
 * there is none. The table knows releases, not drivers: refusing a cuda_version newer than itself
 * (CUDA_ERROR_INVALID_VALUE) is left to the driver that uses it. */
const egpu_driver_fn *egpu_driver_find(const char *name, int cuda_version, int per_thread);

/* The same, and why not: *status is what cuGetProcAddress_v2 would say. status may be NULL. */
const egpu_driver_fn *egpu_driver_query(const char *name, int cuda_version, int per_thread,
                                        egpu_driver_status *status);

/* What a driver of version `has` answers when it is asked for version `asked`: a function that it
 * is too old for is a symbol that it has never heard of. */
const egpu_driver_fn *egpu_driver_answer(const char *name, int asked, int has, int per_thread,
                                         egpu_driver_status *status);

/* The function exported under this very name ("cuMemAlloc_v2", "cuMemcpyHtoD_v2_ptds"), as dlsym
 * sees it, or NULL. */
const egpu_driver_fn *egpu_driver_symbol(const char *symbol);

/* Names of the classes, for messages: "ALLOC", "SYNC". */
const char *egpu_interposer_class_name(egpu_interposer_class class_);
const char *egpu_remote_class_name(egpu_remote_class class_);

#pragma GCC visibility pop

#endif
