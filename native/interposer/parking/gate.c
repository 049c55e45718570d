/* The gate: what programs call under the driver's names. It costs a look at one word where the
 * slice cannot be parked, and two stores of the thread's own more where it can.
 *
 * Whoever closes it makes all threads of the process pass a fence (membarrier), so that each either
 * sees the gate closed or is seen inside. */
#define _GNU_SOURCE
#include "parking.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver_table.h"

/* Named in the table, and declared by a header that comes with another wheel. */
typedef int CUoutput_mode;

enum {
    MOST_THREADS = 2048,
    DRAIN_NS = 5000000, /* a call that lasts longer is work, and no moment to park */
    LOOK_NS = 50000,
    LONGEST_LOOK_NS = 2000000,             /* of a call that waits for memory */
    MEMBARRIER_PRIVATE_EXPEDITED = 1 << 3, /* <linux/membarrier.h> */
    MEMBARRIER_REGISTER_PRIVATE_EXPEDITED = 1 << 4,
};

uint32_t gate_is_on, gate_state;
__thread struct gate_thread *gate_self __attribute__((tls_model("initial-exec")));
static struct gate_thread threads[MOST_THREADS];
static struct gate_thread unseen; /* of threads beyond them: then nothing can be parked */
static uint32_t overflowed, registered, joined; /* the entries of `threads` ever used */
static uint64_t hold_until;                     /* of an attempt that holds calls */
static egpu_lock joining;

static bool is_gone(uint32_t tid) {
    return syscall(SYS_tgkill, getpid(), tid, 0) != 0 && errno == ESRCH;
}

struct gate_thread *gate_join(void) {
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    struct gate_thread *found = NULL;
    lock_take(&joining);
    for (int i = 0; i < MOST_THREADS && found == NULL; i++)
        if (threads[i].tid == 0 || threads[i].tid == tid) found = &threads[i];
    for (int i = 0; i < MOST_THREADS && found == NULL; i++)
        if (is_gone(threads[i].tid)) found = &threads[i];
    if (found != NULL) {
        __atomic_store_n(&found->left, found->entered, __ATOMIC_RELEASE);
        __atomic_store_n(&found->tid, tid, __ATOMIC_RELEASE);
        uint32_t count = (uint32_t)(found - threads) + 1;
        if (count > joined) __atomic_store_n(&joined, count, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(&overflowed, 1, __ATOMIC_RELEASE);
        found = &unseen;
    }
    lock_drop(&joining);
    return found;
}

bool gate_can_close(void) {
    if (!__atomic_load_n(&registered, __ATOMIC_ACQUIRE) &&
        syscall(SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0) == 0)
        __atomic_store_n(&registered, 1, __ATOMIC_RELEASE);
    return __atomic_load_n(&registered, __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&overflowed, __ATOMIC_ACQUIRE);
}

void gate_forget(void) {
    for (int i = 0; i < MOST_THREADS; i++) threads[i] = (struct gate_thread){0};
    gate_self = NULL;
    joining.word = gate_state = registered = overflowed = joined = 0;
}

uint64_t gate_calls(void) {
    uint64_t calls = 0;
    for (uint32_t i = 0; i < __atomic_load_n(&joined, __ATOMIC_ACQUIRE); i++)
        calls += __atomic_load_n(&threads[i].entered, __ATOMIC_RELAXED);
    return calls;
}

static bool is_inside(const struct gate_thread *one) {
    uint64_t left = __atomic_load_n(&one->left, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&one->entered, __ATOMIC_ACQUIRE) != left;
}

static bool is_empty(void) {
    /* after the fence of whoever closes the gate: a thread beyond them sees it closed */
    for (uint32_t i = 0; i < __atomic_load_n(&joined, __ATOMIC_ACQUIRE); i++)
        if (is_inside(&threads[i]) && !is_gone(threads[i].tid)) return false;
    return true;
}

bool gate_is_used(void) { return !is_empty(); }

bool gate_is_trying(void) {
    uint32_t state = __atomic_load_n(&gate_state, __ATOMIC_SEQ_CST);
    return state == GATE_TRIES || state == GATE_HOLDS;
}

bool gate_try(uint64_t hold_until_ns) {
    __atomic_store_n(&hold_until, hold_until_ns, __ATOMIC_SEQ_CST);
    __atomic_store_n(&gate_state, hold_until_ns != 0 ? GATE_HOLDS : GATE_TRIES, __ATOMIC_SEQ_CST);
    bool fenced = syscall(SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0) == 0, empty = false;
    uint64_t deadline = hold_until_ns != 0 ? hold_until_ns : now_ns() + DRAIN_NS;
    while (fenced && !(empty = is_empty()) && now_ns() < deadline && gate_is_trying())
        sleep_ns(LOOK_NS);
    if (empty) return true;
    gate_release(GATE_LETS_IN);
    return false;
}

bool gate_hold(void) {
    uint32_t tries = __atomic_load_n(&gate_state, __ATOMIC_SEQ_CST);
    return (tries == GATE_TRIES || tries == GATE_HOLDS) &&
           __atomic_compare_exchange_n(&gate_state, &tries, GATE_MOVES, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

bool gate_step_out(void) {
    struct gate_thread *self = gate_self;
    if (self == NULL || self == &unseen || self->entered - self->left != 1) return false;
    __atomic_store_n(&self->left, self->entered, __ATOMIC_RELEASE);
    return true;
}

bool gate_step_in(void) {
    struct gate_thread *self = gate_self;
    __atomic_store_n(&self->entered, self->entered + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&gate_state, __ATOMIC_SEQ_CST) == GATE_LETS_IN) return true;
    bool awake = gate_wait(self, false) == CUDA_SUCCESS;
    /* The caller leaves in either case. */
    if (!awake) __atomic_store_n(&self->entered, self->entered + 1, __ATOMIC_RELEASE);
    return awake;
}

void gate_release(enum gate_state state) { __atomic_store_n(&gate_state, state, __ATOMIC_SEQ_CST); }

CUresult gate_wait(struct gate_thread *self, bool within) {
    /* a call within a call, as of a callback: the outer one is seen */
    if (within && self != &unseen) return CUDA_SUCCESS;
    uint64_t look = LOOK_NS;
    for (;;) {
        __atomic_store_n(&self->left, self->entered, __ATOMIC_RELEASE);
        uint32_t state = __atomic_load_n(&gate_state, __ATOMIC_ACQUIRE), tries = state;
        CUresult result = CUDA_SUCCESS;
        bool held =
            state == GATE_HOLDS && now_ns() < __atomic_load_n(&hold_until, __ATOMIC_ACQUIRE);
        if (state == GATE_TRIES || (state == GATE_HOLDS && !held))
            __atomic_compare_exchange_n(&gate_state, &tries, GATE_LETS_IN, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST);
        if (state == GATE_MOVES || held) {
            sleep_ns(look);
            if (look < LONGEST_LOOK_NS) look *= 2;
        }
        if (state == GATE_PARKED) result = park_wake();
        if (result != CUDA_SUCCESS) return result;
        __atomic_store_n(&self->entered, self->entered + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&gate_state, __ATOMIC_SEQ_CST) == GATE_LETS_IN) return CUDA_SUCCESS;
    }
}

/* ---- the calls ---- */

/* The driver's functions that have no wrapper of their own, by their place in the table. */
static const uint16_t plain[EGPU_DRIVER_FUNCTIONS] = {
#define OPEN(symbol)
#define GATED(symbol) [EGPU_FN_##symbol] = REAL_##symbol,
#include "../hooks.def"
};

/* Of every function; the compiler drops those that nothing below names. */
#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, \
                             parameters, arguments)                                      \
    FUNCTION_##interposer(symbol, parameters, arguments)
