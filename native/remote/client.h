/* The remote client: a libcuda.so.1 that has no GPU. Who is who:
 *
 *   stubs.c     generated: encodes what needs no thought           link.c      one server: its
 *               socket or rings, calls and replies
 *   handles.c   what programs hold instead of the driver's objects  context.c   current contexts,
 *               per-thread streams
 *   device.c    what a snapshot can answer                          memory.c    allocations, host
 *               memory, pointers
 *   copy.c      bytes                                               module.c    images, functions
 *               launch.c   kernels
 *   stream.c    callbacks, events                                   lookup.c    cuInit,
 *               cuGetProcAddress
 */
#ifndef EGPU_REMOTE_CLIENT_H
#define EGPU_REMOTE_CLIENT_H

#define __CUDA_API_VERSION_INTERNAL /* plain names are the oldest ABIs, as in the driver table */
#include <cuda.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "ring.h"
#include "special.h"

#pragma GCC visibility push(hidden)

#define API __attribute__((visibility("default")))
#define MAX_SERVERS 8

struct device {
    struct wire_device is;
    int32_t attributes[WIRE_ATTRIBUTES];
};

struct handle_entry {
    uint64_t id;      /* 0: free */
    void *info;       /* of its kind: struct function, struct module, struct shadow_context */
    uint64_t context; /* that it was made in */
};

struct shadow_context {
    int ordinal;
    _Atomic int error; /* of a kernel: nothing goes on in this context until it is reset */
};

struct parameter {
    uint32_t offset, size;
};

struct function {
    uint64_t handle;  /* with the server */
    uint64_t library; /* of a kernel */
    char *name;
    uint32_t max_threads, parameter_count, argument_bytes;
    _Atomic uint32_t largest_shared; /* dynamic shared memory that a launch has had */
    struct parameter *parameters;
};

struct module {
    uint32_t count;
    bool complete; /* all its functions are listed */
    /* handles: what they stand for is looked up, since a hostile executor may name one twice */
    uint64_t *functions;
    uint32_t derived_count;
    uint64_t *derived; /* functions of a library's kernels, which are no more when it is unloaded */
};

/* data of a frame that stay where the program has them until they are sent and taken */
struct external {
    uint64_t start, end; /* the frame's bytes in the ring */
    const uint8_t *data;
    size_t bytes;
};
#define MAX_EXTERNALS 64

struct link {
    unsigned index;
    _Atomic bool dead;
    bool connected_once, direct;
    char path[4096]; /* path of the socket, or of the file with the port */
    uint8_t session[16];
    int fd;

    struct device *devices;
    unsigned device_count, first_ordinal;
    uint32_t driver_version;

    struct handle_entry *own, *found; /* chosen by us, chosen by the executor */
    pthread_mutex_t handle_lock;
    uint32_t next_index, *free_indexes, free_count, free_room;

    /* Sending: what is written is under send_lock, what is sent under feed_lock, which comes
     * second. So calls go on being written while a batch of them is sent. Positions are bytes since
     * the beginning. */
    pthread_mutex_t send_lock, feed_lock;
    bool send_locked; /* under it */
    uint8_t *ring;
    _Atomic uint64_t tail, sent;
    uint64_t acknowledged, next_seq, wire_context, received_told;
    struct external externals[MAX_EXTERNALS];
    _Atomic unsigned external_sent, external_end; /* counters */
    unsigned external_first;
    size_t external_offset;
    _Atomic uint32_t unsent;      /* futex of the flusher: there are bytes that wait */
    _Atomic int64_t unsent_since; /* monotonic, ns */
    _Atomic bool concurrent;      /* more than one thread, or callbacks */
    pthread_t owner;

    /* Receiving: `reading` is a role; the rest under receive_lock. */
    pthread_mutex_t receive_lock;
    pthread_cond_t received;
    _Atomic bool reading;
    _Atomic unsigned sleeping; /* threads that wait for `received` */
    _Atomic bool broken;
    struct call *waiting;
    uint64_t last_reply;
    uint8_t *input;
    uint64_t input_head, input_tail, skip;
    _Atomic uint64_t taken; /* stream: the executor has all calls up to here */
    _Atomic uint32_t pending_error;

    bool uses_shared;
    struct shared shared;
    uint64_t short_frame[SHARED_SHORT_WORDS]; /* one that is not in the ring yet */
    uint64_t request_head;                    /* as last seen: looking costs a cache line */
    uint64_t slot_seq[SHARED_BULK_SLOTS];
    pthread_mutex_t slot_lock;

    _Atomic uint32_t callbacks; /* outstanding */
};

struct call {
    uint16_t op;
    struct link *link;
    struct writer out;
    struct reader in;
    uint64_t seq;
    struct wire_header *header;
    const void *external;
    size_t external_bytes;
    void *into; /* where the data of the reply belong */
    size_t into_bytes, into_got;
    uint8_t *reply;
    size_t reply_bytes;
    CUresult result;
    bool done, waits;
    struct call *next;
    uint8_t small[512];
};

