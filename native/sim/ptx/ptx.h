/*
 * PTX for the simulated GPU: load a module from PTX text, launch its kernels on the CPU.
 *
 * This is the whole boundary between the interpreter and the simulated driver. The interpreter
 * knows nothing of contexts, streams or processes: device memory is reached only through the
 * callbacks given here, and what it cannot run it refuses when the module is loaded, by name and
 * line. Source of the language: NVIDIA, "PTX ISA", the public reference.
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
    /* Of loading. */
    /* not PTX, or PTX that a compiler would refuse: CUDA_ERROR_INVALID_PTX */
    EGPU_PTX_SYNTAX,
    EGPU_PTX_UNSUPPORTED, /* PTX that this interpreter does not run; the log names it */
    EGPU_PTX_UNRESOLVED,  /* an extern function or variable that nobody defines */
    EGPU_PTX_NO_MEMORY,   /* host memory, or device memory for a global, was refused */
    /* Of launching. */
    /* shape, shared memory or parameter buffer does not fit the kernel; nothing ran */
    EGPU_PTX_INVALID_LAUNCH,
    EGPU_PTX_ILLEGAL_ADDRESS, /* fault.address, fault.length, fault.write say which */
    EGPU_PTX_MISALIGNED,      /* as above */
    EGPU_PTX_STACK_OVERFLOW,  /* recursion too deep for a thread's stack */
    EGPU_PTX_TRAP,            /* trap or brkpt */
    EGPU_PTX_ASSERT,          /* a failed assertion, whose message was printed */
    EGPU_PTX_DEADLOCK,        /* no thread of a block can ever go on (mismatched barriers) */
    EGPU_PTX_TIMEOUT,         /* max_instructions was reached */
    EGPU_PTX_CANCELLED,       /* *cancel became non-zero */
} egpu_ptx_status;

/* A short English name, e.g. "illegal address". Never NULL. */
const char *egpu_ptx_status_name(egpu_ptx_status status);

typedef struct egpu_ptx_module egpu_ptx_module;
typedef struct egpu_ptx_kernel egpu_ptx_kernel;

/* Memory for .global and .const variables, asked for while a module is loaded and given back when
 * it is unloaded. */
