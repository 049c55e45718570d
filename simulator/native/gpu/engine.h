/* The simulated driver's own objects: devices, contexts, streams, events, modules. The C ABI
 * (cuda_*.c) checks arguments and calls them. They return CUresult, so errors have one vocabulary.
 */
#ifndef EGPU_SIM_ENGINE_H
#define EGPU_SIM_ENGINE_H

#include "clock.h"
#include "machine.h"
#include "memory.h"
#include "physical.h"
#include "ptx/ptx.h"

#include <cuda.h>

#define STREAM_DEPTH 1024  /* operations queued before the caller waits, as in the real driver */
#define STAGED_BYTES 65536 /* pageable copies up to this size do not make the caller wait */
#define CONTEXT_STACK 64

/* ---- handles: each pointer from a program is looked up before it is used ---- */

enum handle_kind {
    HANDLE_NONE,
    HANDLE_CONTEXT,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_LIBRARY,
    HANDLE_LINK,
    HANDLE_KERNEL,
    HANDLE_POOL,
    HANDLE_PHYSICAL,
    HANDLE_EXTERNAL,
    HANDLE_ARRAY,
    HANDLE_MIPMAP,
    HANDLE_TEXTURE,
    HANDLE_SURFACE,
    HANDLE_GRAPH,
    HANDLE_NODE,
    HANDLE_EXEC,
    HANDLE_USER_OBJECT
};

bool handle_add(const void *object, enum handle_kind kind); /* false: no memory */
void handle_remove(const void *object);
enum handle_kind handle_kind_of(const void *object);
void **handle_all(enum handle_kind kind); /* and NULL after the last; free it. NULL: no memory */

/* ---- devices ---- */

struct context;

struct arena;

/* The place of a pool's memory, with its default and current pool. */
struct pool_place {
    enum extent_kind kind; /* EXTENT_DEVICE, EXTENT_PINNED or EXTENT_MANAGED */
    struct device *device; /* for EXTENT_DEVICE; otherwise NULL */
    int preferred;         /* for EXTENT_MANAGED: an ordinal, MANAGED_HOST or MANAGED_NOWHERE */
    struct pool *standard, *current;
};

/* Stream-ordered memory (pool.c). Memory freed on a device stays with the pool until a
 * synchronisation. */
struct pool {
    struct pool_place *place;
    _Atomic uint64_t release_threshold; /* bytes that stay after that */
    uint64_t max_bytes;                 /* 0: no limit */
    _Atomic uint64_t used, used_high, reserved, reserved_high;
    uint32_t reuse;  /* bit per CU_MEMPOOL_ATTR_REUSE_*; stored without effect */
    uint32_t access; /* other devices that may touch it */
    atomic_bool destroyed;
    pthread_mutex_t lock;
    struct arena *arenas; /* of a device's pool: one per context that allocates from it */
    struct pool *next;    /* on the same device */
};

struct device {
    struct sim_card *card;
    int ordinal;
    struct context *primary; /* made at the first retain, then kept */
    int primary_refs;
    unsigned primary_flags;
    struct pool_place memory_place, managed_place;
    struct pool *pools;   /* of the device */
    struct memory mapped; /* memory at addresses that programs reserved; belongs to no context */
    _Atomic uint64_t graph_used, graph_used_high; /* bytes that graphs have allocated */
    /* … and that launched ones will have, in chunks */
    _Atomic uint64_t graph_reserved, graph_reserved_high;
};

struct engine {
    struct machine machine;
    struct device devices[SIM_MAX_CARDS];
    int device_count;
    struct pool_place pinned_place, managed_place, managed_host_place;
    pthread_mutex_t lock; /* guards creation and destruction of contexts */
};

extern struct engine engine;

/* Find the devices of this process, in its order (visible.c). Return their number. */
int visible_devices(struct machine *machine, struct sim_card *chosen[SIM_MAX_CARDS]);

CUresult engine_init(void);
/* false before cuInit, and in a forked child of a process that called it */
bool engine_ready(void);
bool engine_verbose(void);
/* Report why a kernel cannot be loaded or run. A process prints its first reason; all of them with
 * EGPU_SIM_VERBOSE=1, none with 0. */
void engine_explain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Report in the same way that a program needs something that no simulated card has, and a way out.
 */
void engine_lacks(const char *needed, const char *remedy);
/* The same for compiled kernels of this kind, and for PTX whose target is newer than the card. */
void engine_needs_compiled(const char *kind);
void engine_needs_newer(unsigned target, unsigned card);
/* Report once per process and call that this is not simulated, with another way (or NULL). The text
 * must stay. Return CUDA_ERROR_NOT_SUPPORTED. EGPU_SIM_VERBOSE=0 hides it. */
