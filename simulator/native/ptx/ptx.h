/* PTX for the simulated GPU: load a module from PTX text, run its kernels on the CPU.
 *
 * This is the whole interface between the interpreter and the simulated driver. The interpreter
 * knows no contexts, streams or processes. It reaches device memory only through the callbacks
 * below. Loading a module refuses unsupported PTX by name and line. Source of the language: NVIDIA,
 * "PTX ISA", the public reference.
 *
 * Threads: a loaded module is immutable, so any number of host threads may launch from it at once.
 * Each launch runs on the calling thread; split a grid with first_block/block_count to use several.
 * Atomics are real C11 atomics on the memory itself, so kernels of several processes may share it.
 */
#ifndef EGPU_PTX_H
#define EGPU_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    EGPU_PTX_OK = 0,
    /* Results of loading. */
    /* not PTX, or PTX that a compiler would refuse: CUDA_ERROR_INVALID_PTX */
    EGPU_PTX_SYNTAX,
    EGPU_PTX_UNSUPPORTED, /* PTX that this interpreter does not run; the log names it */
    EGPU_PTX_UNRESOLVED,  /* an extern function or variable without a definition */
    EGPU_PTX_NO_MEMORY,   /* no host memory, or no device memory for a global */
    /* Results of launching. */
    /* shape, shared memory or parameter buffer does not fit the kernel; nothing ran */
    EGPU_PTX_INVALID_LAUNCH,
    EGPU_PTX_ILLEGAL_ADDRESS, /* see fault.address, fault.length, fault.write */
    EGPU_PTX_MISALIGNED,      /* as above */
    EGPU_PTX_STACK_OVERFLOW,  /* recursion too deep for the thread's stack */
    EGPU_PTX_TRAP,            /* trap or brkpt */
    EGPU_PTX_ASSERT,          /* a failed assertion; its message was printed */
    EGPU_PTX_DEADLOCK,        /* no thread of a block can continue (mismatched barriers) */
    EGPU_PTX_TIMEOUT,         /* max_instructions was reached */
    EGPU_PTX_CANCELLED,       /* *cancel became non-zero */
} egpu_ptx_status;

/* Return a short English name, e.g. "illegal address". Never NULL. */
const char *egpu_ptx_status_name(egpu_ptx_status status);

typedef struct egpu_ptx_module egpu_ptx_module;
typedef struct egpu_ptx_kernel egpu_ptx_kernel;

/* Memory for .global and .const variables, allocated when a module is loaded and released when it
 * is unloaded. */
typedef struct {
    void *ctx;
    /* Allocate `size` bytes of zeros at `align` (a power of two). Sets the device address and the
     * host's pointer. False: no memory. */
    bool (*alloc)(void *ctx, uint64_t size, uint64_t align, uint64_t *address, void **host);
    void (*release)(void *ctx, uint64_t address, uint64_t size);
} egpu_ptx_allocator;

/*
 * Load a module. `text` may be NULL-terminated (length 0) or hold `length` bytes (a trailing NUL is
 * allowed). `log` (may be NULL) receives at most log_size bytes, NUL included: "line 12:
 * unsupported instruction 'wmma.load…'". On failure *module is NULL and nothing stays allocated.
 */
egpu_ptx_status egpu_ptx_load(const char *text, size_t length, const egpu_ptx_allocator *allocator,
                              char *log, size_t log_size, egpu_ptx_module **module);
void egpu_ptx_unload(egpu_ptx_module *module); /* NULL is allowed */

/* ---- contents ---- */

typedef struct {
    uint32_t offset; /* bytes from the start of the packed parameter buffer */
    uint32_t size;
    uint32_t align;
} egpu_ptx_param;

