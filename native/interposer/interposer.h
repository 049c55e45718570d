/* libegpu-interposer.so: keeps a process inside its slice of a GPU.
 *
 *   resolve.c   the dlsym hook, cuGetProcAddress, and the real functions
 *   slice.c     the policy page and the usage file: finding, joining, limits that change
 *   account.c   bytes: reserve, release, and giving back what the dead held
 *   checkpoint.c   checkpoints of processes of the slice, by the driver
 *   table.c     which pointer, handle or mapping holds how many bytes
 *   memory.c    wrappers that allocate and free;  pools.c, graphs.c, peak.c: what pools, arrays and
 *               graphs hold;  contexts.c: what a context takes, and what ends with it
 *   modules.c   what loading a module takes: code and variables;  libraries.c: a library, in each
 *               context that uses it;  kernels.c: the calls that take one there
 *   image.c     what an image says of its size;  measure.c: what the driver says
 *   local.c     heaps and local memory, which a context keeps
 *   info.c      wrappers that tell how much there is;  utilisation.c: and how busy it is
 *   bucket.c    the container's time on a device;  compute/: times launches and delays them;
 *               launch.c: the wrappers;  transfers.c: copies, fills and waits between launches
 *   parking/   moves the memory of idle programs to the host; the way into every call
 *
 * It lives in other people's processes, so: no constructor, destructor or signal handler; no thread
 * but the one of a parkable slice; nothing is printed except one line when the slice is unusable;
 * no lock but that of loads is held while the real driver may wait; after fork() the child starts
 * afresh. A process that never asks for CUDA pays for one dlsym hook and nothing else.
 */
#ifndef EGPU_INTERPOSER_H
#define EGPU_INTERPOSER_H

/* declares every ABI of a function under the name it is exported by */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS /* the same for NVML */
#include <nvml.h>
#include <stdbool.h>
#include <stdint.h>

#include "egpu_abi.h"

#define REFUSED CUDA_ERROR_NOT_PERMITTED
#define EXPORT /* called by programs, under this name */

/* A lock in one word, for sections of some instructions: dropping it is a plain store, nothing of
 * libpthread is needed, and a forked child can start it afresh. */
typedef struct {
    uint32_t word;
} egpu_lock;
void lock_wait(egpu_lock *lock);
static inline void lock_take(egpu_lock *lock) {
    if (__builtin_expect(__atomic_exchange_n(&lock->word, 1, __ATOMIC_ACQUIRE) != 0, 0))
        lock_wait(lock);
}
static inline void lock_drop(egpu_lock *lock) {
    __atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
}

uint64_t now_ns(void);
void sleep_ns(uint64_t duration_ns);
/* Wakes the arbiter of turns, sleeps until it changes `word`, or spins. */
void turn_wake(const uint32_t *word);
void turn_sleep(const uint32_t *word, uint32_t seen, uint64_t most_ns);
void turn_spin(uint64_t duration_ns);

/* ---- resolve.c ---- */
enum real_id {
#define DRIVER(symbol) REAL_##symbol,
#define NEEDED(symbol) REAL_##symbol,
#include "hooks.def"
    DRIVER_COUNT,
#define NVML(symbol) REAL_##symbol,
#define NEEDED_NVML(symbol) REAL_##symbol,
    BEFORE_NVML = DRIVER_COUNT - 1,
#include "hooks.def"
    REAL_COUNT,
};
/* Programs call the gate (parking/gate.c) under the driver's name; what we write under that name is
 * behind it. */
#define DRIVER(symbol) extern __typeof__(symbol) symbol __asm__("egpu_inner_" #symbol);
#define OPEN(symbol) extern __typeof__(symbol) symbol __attribute__((visibility("default")));
#define GATED(symbol)
#define NVML(symbol) extern __typeof__(symbol) symbol __attribute__((visibility("default")));
#include "hooks.def"
/* what the library exports under the name */
extern void *real_functions[REAL_COUNT] __attribute__((visibility("hidden")));
void *real_function_slow(enum real_id id);
static inline void *real_function(enum real_id id) {
    void *found = __atomic_load_n(&real_functions[id], __ATOMIC_ACQUIRE);
    return found != NULL ? found : real_function_slow(id);
}
/* Loads the driver's NVML if the program has not. False: there is none. */
bool nvml_load(void);
/* The real function, of the same type as the wrapper; NULL when the driver has none. */
#define REAL(symbol) ((__typeof__(&symbol))real_function(REAL_##symbol))

/* ---- slice.c ---- */
enum { DEVICE_NONE = -1 }; /* a device that the policy does not name: nothing may be used */