typedef struct {
    void *ctx;
    /* `size` bytes of zeros at `align` (a power of two): device address out, and where the host
     * reaches it. False: no memory. */
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
void egpu_ptx_unload(egpu_ptx_module *module); /* NULL is fine */

/* ---- what is in it ---- */

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
    bool dynamic_shared;        /* it declares an extern .shared array */
    uint32_t local_bytes;       /* per thread, without recursion */
    uint32_t const_bytes;       /* of the module's .const variables */
    uint32_t registers;         /* per thread; an estimate, as real allocation is ptxas's */
    uint32_t max_threads;       /* per block: the smaller of 1024 and what .maxntid/.reqntid say */
    uint32_t required_block[3]; /* .reqntid; all zero when not given */
    uint32_t required_cluster[3]; /* .reqnctapercluster, likewise */
    bool explicit_cluster;        /* it is launched in clusters alone */
    uint32_t ptx_version;         /* 80 for 8.0 */
    uint32_t target;              /* 90 for sm_90 */
    bool prints;                  /* it may call vprintf, or an assertion of it may fail */
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

#define EGPU_PTX_CLUSTER_BLOCKS 16 /* the most that any card has in one */

/* An accessible range of device memory. `host` is where its first byte is in this process. */
typedef struct {
    uint64_t base;
    uint64_t size;
    void *host;
    bool writable;
} egpu_ptx_range;

/*
 * Is [address, address+length) accessible (for writing, if `write`)? If so fill *range with the
 * whole range around it, which the interpreter caches until the launch (or part of a grid) returns:
 * the range must stay mapped until then.
 */
typedef bool (*egpu_ptx_check)(void *ctx, uint64_t address, uint64_t length, bool write,
                               egpu_ptx_range *range);

/* ---- textures and surfaces ---- */

#define EGPU_PTX_LEVELS 18 /* of a mipmap: 2^17 elements in a row are the most */

typedef enum { EGPU_PTX_UNSIGNED, EGPU_PTX_SIGNED, EGPU_PTX_FLOAT } egpu_ptx_channel;
typedef enum {
    EGPU_PTX_WRAP,
    EGPU_PTX_CLAMP,
    EGPU_PTX_MIRROR,
    EGPU_PTX_BORDER
} egpu_ptx_addressing;

/* Elements in rows, rows in slices (of a volume, or layers). Its bytes are device memory. */
typedef struct {
    uint64_t address;
    uint32_t width, height, depth; /* elements, rows, slices; none is 0 */
    uint64_t pitch, slice;         /* bytes from one row or slice to the next */
} egpu_ptx_level;

/* What the number of a texture or surface object means. A surface has one level, and of the rest
 * only its elements count. */
typedef struct {
    egpu_ptx_channel channel;
    uint32_t channel_bytes, channels; /* 1, 2 or 4 each; floats of 2 bytes are halves */
    uint32_t level_count;
    egpu_ptx_level levels[EGPU_PTX_LEVELS];
    bool by_index; /* linear memory: whatever is asked for, outside of it there are zeros */
    bool normalized_coordinates, normalized_values, srgb;
    bool interpolate, interpolate_levels;
    egpu_ptx_addressing addressing[3];
    float level_offset, level_least, level_most;
    float border[4];
} egpu_ptx_texture;

/* NULL: there is no such object. It stays as it is until the launch returns. */
typedef const egpu_ptx_texture *(*egpu_ptx_texture_find)(void *ctx, uint64_t object, bool surface);

/* What a thread prints with one call; `error`: that its assertion failed, which belongs on standard
 * error. False: it is lost, and the thread is told so. Blocks of several threads of the host may
 * call it at once. */
typedef bool (*egpu_ptx_print)(void *ctx, const char *text, size_t length, bool error);

typedef struct {
    uint64_t address;
    uint32_t length; /* bytes */
    bool write;
    uint32_t line; /* of the PTX text, 0 when unknown */
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
    uint32_t cluster[3]; /* blocks that run together; all 0: as the kernel says */
    uint32_t dynamic_shared_bytes;
    uint32_t max_shared_bytes; /* static + dynamic allowed per block; 0: 227 KiB */
    const void *params;        /* packed as egpu_ptx_kernel_info says */
    size_t param_bytes;        /* at least info->param_bytes */

    egpu_ptx_check check;
    egpu_ptx_texture_find texture; /* may be NULL: there are none */
    egpu_ptx_print print;          /* may be NULL: nobody listens */
    void *check_ctx;               /* of all three */

    /* run blocks first_block … first_block+block_count-1 of the grid's linear order; of clusters,
     * whose blocks follow each other in it, whole ones */
    uint64_t first_block;
    uint64_t block_count; /* 0: to the end */

    uint64_t max_instructions;          /* 0: EGPU_PTX_DEFAULT_MAX_INSTRUCTIONS */
    const _Atomic int *cancel;          /* may be NULL; looked at between time slices of threads */
    uint64_t (*globaltimer)(void *ctx); /* %globaltimer in ns; NULL: the host's CLOCK_REALTIME */
    void *globaltimer_ctx;
} egpu_ptx_launch;

#define EGPU_PTX_DEFAULT_MAX_INSTRUCTIONS (UINT64_C(1) << 34)

/* Run it to its end. `stats` is added to (zero it first), `fault` filled on an error in a thread;
 * either may be NULL. */
egpu_ptx_status egpu_ptx_run(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                             egpu_ptx_stats *stats, egpu_ptx_fault *fault);

#ifdef __cplusplus
}
#endif

#endif