typedef struct {
    const char *name;
    uint32_t param_count;
    const egpu_ptx_param *params;
    uint32_t param_bytes; /* of the packed buffer */
    uint32_t static_shared_bytes;
    bool dynamic_shared;          /* it declares an extern .shared array */
    uint32_t local_bytes;         /* per thread, without recursion */
    uint32_t const_bytes;         /* of the module's .const variables */
    uint32_t registers;           /* per thread; an estimate, as real allocation is ptxas's */
    uint32_t max_threads;         /* per block: at most 1024, .maxntid and .reqntid */
    uint32_t required_block[3];   /* .reqntid; all zero when not given */
    uint32_t required_cluster[3]; /* .reqnctapercluster, likewise */
    bool explicit_cluster;        /* it must be launched in clusters */
    uint32_t ptx_version;         /* 80 for 8.0 */
    uint32_t target;              /* 90 for sm_90 */
    bool prints;                  /* it may call vprintf or fail an assertion */
    bool allocates;               /* it may call malloc or free */
    bool has_duration;            /* .pragma "egpu.duration_us N"; in the kernel's body */
    /* simulated duration of one launch of any shape; fractions are allowed */
    double duration_us;
} egpu_ptx_kernel_info;

size_t egpu_ptx_kernel_count(const egpu_ptx_module *module);
const egpu_ptx_kernel *egpu_ptx_kernel_at(const egpu_ptx_module *module, size_t index);
/* NULL: none */
const egpu_ptx_kernel *egpu_ptx_find_kernel(const egpu_ptx_module *module, const char *name);
const egpu_ptx_kernel_info *egpu_ptx_kernel_describe(const egpu_ptx_kernel *kernel);

typedef struct {
    const char *name;
    uint64_t address;
    uint64_t size;
    bool constant;
} egpu_ptx_global;

size_t egpu_ptx_global_count(const egpu_ptx_module *module);
const egpu_ptx_global *egpu_ptx_global_at(const egpu_ptx_module *module, size_t index);
/* NULL: none */
const egpu_ptx_global *egpu_ptx_find_global(const egpu_ptx_module *module, const char *name);

/* ---- launching ---- */

#define EGPU_PTX_CLUSTER_BLOCKS 16 /* the maximum of any card */

/* An accessible range of device memory. `host` is the pointer to its first byte in this process. */
typedef struct {
    uint64_t base;
    uint64_t size;
    void *host;
    bool writable;
} egpu_ptx_range;

/* Return whether [address, address+length) is accessible (for writing, if `write`). If so, fill
 * *range with the whole range around it. The interpreter caches it until the launch (or part of a
 * grid) returns: the range must stay mapped until then.
 */
typedef bool (*egpu_ptx_check)(void *ctx, uint64_t address, uint64_t length, bool write,
                               egpu_ptx_range *range);

/* ---- textures and surfaces ---- */

#define EGPU_PTX_LEVELS 18 /* of a mipmap: at most 2^17 elements in a row */

typedef enum { EGPU_PTX_UNSIGNED, EGPU_PTX_SIGNED, EGPU_PTX_FLOAT } egpu_ptx_channel;
typedef enum {
    EGPU_PTX_WRAP,
    EGPU_PTX_CLAMP,
    EGPU_PTX_MIRROR,
    EGPU_PTX_BORDER
} egpu_ptx_addressing;

/* Elements in rows, rows in slices (of a volume, or layers). Its bytes are in device memory. */
typedef struct {
    uint64_t address;
    uint32_t width, height, depth; /* elements, rows, slices; none is 0 */
    uint64_t pitch, slice;         /* bytes from one row or slice to the next */
} egpu_ptx_level;

/* The object with a texture or surface number. A surface uses one level, and otherwise only its
 * elements. */
typedef struct {
    egpu_ptx_channel channel;
    uint32_t channel_bytes, channels; /* 1, 2 or 4 each; 2-byte floats are halves */
    uint32_t level_count;
    egpu_ptx_level levels[EGPU_PTX_LEVELS];
    bool by_index; /* linear memory: reads outside return zeros */
    bool normalized_coordinates, normalized_values, srgb;
    bool interpolate, interpolate_levels;
    egpu_ptx_addressing addressing[3];
    float level_offset, level_least, level_most;
    float border[4];
} egpu_ptx_texture;