/* One word in a page that fork wipes: open here, or a reason to look closer. */
enum { GATE_WIPED = 0, GATE_OPEN = 1, GATE_FORKING = 2, GATE_SHUT = 3, GATE_PAUSED = 4 };
extern uint32_t *slice_gate __attribute__((visibility("hidden")));
bool slice_open_slow(void);
/* false: no usable slice (said once on stderr); every wrapper refuses */
static inline bool slice_open(void) {
    uint32_t *gate = __atomic_load_n(&slice_gate, __ATOMIC_ACQUIRE);
    return __builtin_expect(__atomic_load_n(gate, __ATOMIC_ACQUIRE) == GATE_OPEN, 1) ||
           slice_open_slow();
}
/* From the one to the other every wrapper waits before it begins. One thread at a time. */
void slice_pause(void);
void slice_resume(void);
const char *slice_path(const char *name, char *out, unsigned size);
struct egpu_usage *slice_usage(void);
unsigned slice_device_count(void);
int slice_device_by_uuid(const char *text);
const char *slice_device_uuid(int device);
int device_of_ordinal(CUdevice ordinal);
/* a context went: its handle may come back as another device's */
void device_contexts_changed(void);

extern __thread struct recent_context {
    CUcontext context;
    int device;
    uint32_t epoch;
} recent_context __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern uint32_t context_epoch __attribute__((visibility("hidden")));
int device_current_slow(CUcontext context);
/* The device of the calling thread's context; *context NULL when it has none. */
static inline int device_current(CUcontext *context) {
    *context = NULL;
    if (__builtin_expect(REAL(cuCtxGetCurrent) == NULL ||
                             REAL(cuCtxGetCurrent)(context) != CUDA_SUCCESS || *context == NULL,
                         0))
        return DEVICE_NONE;
    if (__builtin_expect(recent_context.context == *context &&
                             recent_context.epoch ==
                                 __atomic_load_n(&context_epoch, __ATOMIC_ACQUIRE),
                         1))
        return recent_context.device;
    return device_current_slow(*context);
}

/* What a device's line of the policy says, as of now. */
struct limits {
    uint64_t memory_bytes; /* what may be counted: overhead already taken off */
    uint64_t overhead_bytes, spill_bytes;
    uint64_t window_epoch_ns;
    uint32_t mode, core_ppm, grant_ppm, contention_ppm;
    uint32_t window_period_us, window_start_us, window_length_us;
    uint32_t work; /* enum egpu_work */
};
extern struct limits live_limits[EGPU_MAX_DEVICES] __attribute__((visibility("hidden")));
/* the page's generation */
extern const uint64_t *policy_announced __attribute__((visibility("hidden")));
extern uint64_t policy_seen __attribute__((visibility("hidden")));
/* the page's turns */
extern const struct egpu_policy_turn *policy_turns __attribute__((visibility("hidden")));
/* bit per device whose time is not limited */
extern uint32_t policy_unmetered __attribute__((visibility("hidden")));
/* no device's time is limited, and all contexts are of ours */
extern uint32_t policy_free_run __attribute__((visibility("hidden")));
void policy_refresh(void);
void device_used(CUdevice ordinal); /* a context is being made there */
static inline void policy_look(void) {
    if (__builtin_expect(__atomic_load_n(policy_announced, __ATOMIC_RELAXED) !=
                             __atomic_load_n(&policy_seen, __ATOMIC_RELAXED),
                         0))
        policy_refresh();
}
/* One word at a time: each is right by itself, old or new. Device: of the policy, not
 * DEVICE_NONE. */
#define LIMIT(device, field) __atomic_load_n(&live_limits[device].field, __ATOMIC_RELAXED)
static inline uint64_t add_bytes(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}
static inline uint64_t multiply_bytes(uint64_t a, uint64_t b) {
    uint64_t bytes;
    return __builtin_mul_overflow(a, b, &bytes) ? UINT64_MAX : bytes;
}
/* all that may be held: overhead and spilled bytes included */
static inline uint64_t memory_limit(int device) {
    if (device < 0) return 0;
    policy_look();
    return add_bytes(add_bytes(LIMIT(device, memory_bytes), LIMIT(device, overhead_bytes)),
                     LIMIT(device, spill_bytes));
}
static inline bool is_metered(int device) {
    policy_look();
    return (__atomic_load_n(&policy_unmetered, __ATOMIC_RELAXED) >> device & 1) == 0;
}

/* ---- account.c ---- */
/* joins at first use; NULL when the usage file is unusable */
struct egpu_usage_slot *slot_of(int device);
bool account_reserve(int device, enum egpu_memory_class class, uint64_t bytes);
/* held already: counted, over the limit or not */
void account_force(int device, enum egpu_memory_class class, uint64_t bytes);
void account_refused(int device); /* counts an allocation that the program did not get */
void account_release(int device, enum egpu_memory_class class, uint64_t bytes);
/* What this process holds, on all devices and but for pools and graphs, and a number that any
 * change changes. */
