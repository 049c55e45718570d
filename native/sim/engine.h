/* The simulated driver's own objects: devices, contexts, streams, events, modules. The C ABI
 * (cuda_*.c) checks arguments and calls in here; results are CUresult so that there is one
 * vocabulary of failures.
 */
#ifndef EGPU_SIM_ENGINE_H
#define EGPU_SIM_ENGINE_H

#include "clock.h"
#include "machine.h"
#include "memory.h"
#include "physical.h"
#include "ptx/ptx.h"

#include <cuda.h>

#define STREAM_DEPTH 1024  /* operations queued before the caller waits, as on the real driver */
#define STAGED_BYTES 65536 /* pageable copies up to this size do not make the caller wait */
#define CONTEXT_STACK 64
#define COOPERATIVE_BLOCKS 256 /* of one cooperative launch: each gets a thread */

/* ---- handles: every pointer that a program gives us is looked up before it is followed ---- */

enum handle_kind {
    HANDLE_NONE,
    HANDLE_CONTEXT,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_LIBRARY,
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
void **
handle_all(enum handle_kind kind); /* and NULL after the last; to be freed. NULL: no memory */

/* ---- devices ---- */

struct context;

struct arena;

/* Where the memory of pools is, and which of them it comes from. */
struct pool_place {
    enum extent_kind kind; /* EXTENT_DEVICE, EXTENT_PINNED or EXTENT_MANAGED */
    struct device *device; /* EXTENT_DEVICE; of others NULL */
    int preferred;         /* EXTENT_MANAGED: an ordinal, MANAGED_HOST or MANAGED_NOWHERE */
    struct pool *standard, *current;
};

/* Memory in stream order (pool.c). What is freed on a device stays with the pool until somebody
 * synchronises. */
struct pool {
    struct pool_place *place;
    _Atomic uint64_t release_threshold; /* bytes it keeps then */
    uint64_t max_bytes;                 /* 0: as much as there is */
    _Atomic uint64_t used, used_high, reserved, reserved_high;
    uint32_t reuse;  /* bit per CU_MEMPOOL_ATTR_REUSE_*; kept, changes nothing */
    uint32_t access; /* other devices that may touch it */
    atomic_bool destroyed;
    pthread_mutex_t lock;
    struct arena *arenas; /* on a device: one per context that allocates from it */
    struct pool *next;    /* on the device */
};

struct device {
    struct sim_card *card;
    int ordinal;
    struct context *primary; /* made at the first retain, then kept */
    int primary_refs;
    unsigned primary_flags;
    struct pool_place memory_place, managed_place;
    struct pool *pools;   /* on it */
    struct memory mapped; /* memory at addresses that programs reserved: no context's */
    _Atomic uint64_t graph_used, graph_used_high; /* bytes that graphs have allocated */
    /* … and that launched ones will have, in chunks */
    _Atomic uint64_t graph_reserved, graph_reserved_high;
};

struct engine {
    struct machine machine;
    struct device devices[SIM_MAX_CARDS];
    int device_count;
    struct pool_place pinned_place, managed_place, managed_host_place;
    pthread_mutex_t lock; /* contexts coming and going */
};

extern struct engine engine;

/* The devices that this process has, in its order (visible.c). Returns how many. */
int visible_devices(struct machine *machine, struct sim_card *chosen[SIM_MAX_CARDS]);

CUresult engine_init(void);
/* false before cuInit, and in a forked child of a process that called it */
bool engine_ready(void);
bool engine_verbose(void);
/* Says what a program asks for that no simulated card has: once per process, and not with
 * EGPU_SIM_VERBOSE=0. */
void engine_lacks(const char *needed);
/* one line on stderr */
void engine_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
struct device *engine_device(CUdevice ordinal); /* NULL: invalid */

/* ---- MPS (mps.c): this process as a client of a server ---- */

/* Where CUDA_MPS_PIPE_DIRECTORY says that one is: the process is its client from now on. */
CUresult mps_join(void);
void mps_leave(void);
/* Of the card's processors, those that this process has. */
uint32_t mps_sm_count(const struct sim_card *card);
/* A fault of this process, which is that of all clients. */
void mps_report(CUresult error);
/* What happened to this process by its server; CUDA_SUCCESS: nothing. */
CUresult mps_look(void);
/* What a client's part of the card does in `ns`, the whole card does in … */
uint64_t mps_of_card(uint64_t ns);
/* Between the two nobody else of this process has the card. Returns when work ends on this
 * process's part of it for which the whole card was taken for `duration_ns`; others have the card
 * meanwhile. */
void mps_begin(void);
uint64_t mps_end(struct sim_card *card, uint64_t start_ns, uint64_t duration_ns);

/* ---- pools (pool.c) ---- */

/* A place's standard pool; false: no memory. */
bool pool_place_init(struct pool_place *place);
struct pool *pool_create(struct pool_place *place, uint64_t max_bytes); /* NULL: no memory */
void pool_retire(struct pool *pool); /* allocations that are out stay; nothing is kept any more */
int pool_alloc(struct pool *pool, struct context *context, uint64_t size, uint64_t *address);
int pool_free(struct pool *pool, uint64_t address, uint64_t size);
void pool_trim(struct pool *pool, uint64_t keep_bytes);
void pool_synchronized(struct device *device);   /* every pool down to its threshold */
void pool_context_gone(struct context *context); /* everything of that context is freed */
/* What managed memory and host pools have counted is given back. */
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
    pthread_mutex_t lock; /* the lists */
    struct stream *streams;
    struct stream *legacy;
    struct module *modules;
    size_t limits[CU_LIMIT_MAX];
    struct block *held[CU_LIMIT_MAX]; /* what limits beyond the first ones take of the card */
    _Atomic uint32_t local_bytes;     /* of the largest kernel that was ever launched */
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    _Atomic uint32_t peers;          /* bit per ordinal whose memory kernels may reach */
    _Atomic int cancel;              /* kernels look at it that other threads run */
    struct printed *_Atomic printed; /* NULL: no kernel that can print was ever launched */
    pthread_mutex_t print_lock;
    /* the card's counts when the context was made: what happens later breaks it */
    uint32_t lost_seen;
    uint64_t ecc_seen;
};

