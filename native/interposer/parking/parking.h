/* Parking: the memory of an idle program leaves the card, and comes back with its next call.
 *
 *   gate.c     the way into every call that may use memory; closed while the memory is away
 *   managed.c  allocations that we map ourselves, so that they can leave and keep their addresses
 *   park.c     moves their contents to the host, and back
 *   room.c     waits for room on a card that several slices share
 *   asked.c    the thread that waits for the policy page to ask for either
 *   shown.c    calls that would tell a mapping of ours from an allocation of the driver's
 *
 * All of it is off unless the policy page says that the slice may be parked (EGPU_POLICY_PARKABLE).
 *
 * Why nothing is lost: an allocation is either on the card or in memory of this process, and the
 * one is released only after the other has every byte. Parked memory stays charged to the slice, so
 * no sibling can take its place within the limit; `parked_bytes` of the usage file says how much of
 * the charge is not on the card. The thread, the copies and all locks are this process's own: if
 * the agent dies, the next call still brings the memory back; if the process dies, nothing is left.
 */
#ifndef EGPU_PARKING_H
#define EGPU_PARKING_H

#include "../interposer.h"

#pragma GCC visibility push(hidden)

/* ---- gate.c ---- */
enum gate_state {
    GATE_LETS_IN,
    GATE_TRIES, /* to park: the next call ends the attempt */
    GATE_HOLDS, /* likewise, but the call waits for a while before it ends the attempt */
    GATE_MOVES, /* memory leaves or comes back: calls wait */
    GATE_PARKED /* the next call brings the memory back */
};
extern uint32_t gate_is_on, gate_state;

/* A thread's calls that use memory: it is in one while the numbers differ. Written by it alone. */
struct gate_thread {
    uint64_t entered, left;
    uint32_t tid; /* 0: free */
} __attribute__((aligned(64)));
extern __thread struct gate_thread *gate_self __attribute__((tls_model("initial-exec")));
struct gate_thread *gate_join(void);
CUresult gate_wait(struct gate_thread *self, bool within);

/* Plain stores and loads: the side that closes pays for the fence (membarrier). Not called: that
 * costs a launch more than all of this. */