uint64_t account_held(uint64_t *sequence);
uint64_t account_counted(int device); /* memory and spill, whatever the limits say */
uint64_t account_used(int device);    /* overhead included, at most the limit */
void account_reap(int device);
static inline uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* ---- table.c ---- */
enum holding_kind {
    HOLDING_POINTER = 1,
    HOLDING_HANDLE,
    HOLDING_MAPPING,
    HOLDING_ARRAY,
    HOLDING_GRAPH,
    HOLDING_MODULE,
    HOLDING_LIBRARY, /* one context's part of it: several may have its key */
    HOLDING_CONTEXT, /* its own memory, heaps and local memory */
    HOLDING_IMAGE,   /* a library, wherever it is used */
    HOLDING_KERNEL   /* a library's kernel */
};
#define HOLDINGS_OF_CONTEXT                                                                       \
    (1u << HOLDING_POINTER | 1u << HOLDING_ARRAY | 1u << HOLDING_MODULE | 1u << HOLDING_LIBRARY | \
     1u << HOLDING_CONTEXT)

struct holding {
    /* device pointer, allocation handle, mapped address, array, executable graph, module, library,
     * context or kernel */
    uint64_t key;
    uint64_t bytes; /* charged; of a mapping: mapped; of a library's image: what it takes */
    /* the context it dies with, 0 for none; of a mapping: the handle; of pool memory: the pool's
     * record; of a kernel: its library */
    uint64_t owner;
    uint32_t references;
    uint8_t kind, class;
    int8_t device;
};
bool table_add(const struct holding *holding);
bool table_look(enum holding_kind kind, uint64_t key, struct holding *out);
bool table_take(enum holding_kind kind, uint64_t key, struct holding *out);
/* Adds `change` to the references of a handle; takes it out at zero. False: not in the table. */
bool table_refer(uint64_t handle, int change, struct holding *out);
/* of several with the key: the one that goes with `owner` */
bool table_look_owned(enum holding_kind kind, uint64_t key, uint64_t owner, struct holding *out);
/* Several that were taken out, to be given back or put back. */
struct holdings {
    struct holding *list;
    unsigned count, room;
};
/* All with the key, or all of these kinds (a bit each) that go with the owner; what there is no
 * memory for stays. */
void table_take_owned(uint64_t owner, uint32_t kinds, struct holdings *out);
void table_take_key(enum holding_kind kind, uint64_t key, struct holdings *out);
void table_put_back(struct holdings *holdings);
/* what the table has of what account_held says */
uint64_t table_bytes(void);

/* ---- memory.c ---- */
uint64_t charge_of(uint64_t bytes);
/* with what idle pools can give back */
bool memory_reserve(int device, enum egpu_memory_class class, uint64_t bytes);

/* ---- image.c ---- */
/* bytes of the card that it takes at least; 0 where it does not say */
uint64_t image_bytes(const void *image);
uint64_t image_file_bytes(const char *path);

/* ---- measure.c ---- */
/* One load at a time, so that none is charged another's: the driver, too, has a lock for these. */
extern egpu_lock loading __attribute__((visibility("hidden")));
/* Bytes of the card that are in use and that the slice has not counted: of others, mostly.
 * `in_hand`: reserved by the caller, and not in the table yet. */
int64_t measure_uncounted(int device, uint64_t in_hand);
/* The same by NVML, where there may be no context yet: between the other two. False: no NVML. */
int64_t measure_card(int device, uint64_t in_hand);
bool measure_open(void);
void measure_close(void);
/* Bytes of this process by NVML's list of processes. 0: it is not listed, or under another pid. */
int64_t measure_own(int device);
/* bytes to charge; 0 where a reading failed */
uint64_t measure_grown(int64_t before, int64_t after);
/* No operation of this process on memory is half-way, or one does not end. While paused. */
void measure_wait_for_rest(void);

/* ---- modules.c ---- */
bool module_reserve(int device, uint64_t bytes);
/* a failure gives the bytes back */
bool module_book(enum holding_kind kind, uint64_t key, uint64_t bytes, CUcontext context,
                 int device);

/* ---- libraries.c ---- */
/* Into the current context, unless it is there. */
CUresult library_settle(CUlibrary library);

/* ---- kernels.c ---- */
extern uint32_t kernels_known __attribute__((visibility("hidden"))); /* a library gave any */
void kernels_announce(void);
/* a handle may mean another kernel, stream or context from now on */
void kernels_changed(void);
CUresult kernel_settle_slow(const void *function, CUstream stream);
/* A CUkernel, in the stream's context: its library is charged and taken there, and its local
 * memory charged. Anything else passes. */