CUresult engine_unsupported(const char *call, const char *remedy);
/* prints one line on stderr */
void engine_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct device *engine_device(CUdevice ordinal); /* NULL: invalid */

/* Start the thread that locks, checkpoints and restores this process at the request of others
 * (checkpoint.c). */
CUresult checkpoint_start(void);

/* ---- MPS (mps.c): this process as a client of a server ---- */

/* Become a client of the server in CUDA_MPS_PIPE_DIRECTORY, if it names one. */
CUresult mps_join(void);
void mps_leave(void);
/* Return this process's share of the card's multiprocessors. */
uint32_t mps_sm_count(const struct sim_card *card);
/* Report a fault of this process: all clients get it. */
void mps_report(CUresult error);
/* Return a fault that this process got from its server, or CUDA_SUCCESS. */
CUresult mps_look(void);
/* Return how long the whole card takes for work that takes a client's share `ns`. */
uint64_t mps_of_card(uint64_t ns);
/* Between these two calls no other thread of this process has the card. Return the end of work on
 * this process's share, for which the whole card was taken for `duration_ns`; other processes have
 * the card for the rest. */
void mps_begin(void);
uint64_t mps_end(struct sim_card *card, uint64_t start_ns, uint64_t duration_ns);

/* ---- pools (pool.c) ---- */

/* Make a place's default pool; false: no memory. */
bool pool_place_init(struct pool_place *place);
struct pool *pool_create(struct pool_place *place, uint64_t max_bytes); /* NULL: no memory */
void pool_retire(struct pool *pool); /* live allocations stay; nothing more is kept */
int pool_alloc(struct pool *pool, struct context *context, uint64_t size, uint64_t *address);
int pool_free(struct pool *pool, uint64_t address, uint64_t size);
void pool_trim(struct pool *pool, uint64_t keep_bytes);
void pool_synchronized(struct device *device);   /* trims every pool to its threshold */
void pool_context_gone(struct context *context); /* frees everything of that context */
/* A checkpoint was restored to another card. */
void pool_moved(const struct device *device);
/* Return to the account what managed memory and host pools have charged. */
void host_memory_gone(const struct extent *extent);

/* ---- contexts ---- */

struct stream;
struct module;

struct context {
    struct device *device;
    bool primary;
    atomic_bool alive;
    _Atomic int error; /* sticky CUresult */
    unsigned flags;
    unsigned long long id;
    struct memory memory;
    pthread_mutex_t lock; /* protects the lists */
    struct stream *streams;
    struct stream *legacy;
    struct module *modules;
    size_t limits[CU_LIMIT_MAX];
    struct block *held[CU_LIMIT_MAX]; /* card memory for limits beyond their defaults */
    _Atomic uint32_t local_bytes;     /* of the largest kernel launched so far */
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    _Atomic uint32_t peers;          /* bit per ordinal whose memory kernels may access */
    _Atomic int cancel;              /* running kernels in other threads check it */
    struct printed *_Atomic printed; /* NULL: no kernel that can print was launched yet */
    struct heap *_Atomic heap;       /* NULL: none that can allocate */
    pthread_mutex_t print_lock;
    /* the card's counts when the context was made: later errors break it */
    uint32_t lost_seen;
    uint64_t ecc_seen;
};

CUresult context_create(struct device *device, unsigned flags, bool primary, struct context **out);
CUresult context_destroy(struct context *context); /* waits for its work, frees what it owns */
CUresult context_activate(struct context *context);
/* Check whether the card broke meanwhile. */
void context_look(struct context *context);
CUresult context_set_limit(struct context *context, CUlimit limit, size_t value);
/* Make sure that a thread has this much local memory. */
CUresult context_need_local(struct context *context, uint32_t bytes);
void context_fail(struct context *context, CUresult error, const char *why);
CUresult context_synchronize(struct context *context);

/* print.c: output of kernels. The limit at the first launch of a kernel that can print sets the
 * size of the buffer. */
CUresult print_prepare(struct context *context);
bool print_text(void *context, const char *text, size_t length, bool error); /* egpu_ptx_print */
void print_flush(struct context *context); /* to standard output, if there is any */
void print_context_gone(struct context *context);

/* heap.c: memory that kernels allocate. The limit at the first launch of such a kernel sets its
 * size. */