CUresult context_create(struct device *device, unsigned flags, bool primary, struct context **out);
CUresult context_destroy(struct context *context); /* waits for its work, frees what it owns */
CUresult context_activate(struct context *context);
/* Did the card break under it? */
void context_look(struct context *context);
CUresult context_set_limit(struct context *context, CUlimit limit, size_t value);
/* A thread needs this much local memory: there is enough from now on. */
CUresult context_need_local(struct context *context, uint32_t bytes);
void context_fail(struct context *context, CUresult error, const char *why);
CUresult context_synchronize(struct context *context);

/* print.c: what kernels print. The buffer has the size that the limit has when the first kernel is
 * launched that can print. */
CUresult print_prepare(struct context *context);
bool print_text(void *context, const char *text, size_t length, bool error); /* egpu_ptx_print */
void print_flush(struct context *context); /* to standard output, if there is anything */
void print_context_gone(struct context *context);

CUresult primary_retain(struct device *device, struct context **out);
CUresult primary_release(struct device *device);
CUresult primary_reset(struct device *device);

/* The calling thread's stack. */
struct context *context_current(void);
CUresult context_current_checked(struct context **out); /* there, alive, without a sticky error */
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
    struct sim_shared *shared; /* of an event between processes: its state is there */
    struct shared_ref ref;
    struct capture *capture; /* recorded in a capture, behind these nodes; NULL: for real */
    struct nodes captured;
    uint64_t recorded; /* how often cuEventRecord was called */
    uint64_t done;     /* … and the newest of those that the stream has passed */
    uint64_t timestamp_ns;
};

/* Bytes moved between two places, each a device or host address: `rows` of `width` bytes, `slices`
 * of `rows`. */
struct copy {
    uint64_t destination, source;
    size_t width, rows, slices;
    size_t destination_pitch, destination_slice;
    size_t source_pitch, source_slice;
    /* must be memory of ours; otherwise taken as the host's when unknown */
    bool destination_device, source_device;
};

struct fill {
    uint64_t destination;
    size_t pitch, width, rows; /* width in elements */
    uint32_t value;
    unsigned element; /* bytes */
};

struct function;

/* What a launch asks for beyond its shape. */
struct launch_how {
    bool cooperative;    /* all blocks at once: they may wait for each other */
    unsigned cluster[3]; /* blocks of each; all 0: as the kernel says */
    int portable;        /* CUlaunchAttributePortableClusterMode */
    /* What changes nothing here. */
    unsigned preferred[3];
    int scheduling, priority, domain, carveout;
    bool has_priority; /* in a graph: of its own, not its stream's */
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
            /* Of its nodes that record events and wait for them, in their order: which record, as
             * the program counts at the launch. */
            uint64_t *records;
        } graph;
        struct {
            struct context *context;
            uint64_t address, size;
        } graph_memory;
    };
    uint8_t *staged; /* freed with the operation */
};

/* What a program asks of a stream, and is only told again. */
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
    struct stream_attributes attributes; /* under the lock */
    struct stream *next, *previous;      /* of the context */
    _Atomic int refs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct op *head, *tail;
    size_t queued;
    uint64_t submitted, completed; /* operations, ever */
    bool worker;                   /* a thread is serving the queue */
    bool closing;
    bool in_graph;
    bool runnable;                /* the card's arbiter counts it */
    struct capture *capture;      /* NULL: not capturing */
    struct nodes captured;        /* what the next captured operation comes after */
    _Atomic uint64_t last_end_ns; /* simulated time at which the newest finished operation ended */
};

CUresult stream_create(struct context *context, unsigned flags, int priority, bool legacy,
                       struct stream **out);
void stream_destroy(struct stream *stream); /* queued work still runs */
void stream_unref(struct stream *stream);
/* What a program's handle means; `per_thread`: what NULL means. */
CUresult stream_resolve(CUstream handle, bool per_thread, struct context *context,
                        struct stream **out);