static inline CUresult kernel_settle(const void *function, CUstream stream) {
    return __builtin_expect(__atomic_load_n(&kernels_known, __ATOMIC_RELAXED) == 0, 1)
               ? CUDA_SUCCESS
               : kernel_settle_slow(function, stream);
}

/* ---- local.c ---- */
/* Local memory for a function of the current context. */
CUresult local_settle(CUfunction function);
/* forgets what it knows of a context; under the lock of loads */
void local_context_gone(CUcontext context);
void local_forget(void);

/* ---- pools.c ---- */
enum { PHYSICAL_PAGE = 2 << 20 }; /* pools and graphs grow by at least this */
void pool_freed(const struct holding *holding, bool now);
bool pools_reclaim(int device); /* true: something came back */
/* what pools reserve may have changed: look again at those where something was freed */
void pools_settle(void);
bool pools_at_rest(int device); /* none is half-way, and all are charged what they reserve */
void pools_forget(void);

/* ---- graphs.c ---- */
/* Around a launch or an upload: false when the graph's memory does not fit. */
bool graph_admit(CUgraphExec graph, uint64_t *reserved, int *device);
void graph_settle(CUgraphExec graph, CUresult result, uint64_t reserved, int device);
bool graphs_at_rest(int device); /* none is being launched that needs memory */
void graphs_reconcile(void);
void graphs_forget(void);

/* ---- peak.c ---- */
/* of what the graph's allocation nodes have at one time; 0: it has none */
uint64_t graph_peak_bytes(CUgraph graph);

/* ---- info.c ---- */
int nvml_device(nvmlDevice_t handle);

/* ---- bucket.c ---- */
uint64_t share_of(uint64_t time_ns, uint32_t ppm);
/* Latency work may save up its share of this time: turns limit it meanwhile (native/turns). */
#define LATENCY_BURST_NS 2000000000u
void bucket_debit(int device, int64_t cost_ns);
void bucket_forget(void);
/* until there is something in it; 0: now */
uint64_t bucket_wait_ns(int device, uint64_t now);
/* until it opens; 0: it is open, until *until */
uint64_t window_wait_ns(int device, uint64_t now, uint64_t *until);
/* Of a slice that has a window, which is one for all of its processes. `work_ns` is queued when it
 * may be: what is queued is through when the window closes, and what is longer than a window starts
 * with it; 0, or how long until it may. */
uint64_t queue_wait_ns(int device, uint64_t now, uint64_t work_ns, uint64_t until);
void queue_add(int device, int64_t work_ns); /* to work that was let in */
bool queue_is_full(int device, uint64_t until);
/* how much of it was not covered before */
uint64_t coverage_add(int device, uint64_t start_ns, uint64_t end_ns);
/* gpu_ns was counted till now */
void rate_note(struct egpu_usage_rate *rate, uint64_t gpu_ns, uint64_t now);
uint64_t rate_ppm(struct egpu_usage_rate *rate, uint64_t gpu_ns, uint64_t now);

/* ---- compute ---- */
struct batch;
struct lane;
struct launch {
    struct batch *batch; /* NULL: not timed */
    struct lane *owes;   /* then: what is to pay for it, if anything is */
    uint64_t estimate_ns;
};
/* Waits for the slice's turn and opens the books for one launch; launch_end closes them. */
CUresult launch_begin(struct launch *launch, uint64_t work, CUstream stream);
void launch_end(struct launch *launch, CUresult result);
bool stream_is_captured(CUstream stream);
void capture_began(void);
void capture_ended(void);
/* ends every open batch: their streams are about to change */
void compute_flush(void);
/* ends the stream's: what is put on it now is not work of kernels */
void compute_pause(CUstream stream);
void compute_collect(void);                     /* takes in what has been timed */
void compute_forget_context(CUcontext context); /* its events are gone */

/* The short way for a slice whose time is not limited: no look at the context, nothing to keep
 * across the call. */
static inline bool launch_is_free(void) {
    uint32_t *gate = __atomic_load_n(&slice_gate, __ATOMIC_ACQUIRE);
    return __builtin_expect((__atomic_load_n(gate, __ATOMIC_ACQUIRE) == GATE_OPEN) &
                                __atomic_load_n(&policy_free_run, __ATOMIC_RELAXED),
                            1) &&
           __builtin_expect(__atomic_load_n(policy_announced, __ATOMIC_RELAXED) ==
                                __atomic_load_n(&policy_seen, __ATOMIC_RELAXED),
                            1);
}

/* ---- fork ---- */
void fork_check(void); /* first thing in every wrapper: forgets the parent's state in a child */
void slice_forget(void);
void account_forget(void);
void table_forget(void);
void contexts_forget(void);
void compute_forget(void);

#endif