CUresult heap_prepare(struct context *context);
extern const egpu_ptx_heap heap_calls; /* their argument is the context */
void heap_context_gone(struct context *context);

CUresult primary_retain(struct device *device, struct context **out);
CUresult primary_release(struct device *device);
CUresult primary_reset(struct device *device);

/* The calling thread's stack. */
struct context *context_current(void);
CUresult context_current_checked(struct context **out); /* exists, alive, without a sticky error */
CUresult context_push(struct context *context);
CUresult context_pop(struct context **out);
void context_set(struct context *context);
CUresult context_check(CUcontext handle, struct context **out);

/* ---- streams and events ---- */

struct node;
struct capture;
struct graph;
struct plan;

struct nodes {
    struct node **list;
    size_t count, room;
};

struct event {
    unsigned flags;
    struct context *context;
    _Atomic int refs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sim_shared *shared; /* for an event between processes: has its state */
    struct shared_ref ref;
    struct capture *capture; /* recorded in a capture, after these nodes; NULL: really recorded */
    struct nodes captured;
    uint64_t recorded; /* number of cuEventRecord calls */
    uint64_t done;     /* … and the newest of those that the stream has reached */
    uint64_t timestamp_ns;
};

/* A copy between two places, each a device or host address: `rows` of `width` bytes, `slices` of
 * `rows`. */
struct copy {
    uint64_t destination, source;
    size_t width, rows, slices;
    size_t destination_pitch, destination_slice;
    size_t source_pitch, source_slice;
    /* must be our memory; otherwise unknown memory counts as the host's */
    bool destination_device, source_device;
};

struct fill {
    uint64_t destination;
    size_t pitch, width, rows; /* width in elements */
    uint32_t value;
    unsigned element; /* bytes */
};

struct function;

/* Attributes of a launch beyond its shape. */
struct launch_how {
    bool cooperative;    /* all blocks run at once: they may wait for each other */
    unsigned cluster[3]; /* blocks of each cluster; all 0: the kernel's own */
    int portable;        /* CUlaunchAttributePortableClusterMode */
    /* Without effect here. */
    unsigned preferred[3];
    int scheduling, priority, domain, carveout;
    bool has_priority; /* of a graph node: its own, not the stream's */
    CUlaunchMemSyncDomainMap domains;
    CUaccessPolicyWindow window;
};

struct launch {
    struct function *function;
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void *params;
    size_t param_bytes;
    struct launch_how how;
};

enum op_kind {
    OP_NOTHING,
    OP_LAUNCH,
    OP_COPY,
    OP_FILL,
    OP_RECORD,
    OP_WAIT_EVENT,
    OP_WAIT_STREAM,
    OP_HOST,
    OP_CALLBACK,
    OP_FREE,
    OP_GRAPH,
    OP_GRAPH_ALLOC,
    OP_GRAPH_FREE
};

struct op {
    struct op *next;
    enum op_kind kind;
    uint64_t enqueued_ns;
    union {
        struct launch launch;
        struct copy copy;
        struct fill fill;
        struct {
            struct event *event;
            uint64_t number;
        } event;
        struct {
            struct stream *stream;
            uint64_t number;
        } after;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct {
            CUstreamCallback function;
            void *data;
            CUstream handle;
        } callback;
        struct {
            uint64_t address;
            struct pool *pool;
            uint64_t size;
        } release;
        struct {
            struct plan *plan;
            bool auto_free;
            /* For its nodes that record events or wait for them, in order: the number of the
             * record, as the program counts at the launch. */
            uint64_t *records;
        } graph;
        struct {
            struct context *context;
            uint64_t address, size;
        } graph_memory;
    };
    uint8_t *staged; /* freed with the operation */
};

/* Stream attributes that are stored without effect. */
struct stream_attributes {
    CUaccessPolicyWindow window;
    CUsynchronizationPolicy policy;
    CUlaunchMemSyncDomain domain;
    CUlaunchMemSyncDomainMap domains;
};

struct stream {
    struct context *context;
    unsigned flags;
    int priority;
    unsigned long long id;
    bool legacy;
    struct stream_attributes attributes; /* protected by the lock */
    struct stream *next, *previous;      /* of the context */
    _Atomic int refs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct op *head, *tail;
    size_t queued;
    uint64_t submitted, completed; /* operations since the start */
    bool worker;                   /* a thread serves the queue */
    bool closing;
    bool in_graph;
    bool runnable;                /* counted by the card's arbiter */
    struct capture *capture;      /* NULL: not capturing */
    struct nodes captured;        /* dependencies of the next captured operation */
    _Atomic uint64_t last_end_ns; /* simulated end of the newest finished operation */
};

