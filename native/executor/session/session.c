/* A session: one client process, one GPU address space. Its threads: the one that serves, the
 * control thread, which gets new connections from the parent and sees the client die, waiters that
 * carry out calls which may wait for the GPU, and whatever the driver has.
 */
#define _GNU_SOURCE
#include "executor/session/session.h"

#include "executor/confinement/confinement.h"
#include "executor/moves/moves.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define REPLY_BYTES (192u << 10) /* results of one call, but for copies */
#define WAITERS 256
#define BESIDE_BYTES (8u << 20) /* calls that wait in threads of their own: what came with them */
#define TAKEN_US 50
#define WAITER_STACK_BYTES (256u << 10)
#define LIBRARY_STACK_BYTES (8u << 20) /* where a library does more than call the driver */

struct session_state session = {
    .connection = -1, .memory = -1, .out_lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t current_context, current_mode;
static _Atomic uint32_t pending_error; /* of a call that nobody waited for */
static uint8_t reply_space[REPLY_BYTES];
static _Atomic int waiters;
static _Atomic size_t beside_bytes, replies_held;

_Noreturn void session_end(int code) {
    figures_tell(session.settings->lease);
    fflush(NULL);
    _exit(code);
}

_Noreturn void session_violation(const char *what) {
    fprintf(stderr, "egpu-executor: lease %s: %s, the session ends\n", session.settings->lease,
            what);
    session_end(EXIT_VIOLATION);
}

/* ---- replies ---- */

uint8_t *session_reply_take(size_t bytes) {
    while (atomic_fetch_add(&replies_held, bytes) + bytes > SESSION_REPLY_BYTES) {
        atomic_fetch_sub(&replies_held, bytes);
        /* Over a stream the client has been told how much it may leave with us. */
        if (session.transport == &transport_stream)
            session_violation("more is asked for than is taken");
        usleep(TAKEN_US); /* the ring of replies is read without us */
    }
    uint8_t *data = malloc(bytes + 1);
    if (data == NULL) atomic_fetch_sub(&replies_held, bytes);
    return data;
}

void session_reply_give(uint8_t *data, size_t bytes) {
    if (data == NULL) return;
    free(data);
    atomic_fetch_sub(&replies_held, bytes);
}

/* The serving thread alone sends, until it begins something that answers from another thread; it
 * says so before. */
static bool others_send;

void session_shares_output(void) {
    if (!others_send) others_send = true; /* once: they read it */
}

/* `start` is where the results begin that the task has written. */
static void answer(struct task *task, CUresult result, uint8_t *start, bool beside) {
    uint32_t pending = atomic_load(&pending_error) ? atomic_exchange(&pending_error, 0) : 0;
    bool large = task->large != NULL;
    struct reply reply = {.seq = task->header.seq,
                          .head = {(uint32_t)result, pending | (printed_any() ? WIRE_PRINTED : 0)},
                          .data = large ? task->large : start,
                          .bytes = large ? task->large_bytes : (size_t)(task->out.at - start),
                          .owned = large};
    figures_reply(&reply);
    bool lock = others_send;
    if (lock) pthread_mutex_lock(&session.out_lock);
    session.transport->reply(&reply, beside);
    if (lock) pthread_mutex_unlock(&session.out_lock);
}

/* ---- carrying out ---- */

static CUresult run(const struct operation *operation, struct task *task, uint8_t *space,
                    size_t room) {
    task->out = (struct writer){space, room, false};
    const uint8_t *payload = task->in.at;
    CUresult result;
    if (!moves_on || !times_answer(task, &result)) result = driver_run(operation, task);
    if (moves_on && result == CUDA_SUCCESS && !task->violated && !library_refused(task, space))
        kept_add(task, payload);
    if (task->violated) {
        fprintf(stderr, "egpu-executor: lease %s: a malformed call (op %u), the session ends\n",
                session.settings->lease, task->header.op);
        session_end(EXIT_VIOLATION);
    }
    return result;
}

/* A call in a thread of its own. */
struct beside {
    struct task task;
    const struct operation *operation;
    uint8_t *payload;
};

static void *wait_beside(void *argument) {
    struct beside *beside = argument;
    uint8_t space[8192];
    CUresult result = run(beside->operation, &beside->task, space, sizeof space);
    answer(&beside->task, result, space, true);
    atomic_fetch_sub(&beside_bytes, beside->task.header.len);
    free(beside->payload);
    free(beside);
    DRIVER(cuCtxSetCurrent, CUcontext)(NULL);
    atomic_fetch_sub(&waiters, 1);
    return NULL;
}

/* Hands a call that may wait to a thread of its own. False: carry it out here. */
static bool begin_beside(const struct operation *operation, const struct task *task,
                         const uint8_t *payload) {
    size_t bytes = task->header.len;
    if (atomic_load(&waiters) >= WAITERS || atomic_load(&beside_bytes) + bytes > BESIDE_BYTES)
        return false;
    struct beside *beside = malloc(sizeof *beside);
    uint8_t *copy = beside == NULL ? NULL : malloc(task->header.len + 1);
    if (copy != NULL) {
        memcpy(copy, payload, task->header.len);
        *beside = (struct beside){.task = *task, .operation = operation, .payload = copy};
        beside->task.in = (struct reader){copy, task->header.len, false};
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        bool library = operation->flags & OPERATION_BESIDE;
        pthread_attr_setstacksize(&attributes, library ? LIBRARY_STACK_BYTES : WAITER_STACK_BYTES);
        session_shares_output();
        atomic_fetch_add(&waiters, 1);
        atomic_fetch_add(&beside_bytes, bytes);
        if (pthread_create(&thread, &attributes, wait_beside, beside) == 0) return true;
        atomic_fetch_sub(&beside_bytes, bytes);
        atomic_fetch_sub(&waiters, 1);
    }
    free(copy);
    free(beside);
    return false;
}

/* A call of the driver. */
static void carry_out_call(const struct wire_header *header, const uint8_t *payload) {
    const struct operation *operation = operation_of(header->op);
    if (operation == NULL) session_violation("an unknown operation");
    struct task task = {.in = {payload, header->len, false},
                        .header = *header,
                        .context = current_context,
                        .mode = (CUstreamCaptureMode)current_mode};
    bool wanted = header->flags & WIRE_REPLY_WANTED;
    bool waits = operation->flags & OPERATION_BESIDE ||
                 (header->flags & WIRE_CONCURRENT && operation->flags & OPERATION_BLOCKS);
    if (wanted && waits && begin_beside(operation, &task, payload)) return;
    CUresult result = run(operation, &task, reply_space, sizeof reply_space);
    if (wanted) {
        answer(&task, result, reply_space, false);
        return;
    }
    session_reply_give(task.large, task.large_bytes);
    uint32_t none = 0;
    if (result != CUDA_SUCCESS)
        atomic_compare_exchange_strong(&pending_error, &none, (uint32_t)result);
}

/* All replies up to the number; and, where something follows, all up to the first word of it but
 * those that the other words name. */
static void received(const struct wire_header *header, const uint8_t *payload) {
    uint64_t words[1 + WIRE_MAX_MISSING] = {header->seq};
    if (header->len > sizeof words || header->len % sizeof *words != 0)
        session_violation("a malformed frame");
    if (header->len != 0) memcpy(words, payload, header->len);
    size_t missing = header->len / sizeof *words;
    stream_forget(header->seq, words[0], words + 1, missing == 0 ? 0 : missing - 1);
}

void session_frame(const struct wire_header *header, const uint8_t *payload) {
    switch (header->op) {
    case WIRE_RECEIVED: received(header, payload); return;
    case WIRE_CALLBACK_DONE: callback_ended(header->seq); return;
    case WIRE_GOODBYE: session_end(0);
    case WIRE_TRANSPORT: return; /* settled when the connection began */
    default: break;
    }
    if (header->seq <= session.taken) return; /* it came before a cut, too */
    if (header->seq != session.taken + 1) session_violation("a call is missing");
    session.taken = header->seq;
    figures_call(header);
    bool context = header->op == WIRE_SET_CONTEXT;
    if (!context && header->op != OP_CAPTURE_MODE) {
        carry_out_call(header, payload);
        return;
    }
    if (header->len != sizeof(uint64_t)) session_violation("a malformed frame");
    memcpy(context ? &current_context : &current_mode, payload, sizeof(uint64_t));
    if (current_mode > CU_STREAM_CAPTURE_MODE_RELAXED) session_violation("a malformed frame");
}

/* ---- moves ---- */

struct session_progress session_progress(void) {
    return (struct session_progress){session.taken, current_context, current_mode,
                                     atomic_load(&pending_error)};
}

void session_continue(const struct session_progress *progress) {
    session.taken = progress->taken;
    current_context = progress->context;
    current_mode = progress->mode;
    atomic_store(&pending_error, (uint32_t)progress->pending_error);
}

bool session_waits(void) { return atomic_load(&waiters) != 0; }

/* Takes the place of a session that was written down elsewhere, and says when it can. Its client
 * comes later. */
static bool rebuild(int control, bool ready) {
    struct moves_report report = {.good = 0};
    struct greeting greeting;
    int from;
    connection_is_moved();
    report.good = ready && sandbox_enter();
    if (!report.good) snprintf(report.why, sizeof report.why, "the target cannot begin a session");
    for (bool over = false; !over;) {
        if (!orders_report(control, &report) || !report.good ||
            !greeting_receive(control, &greeting, &from) || from < 0)
            return false;
        over = greeting.order == ORDER_REBUILD;
        report.good = session_rebuild(from, !over, report.why) &&
                      (!over || connection_start(control, -1, NULL));
        close(from);
    }
    return orders_report(control, &report) && report.good;
}

/* ---- the process ---- */

int session_store(void) { return session.settings->store; }
bool session_has_network(void) { return session.settings->network; }

static bool limit_process(int rules) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "egpu-session");
    struct rlimit none = {0, 0}, files = {512, 512};
    if (session.settings->movable) files = (struct rlimit){1024, 1024}; /* host.c keeps some */
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_NOFILE, &files);
    mallopt(M_MMAP_THRESHOLD, 8 << 20); /* buffers of copies come and go: their pages stay */
    mallopt(M_TRIM_THRESHOLD, 32 << 20);
    /* Other sessions of the lease are the same user: our memory is ours all the same. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return false;
    if (rules < 0) return true;
    bool held = landlock_enter(rules);
    if (!held) perror("egpu-executor: no Landlock");
    close(rules);
    return held;
}

int session_run(const struct settings *settings, int control) {
    session.settings = settings;
    if (!limit_process(settings->rules)) return EXIT_NO_DRIVER;
    shared_register();
    struct greeting greeting;
    int fd;
    if (!greeting_receive(control, &greeting, &fd)) return 0;
    bool moved = greeting.order == ORDER_PREPARE;
    if (fd < 0 && !moved) return 0;
    if (!handles_init() || !stream_open() || !shared_prepare()) return EXIT_NO_DRIVER;
    printed_begin();
    bool ready = driver_load(settings->driver) && connection_prepare();
    moves_on = settings->movable;
    if (moves_on) images_prepare();
    if (ready) {
        driver_warm();
        status_init(settings);
        if (moves_on) arena_begin(moved ? NULL : greeting.hello.session);
    }
    if (moved) {
        if (!rebuild(control, ready)) return EXIT_NO_DRIVER;
    } else if (!ready || !connection_start(control, fd, &greeting) || !sandbox_enter()) {
        greeting_refuse(fd, WIRE_STATUS_DRIVER);
        return EXIT_NO_DRIVER;
    }
    connection_await();
    session.transport->serve();
    return 0;
}