static inline __attribute__((always_inline)) CUresult gate_enter(struct gate_thread **self) {
    if (__builtin_expect(gate_self == NULL, 0)) gate_self = gate_join();
    *self = gate_self;
    __atomic_store_n(&(*self)->entered, (*self)->entered + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (__builtin_expect(__atomic_load_n(&gate_state, __ATOMIC_ACQUIRE) == GATE_LETS_IN, 1))
        return CUDA_SUCCESS;
    return gate_wait(*self, (*self)->entered - (*self)->left != 1);
}

static inline void gate_leave(struct gate_thread *self) {
    __atomic_store_n(&self->left, self->left + 1, __ATOMIC_RELEASE);
}

/* How many calls have come in so far. */
uint64_t gate_calls(void);
/* Whether a call is inside now. */
bool gate_is_used(void);
/* Around a wait inside a call, where the driver has nothing of it: meanwhile the process can be
 * parked. False: it cannot, as this is a call within a call. */
bool gate_step_out(void);
/* The memory is back. Otherwise the call may only clean up and fail. */
bool gate_step_in(void);
/* Closes the gate for an attempt. False: somebody is inside, or came meanwhile. Calls wait until
 * `hold_until_ns` before they end it; 0: they end it at once. */
bool gate_try(uint64_t hold_until_ns);
/* The attempt is still alone. */
bool gate_is_trying(void);
/* Likewise, and from now on calls wait. False: it is over. */
bool gate_hold(void);
/* Lets calls in, or leaves the gate parked. */
void gate_release(enum gate_state state);
/* False: this process cannot, on this kernel or with so many threads. */
bool gate_can_close(void);
void gate_forget(void);

/* ---- of others ---- */
extern uint32_t capturing; /* compute/batches.c */
/* slice.c: as in the policy's bank, where they have other names */
extern uint64_t park_asked, park_hold_ns, room_bytes, room_until_ns;
void *process_symbol(const char *symbol); /* resolve.c */

/* ---- managed.c ---- */
struct managed {
    struct managed *next;
    CUdeviceptr address;
    uint64_t bytes; /* of physical memory */
    uint64_t asked; /* by the program */
    CUcontext context;
    CUdevice ordinal;
    int device;
    CUmemGenericAllocationHandle handle; /* 0: not on the card */
    void *copy;                          /* on the host, then */
};
enum { MANAGED_BUCKETS = 4096 };
/* Under the lock, but for the mover: nobody is inside a call then. */
extern struct managed *managed_all[MANAGED_BUCKETS];
#define MANAGED_EACH(one)                                         \
    for (unsigned bucket = 0; bucket < MANAGED_BUCKETS; bucket++) \
        for (struct managed *one = managed_all[bucket]; one != NULL; one = one->next)
/* As cuMemAlloc. Anything but success: let the driver try. */
CUresult managed_alloc(CUdeviceptr *pointer, uint64_t bytes, CUcontext context, int device,
                       uint64_t *charged);
/* False: it is none of ours. */
bool managed_free(CUdeviceptr pointer, CUresult *result);
/* The context ended, and took its allocations along. */
void managed_context_gone(CUcontext context);
/* The contexts of what is mapped, each once; more than `most`: there are more. */
unsigned managed_contexts(CUcontext *list, unsigned most);
bool managed_look(CUdeviceptr base, struct managed *out);
CUresult managed_create(struct managed *one); /* physical memory */
CUresult managed_map(struct managed *one);
CUresult managed_unmap(struct managed *one); /* and gives the physical memory back */
void managed_forget(void);

/* ---- park.c ---- */
/* Returns EGPU_PARK_DONE, or the reason why not: kernels that run past the deadline are one.
 * `hold`: calls wait until the deadline, rather than end the attempt. */
enum egpu_park_answer park_try(uint64_t deadline, bool hold);
CUresult park_wake(void);
/* Around a call that gives memory back: true, and nobody moves memory, where it is away. */
bool park_keep(void);
void park_kept(void);
/* Memory of ours can be reached past the driver from now on: it stays. */
void park_pin(void);
/* Waits until no attempt to park asks the driver whether the device is idle. */
extern uint32_t park_asks;
void park_wait_slow(void);
static inline void park_wait(void) {
    if (__builtin_expect(__atomic_load_n(&park_asks, __ATOMIC_SEQ_CST) != 0, 0)) park_wait_slow();
}
/* Writes it where the asker looks. */
void park_answer(uint64_t request, enum egpu_park_answer answer);
void park_forget(void);

/* ---- room.c ---- */
struct room_wait {
    uint64_t bytes; /* of an allocation, charged already; 0: of what is parked */
    uint64_t retry_ns;
    uint64_t held_ns, alone_ns; /* waited so far: while the arbiter held it, and otherwise */
    bool claimed, refused, out; /* refused: by the arbiter, at the last look */
};
/* Other slices may have the room of this one: an arbiter says when it has it. */
static inline bool room_is_shared(void) {
    return __builtin_expect(__atomic_load_n(&room_until_ns, __ATOMIC_RELAXED) != 0, 0);
}
/* Waits until so many bytes, charged already, may be on the card. False: they may not. */
bool room_admit(uint64_t bytes);
/* The parts of a wait: between begin and end the bytes count as not on the card, but while they
 * are claimed. */
void room_begin(struct room_wait *wait, uint64_t bytes);
bool room_claim(struct room_wait *wait);
void room_unclaim(struct room_wait *wait);
/* Sleeps. False: it has waited for long enough. */
bool room_pause(struct room_wait *wait);
/* False: the process was parked meanwhile, and its memory does not come back. */
bool room_end(struct room_wait *wait);
/* Sets how many bytes are parked, where others look. */
void room_show_parked(uint64_t bytes);
void room_forget(void);

/* ---- asked.c ---- */
/* Starts the thread. Once. */
void asked_listen(void);
void asked_forget(void);

/* ---- shown.c ---- */
/* The mapping around an address. False: it is none of ours. */
bool mapping_around(CUdeviceptr pointer, struct managed *out);

#pragma GCC visibility pop

#endif