CUresult stream_create(struct context *context, unsigned flags, int priority, bool legacy,
                       struct stream **out);
void stream_destroy(struct stream *stream); /* queued work still runs */
void stream_unref(struct stream *stream);
/* Resolve a program's handle; `per_thread` selects the meaning of NULL. */
CUresult stream_resolve(CUstream handle, bool per_thread, struct context *context,
                        struct stream **out);

/* Take over the memory of a queued free of just this size in this stream, in stream order. */
bool stream_take_freed(struct stream *stream, const struct pool *pool, uint64_t size,
                       uint64_t *address);
bool stream_next_is_launch(struct stream *stream);

struct op *op_new(enum op_kind kind);
struct op *op_clone(const struct op *op);
void op_free(struct op *op);
/* Take the operation. Waits are queued before it to follow the default stream's rules. *number (may
 * be NULL): to wait for. */
CUresult stream_submit(struct stream *stream, struct op *op, uint64_t *number);
void stream_wait(struct stream *stream, uint64_t number);
CUresult stream_synchronize(struct stream *stream);
/* Return whether any work is unfinished. *number (may be NULL): to wait for. */
bool stream_pending(struct stream *stream, uint64_t *number);
/* Wait for everything before a synchronous operation on this stream. */
void stream_settle(struct stream *stream);

CUresult event_create(struct context *context, unsigned flags, struct event **out);
void event_unref(struct event *event);
CUresult event_record(struct event *event, struct stream *stream);
CUresult event_wait_in(struct stream *stream, struct event *event);
CUresult event_import(struct context *context, struct shared_ref ref, struct event **out);
bool event_done(struct event *event);
void event_wait(struct event *event, uint64_t number);
void event_reach(struct event *event, uint64_t number, uint64_t now);
uint64_t event_recorded(struct event *event);
uint64_t event_next(struct event *event); /* returns the number of one more record */
uint64_t event_timestamp(struct event *event);

/* ---- arrays (array.c) ---- */

/* Rows of elements, one after the other. A real card's layout is opaque, so any layout will do. */
struct array {
    struct context *context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    uint64_t address;
    size_t row_bytes, pitch, rows, slices, bytes;
    bool of_mipmap; /* the mipmap owns its memory */
};

struct mipmap {
    struct context *context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    uint64_t address;
    size_t bytes;
    unsigned level_count;
    struct array *levels;
};

CUresult array_create(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                      struct array **out);
void array_destroy(struct array *array);
CUresult mipmap_create(struct context *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                       unsigned levels, struct mipmap **out);
void mipmap_destroy(struct mipmap *mipmap);
void array_context_gone(const struct context *context); /* its arrays and mipmaps end, too */

size_t array_format_bytes(CUarray_format format); /* per channel; 0: not simulated */

/* array_limits.c: return an attribute MAXIMUM_TEXTURE… or MAXIMUM_SURFACE…, or 0 for others; return
 * whether they allow an array. */
int array_limit(CUdevice_attribute attribute);
bool array_fits(const CUDA_ARRAY3D_DESCRIPTOR *array, bool mipmapped);

/* Translate the driver's descriptions of copies, and check the bounds of arrays. */
CUresult copy_of_plane(const CUDA_MEMCPY2D *from, struct copy *copy);
CUresult copy_of_volume(const CUDA_MEMCPY3D *from, struct copy *copy);

/* ---- texture and surface objects (texture.c) ---- */

struct texture {
    struct context *context;
    egpu_ptx_texture shown;
    CUDA_RESOURCE_DESC resource; /* as given, from here on */
    CUDA_TEXTURE_DESC how;
    CUDA_RESOURCE_VIEW_DESC view;
    bool has_view;
};

CUresult texture_create(struct context *context, const CUDA_RESOURCE_DESC *resource,
                        const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view,
                        struct texture **out);
CUresult surface_create(struct context *context, const CUDA_RESOURCE_DESC *resource,
                        struct texture **out);
CUresult texture_destroy(struct texture *texture); /* also surfaces */
void texture_context_gone(const struct context *context);
/* Find an object by its number for a context's kernels (egpu_ptx_texture_find). */
const egpu_ptx_texture *texture_shown(void *context, uint64_t object, bool surface);

/* ---- execution (execute.c) ---- */

