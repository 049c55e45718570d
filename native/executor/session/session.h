/* The one session of a child process: a client, its connection, how frames travel over it.
 *
 *   session.c           one call: from the frame to the driver and back to a reply
 *   connection.c        connections from the parent, WELCOME, the client's end
 *   transport_stream.c  frames over a socket; replies are kept until the client has them
 *   transport_shared.c  frames through memory of both processes
 *   callback.c          functions of the client that the driver's streams call
 *   driver.c            the driver, its contexts, what a client is told of it
 *   figures.c           how much it did, for the log
 */
#ifndef EGPU_EXECUTOR_SESSION_H
#define EGPU_EXECUTOR_SESSION_H

#include <pthread.h>

#include "executor/executor.h"
#include "executor/session/greeting.h"
#include "ring.h"

/* Replies that a client has not got, of copies and of calls: over a stream those that it has not
 * said RECEIVED for. Its own bound is smaller (WIRE_REPLY_WINDOW). With what waits in threads (8
 * MiB), the input (4 MiB) and shared memory (6 MiB) and what kernels print (4 MiB) a session takes
 * 30 MiB for its client, and 256 MiB for the images of its modules, of which those that the store
 * has are pages of its files. */
#define SESSION_REPLY_BYTES (8u << 20)

struct reply {
    uint64_t seq;
    struct wire_reply head;
    uint8_t *data;
    size_t bytes;
    bool owned; /* data are the transport's to free */
};

/* How frames come and go. What sends is called under session.out_lock. */
struct transport {
    /* Header, then two parts of a payload. */
    void (*emit)(const struct wire_header *header, const void *head, size_t head_bytes,
                 const void *data, size_t bytes);
    /* `beside`: from another thread than the one that serves, so it must not wait for that. */
    void (*reply)(struct reply *reply, bool beside);
    void (*flush)(void);
    /* Has every frame carried out that comes, until the process ends. */
    void (*serve)(void);
};
extern const struct transport transport_stream, transport_shared;

struct session_state {
    const struct settings *settings;
    const struct transport *transport; /* NULL before the first WELCOME has been answered */
    int connection;                    /* -1: none yet; changed under out_lock */
    bool over_unix;
    struct shared shared;
    int memory;     /* the descriptor of `shared`, for a move; -1: not kept */
    uint64_t taken; /* number of the last call that was begun */
    pthread_mutex_t out_lock;
};
extern struct session_state session;

/* ---- session.c ---- */

_Noreturn void session_end(int code);
_Noreturn void session_violation(const char *what);
/* One frame, all of it private to us. */
void session_frame(const struct wire_header *header, const uint8_t *payload);

/* How far a session is, for one that goes on elsewhere. */
struct session_progress {
    uint64_t taken, context, mode, pending_error;
};
struct session_progress session_progress(void);
void session_continue(const struct session_progress *progress);
bool session_waits(void); /* calls are carried out in threads of their own */

static inline struct wire_header reply_header(const struct reply *reply) {
    return (struct wire_header){.op = WIRE_REPLY,
                                .flags = WIRE_IS_REPLY,
                                .len = (uint32_t)(sizeof reply->head + reply->bytes),
                                .seq = reply->seq};
}

/* ---- figures.c ---- */

void figures_call(const struct wire_header *header);
void figures_reply(const struct reply *reply);
void figures_tell(const char *lease);

/* ---- callback.c ---- */

void callback_ended(uint64_t number);
void callbacks_again(void); /* emits those that nobody has answered; under out_lock */
bool callbacks_run(void);   /* the client has not answered all */
uint64_t callbacks_number(void);
void callbacks_continue(uint64_t next);

/* ---- connection.c ---- */

bool connection_prepare(void); /* what a WELCOME says of the driver */
/* Without a connection (-1) the session waits for one. */
bool connection_start(int control, int fd, const struct greeting *greeting);
const uint8_t *connection_snapshot(size_t *bytes);
void connection_begin(void);    /* the session has ended where it was before */
void connection_is_moved(void); /* the first connection is a resumed one, and may be late */
/* Waits for a connection, for as long as the grace lasts, and begins or goes on there. */
void connection_await(void);

/* ---- transports ---- */

bool stream_open(void);
void stream_reset(void);               /* on a new connection nothing has been read or written */
void stream_resume(uint64_t received); /* emits replies again that the client has not got */
/* The client has all replies up to `received`, and all up to `until` but the missing ones. Not
 * under out_lock. */
void stream_forget(uint64_t received, uint64_t until, const uint64_t *missing, size_t count);
/* For a move, of a session that is stopped: each reply that is kept, and one that was. */
const struct reply *stream_kept(unsigned index); /* NULL: there are no more */
bool stream_keep(const struct reply *reply);
bool shared_prepare(void);
bool shared_open(int memory); /* maps it, and uses it from now on */
/* Of a session that was moved, in two steps: another process still reads the requests. */
bool shared_adopt(int memory, int connection);
void shared_begin(void);

/* ---- driver.c ---- */

bool driver_load(const char *path);
bool driver_snapshot(struct writer *out);
void driver_enter(uint64_t context); /* makes it current in this thread */
void driver_leave(void);             /* makes none current */
/* Runs an operation in its context. */
CUresult driver_run(const struct operation *operation, struct task *task);

/* ---- warm.c ---- */

void driver_warm(void); /* before the sandbox: what a driver does once */
/* Around each operation: release the warm context before what is about primary contexts that are
 * not in use, and after the program has a context. */
void driver_cool_before(uint16_t op);
void driver_cool_after(uint16_t op);

#endif