#define FUNCTION(symbol, parameters, arguments)                                         \
    extern CUresult inner_##symbol parameters __asm__("egpu_inner_" #symbol);           \
    static __attribute__((unused, noinline)) CUresult watched_##symbol parameters {     \
        struct gate_thread *self;                                                       \
        CUresult outcome = gate_enter(&self);                                           \
        if (outcome != CUDA_SUCCESS) return outcome;                                    \
        outcome = inner_##symbol arguments;                                             \
        gate_leave(self);                                                               \
        return outcome;                                                                 \
    }                                                                                   \
    static __attribute__((unused)) CUresult gate_##symbol parameters {                  \
        /* two jumps: neither way keeps anything across a call that it does not need */ \
        return __builtin_expect(!__atomic_load_n(&gate_is_on, __ATOMIC_RELAXED), 1)     \
                   ? inner_##symbol arguments                                           \
                   : watched_##symbol arguments;                                        \
    }                                                                                   \
    static __attribute__((unused)) CUresult ending_##symbol parameters {                \
        if (!__atomic_load_n(&gate_is_on, __ATOMIC_RELAXED) || !park_keep())            \
            return gate_##symbol arguments;                                             \
        CUresult outcome = inner_##symbol arguments;                                    \
        park_kept();                                                                    \
        return outcome;                                                                 \
    }                                                                                   \
    static __attribute__((unused)) CUresult plain_##symbol parameters {                 \
        CUresult(*real) parameters =                                                    \
            (__typeof__(real))real_function((enum real_id)plain[EGPU_FN_##symbol]);     \
        return real == NULL ? CUDA_ERROR_NOT_FOUND : real arguments;                    \
    }
#define FUNCTION_ALLOC FUNCTION
#define FUNCTION_ARRAY FUNCTION
#define FUNCTION_CONTEXT FUNCTION
#define FUNCTION_COPY FUNCTION
#define FUNCTION_EVENT FUNCTION
#define FUNCTION_FREE FUNCTION
#define FUNCTION_GRAPH FUNCTION
#define FUNCTION_HOST FUNCTION
#define FUNCTION_INFO FUNCTION
#define FUNCTION_INTEROP(symbol, parameters, arguments) /* types of other headers */
#define FUNCTION_IPC FUNCTION
#define FUNCTION_LAUNCH FUNCTION
#define FUNCTION_LOOKUP FUNCTION
#define FUNCTION_MODULE FUNCTION
#define FUNCTION_PASS FUNCTION
#define FUNCTION_POOL FUNCTION
#define FUNCTION_STREAM FUNCTION
#define FUNCTION_VMM FUNCTION
#include "generated/driver_table.inc"

#define EXPORTED(way, symbol)                                           \
    extern __typeof__(gate_##symbol) exported_##symbol __asm__(#symbol) \
        __attribute__((alias(way "_" #symbol), visibility("default")));
#define DRIVER(symbol) EXPORTED("gate", symbol)
#define ENDING(symbol) EXPORTED("ending", symbol)
#define OPEN(symbol)
#define GATED(symbol)                                                                \
    EXPORTED("gate", symbol)                                                         \
    extern __typeof__(plain_##symbol) behind_##symbol __asm__("egpu_inner_" #symbol) \
        __attribute__((alias("plain_" #symbol), visibility("hidden")));
#include "../hooks.def"
