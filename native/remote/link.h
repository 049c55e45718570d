/* One server: a connection, how frames travel over it, and the outstanding calls.
 *
 *   link.c              its life, from cuInit to the program's end
 *   connection.c        dialling, greeting and reconnecting
 *   call.c              calls and their replies, over any transport
 *   printed.c           output of its kernels
 *   transport_stream.c  frames over a socket, kept until the executor has taken them
 *   transport_shared.c  frames through memory of both processes
 *   bulk.c              long copies, over either
 *
 * A call is encoded in place, in the transport's ring. A thread that waits for a reply reads for
 * all threads and hands other replies over. See docs/internals/wire.md.
 */
#ifndef EGPU_REMOTE_LINK_H
#define EGPU_REMOTE_LINK_H

#define __CUDA_API_VERSION_INTERNAL /* plain names are the oldest ABIs, as in the driver table */
#include <cuda.h>

#include <pthread.h>
#include <stdatomic.h>

#include "common/thread.h"
#include "ring.h"

#pragma GCC visibility push(hidden)

#define MAX_SERVERS 8
#define LOOK_MS 100 /* interval at which a waiting thread checks that the peer is alive */

struct call;
struct link;

/* Target of a copy: its server, the stream's handle there, whether the program waits. */
struct where {
    struct link *link;
    uint64_t stream;
    bool wait;
};

/* How frames travel. Sending functions are called under send_lock, receiving ones only by the
 * reader. `frame` is the size of a frame with its header. */
struct transport {
    bool maps_host_memory; /* the executor can map memory of the program */

    bool (*open)(struct link *link); /* after the first greeting; false: no memory */

    /* Wait until a frame fits below the link's limit. False: the lease is lost. */
    bool (*make_room)(struct link *link, size_t frame);
    /* Where to encode a call whose reply is waited for; NULL: the lease is lost. Other calls are
     * encoded in the ring, see link_room. */
    uint8_t *(*place_waiting)(struct link *link, size_t frame);
    /* Send a complete frame. `call` is NULL for a frame that is not a call. */
    void (*publish)(struct link *link, size_t frame, const struct call *call);
    /* The same if no thread waits for it: it may be sent together with others. */
    void (*post)(struct link *link, size_t frame, const struct call *call);
    /* Send everything that was published. False: the connection broke. */
    bool (*flush)(struct link *link);

    CUresult (*exchange)(struct call *call); /* publishes, releases send_lock, waits */
    void (*receive)(struct link *link);      /* reads once and passes what came to call_dispatch */

    CUresult (*copy_in)(const struct where *where, uint64_t to, const uint8_t *from, size_t bytes);
    CUresult (*copy_out)(const struct where *where, uint8_t *to, uint64_t from, size_t bytes);
};
extern const struct transport transport_stream, transport_shared;

/* Data of a frame that stays in the program's memory until it is sent and taken. */
struct external {
    uint64_t start, end; /* the frame's bytes in the ring */
    const uint8_t *data;
    size_t bytes;
};
#define MAX_EXTERNALS 64

/* State of a stream. Writing is under send_lock, sending under feed_lock, which is taken second: so
 * calls can be written while a batch is being sent. */
struct stream_state {
    pthread_mutex_t feed_lock;
    _Atomic uint64_t sent;
    uint64_t acknowledged; /* the ring keeps later bytes: a new connection may need them */
    uint64_t arrived_told;
    struct external externals[MAX_EXTERNALS];
    _Atomic unsigned external_sent, external_end; /* counters */
    unsigned external_first;
    size_t external_offset;
    _Atomic uint32_t unsent;       /* futex of the flusher: bytes wait */
    _Atomic uint64_t unsent_since; /* clock_now_ns */
    uint8_t *input;
    uint64_t input_head, input_tail, skip;
};

/* State of shared memory. */
struct shared_state {
    struct shared memory;
    uint64_t short_frame[SHARED_SHORT_WORDS]; /* a frame that is not in the ring yet */
    uint64_t slot_seq[SHARED_BULK_SLOTS];
    pthread_mutex_t slot_lock;
};

struct link {
    unsigned index;
    _Atomic bool dead;
    bool connected_once;
    bool direct;     /* the executor is on this machine: if it does not answer it has ended */
    char path[4096]; /* path of the socket, or of the file with the port */
    int grace_seconds;
    uint8_t session[16];
    int fd;

    struct device *devices;
    unsigned device_count;
    uint32_t driver_version;

    struct handle_entry *own, *found; /* chosen by us, chosen by the executor */
    pthread_mutex_t handle_lock;
    uint32_t next_index, *free_indexes, free_count, free_room;

    /* Sending, under send_lock. Positions count bytes since the start. */
    pthread_mutex_t send_lock;
    bool send_locked;
    const struct transport *transport;
    uint8_t *ring; /* mapped twice in a row: no frame wraps */
    uint64_t ring_mask;
    uint64_t limit; /* known room in the ring ends here */
    _Atomic uint64_t tail;
    uint64_t next_seq, wire_context, wire_mode;
    _Atomic bool concurrent; /* more than one thread, or callbacks */
    pthread_t owner;

    /* Receiving: `reading` is a role; everything else is under receive_lock. */
    pthread_mutex_t receive_lock;
    pthread_cond_t received;
    _Atomic bool reading;
    _Atomic unsigned sleeping; /* threads that wait for `received` */
    _Atomic bool broken;       /* the connection; a stream reconnects */
    struct call *waiting;
    uint64_t last_reply;
    uint64_t arrived;       /* replies, counted */
    size_t outstanding;     /* bytes of copies that have not arrived */
    _Atomic uint64_t taken; /* the executor says it has all calls up to here */
    _Atomic uint32_t pending_error;
    _Atomic bool printed; /* kernels have, and the output was not fetched yet */