/* A queued free of just this size in this stream: take its memory over, in stream order. */
bool stream_take_freed(struct stream *stream, const struct pool *pool, uint64_t size,
                       uint64_t *address);
bool stream_next_is_launch(struct stream *stream);

struct op *op_new(enum op_kind kind);
struct op *op_clone(const struct op *op);
void op_free(struct op *op);
/* Takes the operation. Default stream rules are kept by queueing waits before it. *number (may be
 * NULL): to wait for. */
CUresult stream_submit(struct stream *stream, struct op *op, uint64_t *number);
void stream_wait(struct stream *stream, uint64_t number);
CUresult stream_synchronize(struct stream *stream);
/* Is anything unfinished? *number (may be NULL): what to wait for. */
bool stream_pending(struct stream *stream, uint64_t *number);
/* Wait for everything that a synchronous operation on this stream comes after. */
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
uint64_t event_next(struct event *event); /* the number of one more record */
uint64_t event_timestamp(struct event *event);

/* ---- arrays (array.c) ---- */

/* Rows of elements, one behind the other: the opaque layout of a real card is nobody's business. */
struct array {
    struct context *context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    uint64_t address;
    size_t row_bytes, pitch, rows, slices, bytes;
    bool of_mipmap; /* its memory is the mipmap's */
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
void array_context_gone(const struct context *context); /* its arrays and mipmaps go with it */

size_t array_format_bytes(CUarray_format format); /* of one channel; 0: not simulated */

/* An attribute MAXIMUM_TEXTURE… or MAXIMUM_SURFACE…, 0 of others; and whether they allow an array
 * (array_limits.c). */
int array_limit(CUdevice_attribute attribute);
bool array_fits(const CUDA_ARRAY3D_DESCRIPTOR *array, bool mipmapped);

/* What the driver's descriptions of copies mean, with the bounds of arrays checked. */
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
CUresult texture_destroy(struct texture *texture); /* or a surface */
void texture_context_gone(const struct context *context);
/* What kernels of a context find under a number (egpu_ptx_texture_find). */
const egpu_ptx_texture *texture_shown(void *context, uint64_t object, bool surface);

/* ---- doing it (execute.c) ---- */

/* CUDA_ERROR_INVALID_VALUE when the device side is not live memory that this context may touch. */
CUresult copy_check(const struct context *context, const struct copy *copy);
CUresult copy_run(const struct context *context, const struct copy *copy);
CUresult fill_check(const struct context *context, const struct fill *fill);
CUresult fill_run(const struct context *context, const struct fill *fill);
bool context_may_touch(const struct context *context, const struct extent *extent);
void op_execute(struct stream *stream, struct op *op);
void execute_free(const struct op *op);

/* ---- modules ---- */

struct function {
    struct module *module;
    const egpu_ptx_kernel *kernel;
    const egpu_ptx_kernel_info *info;
    int max_dynamic_shared;
    int carveout;
    bool large_clusters;          /* of more blocks than every card with clusters has room for */
    int cluster_scheduling;       /* a preference, which changes nothing here */
    unsigned required_cluster[3]; /* all 0: none, or each launch says */
    _Atomic uint64_t duration_ns; /* 0: as the PTX says, or derived */
};

struct library;

struct module {
    struct context *context;
    egpu_ptx_module *ptx;
    struct function *functions;
    size_t function_count;
    struct module *next, *previous;
    struct library *library; /* NULL: a program loaded it itself */
    struct module *sibling;  /* of the library, in another context */
};

struct module_options {
    char *info_log, *error_log;
    size_t info_log_size, error_log_size;
};

/* Whether an image is a fat binary, and the PTX in it that suits a card of that architecture best;
 * to be freed. A wrapper holds the address of one, so only who calls cuModuleLoadFatBinary is
 * believed that there is one: an executor passes on bytes that a client sent. */
CUresult fatbin_ptx(const void *image, unsigned target, char **text);

CUresult module_load(struct context *context, const void *image,
                     const struct module_options *options, struct module **out);
void module_unload(struct module *module);
struct function *module_function(struct module *module, const char *name);

struct library {
    char *image;
    size_t kernel_count;
    struct kernel *kernels;
    struct module *modules; /* one per context that ever needed it, until either goes */
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

/* Shape, shared memory and parameters checked as cuLaunchKernel does; then queued. */
CUresult launch_prepare(struct function *function, const unsigned grid[3], const unsigned block[3],
                        unsigned shared_bytes, const struct launch_how *how, void **params,
                        void **extra, struct op **out);
CUresult launch_submit(struct stream *stream, struct function *function, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes, const struct launch_how *how,
                       void **params, void **extra);
int occupancy_blocks_per_sm(const struct sim_card *card, const struct function *function,
                            int block_size, size_t dynamic_shared);

/* cluster.c */
/* Blocks of each of its clusters; all 0: it has none. */
void cluster_shape(const struct function *function, const struct launch_how *how,
                   unsigned cluster[3]);
CUresult cluster_check(const struct function *function, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes,
                       const struct launch_how *how);
/* How many clusters of so many blocks are on the card at once, at most. */
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