/* NULL: no such object. It must not change until the launch returns. */
typedef const egpu_ptx_texture *(*egpu_ptx_texture_find)(void *ctx, uint64_t object, bool surface);

/* Output of one call of a thread; `error`: its failed assertion, for standard error. False: the
 * output is lost, and the thread gets an error. Several host threads may call it at once. */
typedef bool (*egpu_ptx_print)(void *ctx, const char *text, size_t length, bool error);

/* Memory that threads allocate (malloc, new). Several host threads may call it at once. */
typedef struct {
    /* Return a device address; 0: there is no room. The alignment is a power of two. */
    uint64_t (*allocate)(void *ctx, uint64_t size, uint64_t align);
    bool (*release)(void *ctx, uint64_t address); /* false: nothing is allocated there */
} egpu_ptx_heap;

typedef struct {
    uint64_t address;
    uint32_t length; /* bytes */
    bool write;
    uint32_t line; /* of the PTX text, 0 if unknown */
    uint32_t block[3], thread[3];
} egpu_ptx_fault;

typedef struct {
    uint64_t instructions; /* thread-instructions, summed over all threads */
    /* thread-level memory reads (global, shared, local, param; a vector counts once) */
    uint64_t loads;
    uint64_t stores;
    uint64_t atomics;
    uint64_t barriers; /* completed block barriers */
} egpu_ptx_stats;

typedef struct {
    uint32_t grid[3], block[3];
    uint32_t cluster[3]; /* blocks that run together; all 0: the kernel's own */
    uint32_t dynamic_shared_bytes;
    uint32_t max_shared_bytes; /* static + dynamic allowed per block; 0: 227 KiB */
    const void *params;        /* packed as in egpu_ptx_kernel_info */
    size_t param_bytes;        /* at least info->param_bytes */

    egpu_ptx_check check;
    egpu_ptx_texture_find texture; /* NULL: no textures */
    egpu_ptx_print print;          /* NULL: output is discarded */
    const egpu_ptx_heap *heap;     /* NULL: every allocation fails */
    void *check_ctx;               /* for all four */

    /* run blocks first_block … first_block+block_count-1 of the grid's linear order; only whole
     * clusters, whose blocks follow each other in it */
    uint64_t first_block;
    uint64_t block_count; /* 0: to the end */
    /* Shared by launches on several host threads that have the same blocks to run: the number of
     * clusters that they have begun. Each takes the next one until none is left. NULL: it runs all
     * of them. */
    _Atomic uint64_t *begun;
    uint32_t multiprocessors; /* %nsmid, over which the blocks are spread; 0: one */
    /* These blocks may wait for each other, and for blocks of other host threads. They take turns;
     * otherwise one block runs after the other. */
    bool cooperative;
    /* The device address in %envreg1 (upper half) and %envreg2: the memory in which the blocks of a
     * cooperative launch wait for each other. 0 otherwise. */
    uint64_t grid_workspace;

    uint64_t max_instructions;          /* 0: EGPU_PTX_DEFAULT_MAX_INSTRUCTIONS */
    const _Atomic int *cancel;          /* may be NULL; checked between time slices of threads */
    uint64_t (*globaltimer)(void *ctx); /* %globaltimer in ns; NULL: the host's CLOCK_REALTIME */
    void *globaltimer_ctx;
} egpu_ptx_launch;

#define EGPU_PTX_DEFAULT_MAX_INSTRUCTIONS (UINT64_C(1) << 34)

/* Run the launch to its end. `stats` is added to (zero it first), `fault` is filled after an error
 * in a thread; either may be NULL. */
egpu_ptx_status egpu_ptx_run(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                             egpu_ptx_stats *stats, egpu_ptx_fault *fault);

#ifdef __cplusplus
}
#endif

#endif