extern struct link *links[MAX_SERVERS];
extern unsigned link_count;

/* ---- link.c ---- */

CUresult links_open(void); /* by cuInit: connects to all servers */
CUresult call_ready(void); /* initialised, in this very process, with a living lease */

enum call_mode { CALL_POSTED, CALL_WAITS };

static inline void call_start(struct call *call, uint16_t op) {
    call->op = op;
    call->link = NULL;
    call->external = NULL;
    call->external_bytes = 0;
    call->into = NULL;
    call->into_bytes = call->into_got = 0;
    call->in = (struct reader){NULL, 0, true}; /* until a reply has come */
    call->reply = NULL;
    call->done = false;
}

/* Takes a number and `bytes` of room for the payload; until call_post or call_exchange no other
 * call can begin. */
CUresult call_begin(struct call *call, size_t bytes, enum call_mode mode);
CUresult call_post(struct call *call);
CUresult call_send(struct call *call); /* to be followed by call_wait */
CUresult call_wait(struct call *call);
CUresult call_exchange(struct call *call);
void call_end(struct call *call);
static inline CUresult call_checked(const struct call *call) {
    return call->in.bad ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
void link_flush(struct link *link);
/* Sends a memfd over the socket (shared memory only). */
bool link_send_fd(struct link *link, int fd);
void link_serve(struct link *link);              /* reads once, for whoever waits for callbacks */
bool link_done(struct link *link, uint64_t seq); /* shared memory: the call has been carried out */
void link_callback_done(struct link *link, uint64_t number);

/* ---- handles.c, context.c ---- */

bool handles_init(struct link *link);
struct handle_entry *handle_entry(uint64_t handle); /* NULL: forged or stale */
CUresult call_handle(struct call *call, unsigned kind, uint64_t handle, uint64_t *wire);
CUresult call_device(struct call *call, CUdevice ordinal, uint64_t *wire);
CUresult call_new_handle(struct call *call, unsigned kind, uint64_t *handle);
void handle_drop(uint64_t handle);
/* its streams, events, modules and functions are no more, here and there */
void handles_end(uint64_t context);
/* the current one for a default stream; 0: there is no such stream */
uint64_t stream_context(uint64_t stream);
static inline uint64_t handle_name(const struct link *link, uint64_t handle) {
    return wire_with_server(handle, link->index);
}
uint64_t handle_found(struct link *link, unsigned kind, uint64_t wire);

/* Every call asks for it. Initial-exec: found without a call of the loader; these 8 bytes come out
 * of what it keeps free for such libraries. */
extern _Thread_local uint64_t context_now __attribute__((tls_model("initial-exec")));
static inline uint64_t context_current(void) { return context_now; }
void context_forget(uint64_t context);
CUresult context_error(void);         /* that of the current context */
void context_failed(CUresult result); /* what a call in it ended with */
CUresult context_needed(struct link **link);
CUstream thread_stream(CUstream stream);
struct link *link_of_device(CUdevice ordinal, unsigned *local);

CUresult call_locate_CUmemLocation(struct call *call, const CUmemLocation *from, CUmemLocation *to);
CUresult call_locate_CUmemAllocationProp(struct call *call, const CUmemAllocationProp *from,
                                         CUmemAllocationProp *to);
CUresult call_locate_CUmemAccessDesc(struct call *call, const CUmemAccessDesc *from,
                                     CUmemAccessDesc *to);
CUresult call_locate_CUmemPoolProps(struct call *call, const CUmemPoolProps *from,
                                    CUmemPoolProps *to);

/* Bytes that the value of a pool's attribute (or of a device's graph memory) has. */
static inline size_t attribute_bytes(int attribute) {
    return attribute >= 1 && attribute <= 3 ? 4 : 8;
}

/* ---- memory.c ---- */

enum allocation_kind { ALLOCATION_DEVICE = 1, ALLOCATION_PINNED, ALLOCATION_REGISTERED };

struct allocation {
    uint64_t base, bytes, context;
    struct link *link;
    enum allocation_kind kind;
    uint32_t flags;
    bool shared; /* host memory that the executor maps at the same address */
};

bool allocation_find(const struct link *link, uint64_t pointer, struct allocation *out);
static inline bool allocation_covers(const struct allocation *a, uint64_t pointer, size_t bytes) {
    return bytes <= a->bytes && pointer - a->base <= a->bytes - bytes;
}

/* ---- module.c ---- */

CUresult function_of(uint64_t handle, struct function **function); /* of a function or a kernel */
void function_free(struct function *function);
void module_free(struct module *module);

CUresult not_supported(const char *what); /* says so, once */

/* ---- stream.c ---- */

bool capturing(CUstream stream); /* what is asked of it is written into a graph, and not done now */

#include "stubs.h"

#pragma GCC visibility pop
#endif
