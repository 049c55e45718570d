/* The connection of a session: the parent passes new ones on, WELCOME begins or resumes, and the
 * end of parent or client is the session's. */
#define _GNU_SOURCE
#include "executor/session/session.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"
#include "executor/moves/moves.h"

#define ANSWER_MS 2000   /* how long a client may take for what follows at once */
#define GOODBYE_US 20000 /* a client's end comes before what it has written last is read */
#define CONTROL_LOOK_MS 1000

/* How long a session that was moved waits for its client at least: it has to be led here first. */
#define MOVED_SECONDS 60
static int first_wait_seconds;

static bool may_begin; /* a session that was moved with its connection; under control_lock */

static uint8_t snapshot[WIRE_MAX_SNAPSHOT];
static size_t snapshot_bytes;

static pthread_mutex_t control_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t control_news; /* by the clock that nobody sets */
static int next_connection = -1;
static struct greeting next_greeting;
static _Atomic int watched = -1; /* the connection whose end is the client's end (shared memory) */

/* Gets what the parent passes on, and sees the end of parent and client. */
static void *control_thread(void *argument) {
    int control = (int)(intptr_t)argument;
    for (;;) {
        struct pollfd ready[2] = {{.fd = control, .events = POLLIN},
                                  {.fd = atomic_load(&watched), .events = POLLRDHUP}};
        poll(ready, 2, CONTROL_LOOK_MS);
        if (ready[1].fd >= 0 && ready[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) {
            usleep(GOODBYE_US); /* its GOODBYE may be in the ring */
            session_end(EXIT_GONE);
        }
        if (ready[0].revents == 0) continue;
        struct greeting greeting;
        int fd;
        if (!greeting_receive(control, &greeting, &fd)) session_end(0);
        if (greeting.order != ORDER_CONNECTION) {
            orders_carry_out(control, greeting.order, greeting.hello.received, fd);
            continue;
        }
        if (fd < 0) session_end(0);
        pthread_mutex_lock(&control_lock);
        if (next_connection >= 0) close(next_connection);
        next_connection = fd;
        next_greeting = greeting;
        if (session.connection >= 0) shutdown(session.connection, SHUT_RDWR);
        pthread_cond_broadcast(&control_news);
        pthread_mutex_unlock(&control_lock);
    }
    return NULL;
}

bool connection_prepare(void) {
    struct writer out = {snapshot, sizeof snapshot, false};
    bool good = driver_snapshot(&out);
    snapshot_bytes = sizeof snapshot - out.left;
    return good;
}

bool connection_start(int control, int fd, const struct greeting *greeting) {
    next_connection = fd;
    if (greeting != NULL) next_greeting = *greeting;
    pthread_t thread;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&control_news, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return pthread_create(&thread, NULL, control_thread, (void *)(intptr_t)control) == 0;
}

const uint8_t *connection_snapshot(size_t *bytes) {
    *bytes = snapshot_bytes;
    return snapshot;
}

void connection_is_moved(void) {
    session.transport = &transport_stream;
    first_wait_seconds = MOVED_SECONDS;
}

/* WELCOME, and what the client makes of it. */
static bool welcome(const struct greeting *greeting) {
    struct {
        struct wire_header header;
        struct wire_welcome welcome;
    } out = {.header = {.op = WIRE_WELCOME,
                        .len = (uint32_t)(sizeof out.welcome + snapshot_bytes),
                        .seq = session.taken},
             .welcome = {WIRE_STATUS_WELCOME, WIRE_VERSION, 0, (uint32_t)snapshot_bytes}};
    int memory = -1;
    if (session.over_unix && greeting->hello.features & WIRE_FEATURE_SHARED &&
        session.transport == NULL)
        memory = shared_create();
    out.welcome.features = memory >= 0 ? WIRE_FEATURE_SHARED : 0;
    struct iovec parts[] = {{&out, sizeof out}, {snapshot, snapshot_bytes}};
    struct {
        struct wire_header header;
        uint32_t kind, zero;
    } chosen;
    bool good = descriptor_send_all(session.connection, parts, 2, memory, 0) &&
                descriptor_receive_all(session.connection, &chosen, sizeof chosen, NULL,
                                       clock_now_ms() + ANSWER_MS) &&
                chosen.header.op == WIRE_TRANSPORT && chosen.header.len == 8;
    if (good && chosen.kind == 1) {
        good = memory >= 0 && shared_open(memory);
        if (good) atomic_store(&watched, session.connection);
        if (good && moves_on) session.memory = memory;
    } else if (good) {
        session.transport = &transport_stream;
    }
    if (memory >= 0 && memory != session.memory) close(memory);
    return good;
}

/* Until the parent has passed one on, or says that the session's own is in use. Under control_lock.
 */
static void await_next(void) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += first_wait_seconds > session.settings->grace_seconds
                        ? first_wait_seconds
                        : session.settings->grace_seconds;
    while (next_connection < 0 && !may_begin)
        if (pthread_cond_timedwait(&control_news, &control_lock, &until) == ETIMEDOUT &&
            next_connection < 0 && !may_begin)
            session_end(EXIT_GRACE);
}

void connection_begin(void) {
    pthread_mutex_lock(&control_lock);
    may_begin = session.transport == &transport_shared;
    pthread_cond_broadcast(&control_news);
    pthread_mutex_unlock(&control_lock);
}

/* Goes on with the shared memory and the connection that came along. */
static void await_begin(void) {
    pthread_mutex_lock(&control_lock);
    await_next();
    if (!may_begin) session_end(EXIT_GRACE); /* nobody else may come in between */
    pthread_mutex_unlock(&control_lock);
    shared_begin();
    atomic_store(&watched, session.connection);
}

void connection_await(void) {
    if (session.transport == &transport_shared) {
        await_begin();
        return;
    }
    for (bool good = false; !good;) {
        pthread_mutex_lock(&control_lock);
        await_next();
        pthread_mutex_lock(&session.out_lock);
        if (session.connection >= 0) close(session.connection);
        session.connection = next_connection;
        next_connection = -1;
        first_wait_seconds = 0;
        struct greeting greeting = next_greeting;
        pthread_mutex_unlock(&control_lock);
        session.over_unix = greeting.over_unix;
        stream_reset();
        good = welcome(&greeting);
        pthread_mutex_unlock(&session.out_lock);
        if (good && greeting.hello.flags & WIRE_HELLO_RESUME)
            stream_resume(greeting.hello.received);
    }
}

int session_receive_fd(void) {
    if (session.transport != &transport_shared) return -1;
    char mark;
    int fd;
    int64_t deadline = clock_now_ms() + ANSWER_MS;
    return descriptor_receive_all(session.connection, &mark, 1, &fd, deadline) ? fd : -1;
}