/* Return CUDA_ERROR_INVALID_VALUE unless the device side is live memory that it may access. */
CUresult copy_check(const struct context *context, const struct copy *copy);
CUresult copy_run(const struct context *context, const struct copy *copy);
CUresult fill_check(const struct context *context, const struct fill *fill);
CUresult fill_run(const struct context *context, const struct fill *fill);
bool context_may_touch(const struct context *context, const struct extent *extent);
void op_execute(struct stream *stream, struct op *op);
/* Run a kernel on this process's processors (interpret.c); an error is the context's. */
void interpret(struct context *context, const struct launch *launch, egpu_ptx_stats *stats);
void execute_free(const struct op *op);

/* ---- modules ---- */

struct function {
    struct module *module;
    const egpu_ptx_kernel *kernel;
    const egpu_ptx_kernel_info *info;
    int max_dynamic_shared;
    int carveout;
    bool large_clusters;          /* more blocks than all cards with clusters support */
    int cluster_scheduling;       /* a preference without effect */
    unsigned required_cluster[3]; /* all 0: none, or each launch sets it */
    _Atomic uint64_t duration_ns; /* 0: from the PTX, or derived */
};

struct library;

struct module {
    struct context *context;
    egpu_ptx_module *ptx;
    bool skipped; /* an outline of compiled kernels: they compute nothing */
    struct function *functions;
    size_t function_count;
    struct module *next, *previous;
    struct library *library; /* NULL: loaded by the program */
    struct module *sibling;  /* of the same library, in another context */
};

/* A buffer of the program for a compiler's messages; `filled` gets the bytes that are used. */
struct module_log {
    char *buffer;
    size_t size;
    void **filled;
};

struct module_options {
    struct module_log info, error;
};

CUresult module_options_read(unsigned count, const CUjit_option *names, void **values,
                             struct module_options *out);
/* Return `result`, after the reason in the program's error log. */
CUresult module_refuse(const struct module_options *options, CUresult result, const char *why);
CUresult module_status(egpu_ptx_status status);
/* Load PTX that will not run (scratch.c). */
egpu_ptx_status scratch_load(const char *text, char *log, size_t log_size, egpu_ptx_module **ptx);

/* Return a fat binary's best PTX for a card of that architecture, else with `outlines` that of its
 * best cubin (outline.h); free it. A wrapper has the address of one, so only cuModuleLoadFatBinary
 * follows it: an executor passes on bytes from a client. */
CUresult fatbin_text(const void *image, unsigned target, bool outlines, char **text);

CUresult module_load(struct context *context, const void *image,
                     const struct module_options *options, struct module **out);
void module_unload(struct module *module);
struct function *module_function(struct module *module, const char *name);

struct library {
    char *image;
    size_t kernel_count;
    struct kernel *kernels;
    struct module *modules; /* one per context that needed it, until either ends */
    pthread_mutex_t lock;
};

struct kernel {
    struct library *library;
    char *name;
};

CUresult library_load(const void *image, struct library **out);
void library_unload(struct library *library);
CUresult library_module(struct library *library, struct context *context, struct module **out);
CUresult kernel_function(struct kernel *kernel, struct context *context, struct function **out);

/* Check shape, shared memory and parameters as cuLaunchKernel does, then queue the launch. */
CUresult launch_prepare(struct function *function, const unsigned grid[3], const unsigned block[3],
                        unsigned shared_bytes, const struct launch_how *how, void **params,
                        void **extra, struct op **out);
CUresult launch_submit(struct stream *stream, struct function *function, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes, const struct launch_how *how,
                       void **params, void **extra);
int occupancy_blocks_per_sm(const struct sim_card *card, const struct function *function,
                            int block_size, size_t dynamic_shared);

/* cluster.c */
/* Return the blocks of each cluster; all 0: no clusters. */
void cluster_shape(const struct function *function, const struct launch_how *how,
                   unsigned cluster[3]);
CUresult cluster_check(const struct function *function, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes,
                       const struct launch_how *how);
/* Return how many clusters of this many blocks the card holds at once, at most. */
int cluster_occupancy(const struct sim_card *card, const struct function *function, int block_size,
                      size_t dynamic_shared, unsigned blocks);
unsigned cluster_limit(const struct sim_card *card, const struct function *function,
                       const struct launch_how *how); /* blocks */

/* launch_attributes.c: by CUlaunchAttributeID. */
CUresult launch_attribute_set(struct launch_how *how, int which,
                              const CUlaunchAttributeValue *value);
CUresult launch_attribute_get(const struct launch_how *how, int which,
                              CUlaunchAttributeValue *value);

#endif