    struct stream_state stream;
    struct shared_state shared;

    _Atomic uint32_t callbacks; /* outstanding */
    _Atomic bool graphs_call;   /* some graphs call functions of the program */
};

struct call {
    uint16_t op;
    struct link *link;
    struct writer out;
    struct reader in;
    uint64_t seq;
    struct wire_header *header;
    const void *external; /* data after the payload; streams only */
    size_t external_bytes;
    void *into; /* destination of the reply's data */
    size_t into_bytes, into_got;
    size_t asked_bytes; /* of a copy's data, in its reply */
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

CUresult links_open(void); /* connects to all servers unless it is done; one thread at a time */
void links_use(void);      /* cuInit calls it: the program will compute on them */
CUresult call_ready(void); /* initialised, in this very process, with a living lease */
void link_die(struct link *link, const char *why);
void link_flush(struct link *link);
void link_serve(struct link *link); /* reads once, for the thread that waits for callbacks */
void link_callback_done(struct link *link, uint64_t number);

/* A program with one thread needs no lock, and no other thread can start meanwhile. */
static inline void link_lock(struct link *link) {
    if (thread_alone()) return;
    pthread_mutex_lock(&link->send_lock);
    link->send_locked = true;
}

static inline void link_unlock(struct link *link) {
    if (!link->send_locked) return;
    link->send_locked = false;
    pthread_mutex_unlock(&link->send_lock);
}

/* Return room for a frame in the ring; NULL: the lease is lost. Under send_lock. */
static inline uint8_t *link_room(struct link *link, size_t frame) {
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
    if (tail + frame > link->limit) {
        if (!link->transport->make_room(link, frame)) return NULL;
        tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
    }
    return link->ring + (tail & link->ring_mask);
}

/* ---- connection.c ---- */

bool connection_open(struct link *link); /* the first one; reports errors on stderr */
/* Reconnect to the session within its grace period. Under send_lock, and not reading. */
void connection_recover(struct link *link);
/* shared memory: the lease is lost if the executor has ended */
void shared_look_at_socket(struct link *link);
void connection_mend(struct link *link); /* the same if it is broken; not under send_lock */

/* ---- call.c ---- */

enum call_mode { CALL_POSTED, CALL_WAITS };

static inline void call_start(struct call *call, uint16_t op) {
    call->op = op;
    call->link = NULL;
    call->external = NULL;
    call->external_bytes = 0;
    call->into = NULL;
    call->into_bytes = call->into_got = call->asked_bytes = 0;
    call->in = (struct reader){NULL, 0, true}; /* until a reply has come */
    call->reply = NULL;
    call->done = false;
}

/* Take a number, and `bytes` of room for the payload. No other call can begin before call_post or
 * call_exchange. */
CUresult call_begin(struct call *call, size_t bytes, enum call_mode mode);
CUresult call_post(struct call *call);
CUresult call_send(struct call *call); /* call_wait must follow */
CUresult call_wait(struct call *call);
CUresult call_exchange(struct call *call);
void call_end(struct call *call);
CUresult call_ask(struct call *call); /* call_exchange if the reply is just the result */
static inline CUresult call_checked(const struct call *call) {
    return call->in.bad ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* For transports and connections. */
void call_publish(struct call *call);       /* under send_lock */
CUresult call_concluded(struct call *call); /* its reply has come or never will */
/* Send a frame that is not a call. False: the lease is lost. Under send_lock. */
bool call_control(struct link *link, uint16_t op, uint64_t seq, const void *payload, size_t bytes);
uint64_t call_received(struct link *link);                  /* all replies up to here have come */
struct call *call_waiting(struct link *link, uint64_t seq); /* waits for this reply, or NULL */
/* A reply has come for the first time, or again after a reconnect. Under receive_lock. */
void call_arrived(struct link *link, struct call *call);
/* Note what a reply says besides the result of its call. */
void call_reply_noted(struct link *link, uint64_t seq, uint32_t pending);
/* Handle a frame whose payload is complete. `mine` is the caller's own call: its reply is
 * recognised without a lookup. */
void call_dispatch(struct link *link, const struct wire_header *header, const uint8_t *payload,
                   struct call *mine);

/* The role of the reader: one thread has it, for all. */
bool reading_start(struct link *link);
void reading_stop(struct link *link);  /* not under receive_lock */
void reading_await(struct link *link); /* until it is free or has been used; under receive_lock */
void reading_take_part(
    struct link *link); /* reads once, or waits for the reader; under receive_lock */

/* ---- printed.c ---- */

void printed_show(struct link *link); /* fetches what kernels have printed, to standard output */

/* ---- transports ---- */

/* After a reconnect, send again what the executor has not taken. False: it broke again. Under
 * send_lock and feed_lock, and not reading. */
bool stream_resume(struct link *link);

CUresult bulk_in_stream(const struct where *where, uint64_t to, const uint8_t *from, size_t bytes);
CUresult bulk_in_shared(const struct where *where, uint64_t to, const uint8_t *from, size_t bytes);
CUresult bulk_out_stream(const struct where *where, uint8_t *to, uint64_t from, size_t bytes);
CUresult bulk_out_shared(const struct where *where, uint8_t *to, uint64_t from, size_t bytes);

/* ---- stream.c: callbacks ---- */

void callback_arrived(struct link *link, uint64_t number, const struct wire_callback *said);
/* Keep a callback that a graph calls at each launch; return its number on the wire. */
CUresult callback_keep(struct link *link, CUhostFn function, void *data, uint64_t *id);

#pragma GCC visibility pop
#endif
