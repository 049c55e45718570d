/* One server: how frames get there and back. See docs/wire.md.
 *
 * Sending. A call is encoded in place: into the shared ring, or into a private one from which a
 * socket is fed. The private ring keeps what the executor has not taken yet, so that a new
 * connection can go on where the old one broke. Receiving. Whoever waits for a reply reads for
 * everybody (`reading`), and hands over what is somebody else's.
 */
#define _GNU_SOURCE
#include "client.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RING_BYTES (4u << 20)
#define INPUT_BYTES (256u << 10)
#define BATCH_BYTES (32u << 10)
#define FIRST_BATCH_NS 20000 /* how long the first call after a rest waits for others */
#define BATCH_NS 50000       /* and how often is looked for more, as long as calls come */
#define IDLE_BATCHES 4
#define GRACE_SECONDS 30
#define RETRY_MS 100
#define HELLO_MS 2000
#define LOOK_MS 100 /* how often somebody who waits looks whether the other side is alive */

struct link *links[MAX_SERVERS];
unsigned link_count;

static _Atomic int initialised; /* the pid, once cuInit has succeeded */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t now_ms(void) { return now_ns() / 1000000; }

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* A program that has one thread needs no lock; glibc says so (2.32 and later). Nobody makes a
 * thread under this one. */
extern char __libc_single_threaded __attribute__((weak));

static bool alone(void) { return &__libc_single_threaded != NULL && __libc_single_threaded; }

static void lock_sending(struct link *link) {
    if (alone()) return;
    pthread_mutex_lock(&link->send_lock);
    link->send_locked = true;
}

static void unlock_sending(struct link *link) {
    if (!link->send_locked) return;
    link->send_locked = false;
    pthread_mutex_unlock(&link->send_lock);
}

CUresult call_ready(void) {
    return atomic_load_explicit(&initialised, memory_order_acquire) ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_NOT_INITIALIZED;
}

static void die(struct link *link, const char *why) {
    if (atomic_exchange(&link->dead, true)) return;
    fprintf(stderr, "egpu: the lease of %s is lost: %s\n", link->path, why);
    if (link->fd >= 0) shutdown(link->fd, SHUT_RDWR);
    pthread_mutex_lock(&link->receive_lock);
    pthread_cond_broadcast(&link->received);
    pthread_mutex_unlock(&link->receive_lock);
}

/* ---- connecting ---- */

static bool read_file(const char *path, char *to, size_t room, size_t *length) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, to, room - 1);
    close(fd);
    if (got < 0) return false;
    while (got > 0 && (to[got - 1] == '\n' || to[got - 1] == ' ' || to[got - 1] == '\t' ||
                       to[got - 1] == '\r'))
        got--;
    to[got] = 0;
    *length = (size_t)got;
    return true;
}

static int connect_to(struct link *link) {
    size_t length = strlen(link->path);
    if (length > 5 && strcmp(link->path + length - 5, ".addr") == 0) {
        char text[64], host[48];
        unsigned port;
        size_t got;
        if (!read_file(link->path, text, sizeof text, &got) ||
            sscanf(text, "%47[0-9.]:%u", host, &port) != 2)
            return -1;
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        if (inet_pton(AF_INET, host, &to.sin_addr) != 1 ||
            (ntohl(to.sin_addr.s_addr) >> 24) != 127) {
            errno = EACCES; /* nothing but loopback without TLS */
            return -1;
        }
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
        if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
        if (fd >= 0) close(fd);
        return -1;
    }
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char through[64];
    int folder = -1;
    if (length < sizeof to.sun_path) {
        memcpy(to.sun_path, link->path, length + 1);
    } else { /* socket addresses are short: go through the folder's descriptor */
        char parent[sizeof link->path];
        memcpy(parent, link->path, length + 1);
        char *slash = strrchr(parent, '/');
        *slash = 0;
        folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
        snprintf(through, sizeof through, "/proc/self/fd/%d/%.40s", folder, slash + 1);
        memcpy(to.sun_path, through, strlen(through) + 1);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int failed = fd < 0 ? -1 : connect(fd, (struct sockaddr *)&to, sizeof to);
    if (folder >= 0) close(folder);
    if (failed == 0) return fd;
    int saved = errno;
    if (fd >= 0) close(fd);
    errno = saved;
    return -1;
}

static bool send_all(int fd, const void *data, size_t bytes) {
    const uint8_t *at = data;
    while (bytes != 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

/* Exactly `bytes`, with at most one descriptor beside them. */
static bool receive_all(int fd, void *data, size_t bytes, int *descriptor, int64_t deadline_ms) {
    uint8_t *at = data;
    while (bytes != 0) {
        int64_t left = deadline_ms - now_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&ready, 1, (int)left) <= 0) return false;
        union {
            char space[CMSG_SPACE(sizeof(int))];
            struct cmsghdr header;
        } control;
        struct iovec part = {at, bytes};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        /* room for one: what is beyond is closed on its way */
        if (descriptor != NULL && *descriptor < 0) {
            message.msg_control = &control;
            message.msg_controllen = CMSG_LEN(sizeof(int));
        }
        ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
        if (beside != NULL && beside->cmsg_type == SCM_RIGHTS)
            memcpy(descriptor, CMSG_DATA(beside), sizeof(int));
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static bool read_snapshot(struct link *link, const uint8_t *bytes, size_t length) {
    struct reader in = {bytes, length, false};
    struct wire_snapshot snapshot;
    get_bytes(&in, &snapshot, sizeof snapshot);
    if (in.bad || snapshot.device_count > WIRE_MAX_DEVICES) return false;
    struct device *devices =
        calloc(snapshot.device_count ? snapshot.device_count : 1, sizeof *devices);
    if (devices == NULL) return false;
    for (unsigned i = 0; i < snapshot.device_count && !in.bad; i++) {
        get_bytes(&in, &devices[i].is, sizeof devices[i].is);
        uint32_t count = devices[i].is.attribute_count;
        const int32_t *values = count > WIRE_ATTRIBUTES ? NULL : take(&in, count * sizeof *values);
        if (values == NULL) in.bad = true;
        for (unsigned a = 0; a < WIRE_ATTRIBUTES; a++) devices[i].attributes[a] = WIRE_NO_ATTRIBUTE;
        if (values != NULL) memcpy(devices[i].attributes, values, count * sizeof *values);
        devices[i].is.name[sizeof devices[i].is.name - 1] =
            devices[i].is.pci[sizeof devices[i].is.pci - 1] = 0;
    }
    if (in.bad) {
        free(devices);
        return false;
    }
    link->devices = devices;
    link->device_count = snapshot.device_count;
    link->driver_version = snapshot.driver_version;
    return true;
}

/* All replies up to here have come. */
static uint64_t received_so_far(struct link *link) {
    pthread_mutex_lock(&link->receive_lock);
    uint64_t received = link->last_reply;
    for (const struct call *call = link->waiting; call != NULL; call = call->next)
        if (call->seq <= received) received = call->seq - 1;
    pthread_mutex_unlock(&link->receive_lock);
    return received;
}

enum greeting { GREETED, TRY_AGAIN, REFUSED };

/* HELLO and WELCOME on a new socket. */
static enum greeting greet(struct link *link, int fd) {
    struct {
        struct wire_header header;
        struct wire_hello hello;
        char token[WIRE_MAX_TOKEN + 1];
    } out = {.header = {.op = WIRE_HELLO},
             .hello = {.magic = WIRE_MAGIC,
                       .version = WIRE_VERSION,
                       .table = EGPU_WIRE_TABLE_HASH,
                       .pid = (uint32_t)getpid()}};
    char beside[sizeof link->path + 8];
    size_t length = 0;
    int stem = (int)(strrchr(link->path, '.') - link->path);
    snprintf(beside, sizeof beside, "%.*s.token", stem, link->path);
    if (!read_file(beside, out.token, sizeof out.token, &length)) length = 0;
    memcpy(out.hello.session, link->session, sizeof link->session);
    bool resume = link->connected_once;
    out.hello.features = resume ? 0 : WIRE_FEATURE_SHARED;
    out.hello.flags = resume ? WIRE_HELLO_RESUME : 0;
    out.hello.token_length = (uint32_t)length;
    out.hello.received = resume ? received_so_far(link) : 0;
    out.header.len = (uint32_t)(sizeof out.hello + length);
    if (!send_all(fd, &out, sizeof out.header + out.header.len)) return TRY_AGAIN;

    struct {
        struct wire_header header;
        struct wire_welcome welcome;
    } in;
    int descriptor = -1;
    int64_t deadline = now_ms() + (resume ? HELLO_MS : GRACE_SECONDS * 1000);
    bool heard = receive_all(fd, &in, sizeof in, &descriptor, deadline);
    uint8_t *snapshot = NULL;
    enum greeting greeting = TRY_AGAIN;
    if (!heard) goto out;
    greeting = REFUSED;
    if (in.header.op != WIRE_WELCOME || in.welcome.snapshot_length > WIRE_MAX_SNAPSHOT ||
        in.header.len != sizeof in.welcome + in.welcome.snapshot_length)
        goto out;
    if (in.welcome.status != WIRE_STATUS_WELCOME) {
        static const char *const why[] = {"",
                                          "the token was refused",
                                          "versions of client and executor differ",
                                          "the session is not known",
                                          "too many sessions",
                                          "the executor has no driver"};
        fprintf(stderr, "egpu: %s: %s\n", link->path,
                in.welcome.status < 6 ? why[in.welcome.status] : "refused");
        goto out;
    }
    snapshot = malloc(in.welcome.snapshot_length + 1);
    if (snapshot == NULL ||
        !receive_all(fd, snapshot, in.welcome.snapshot_length, NULL, deadline)) {
        greeting = TRY_AGAIN;
        goto out;
    }
    if (!resume && !read_snapshot(link, snapshot, in.welcome.snapshot_length)) goto out;
    if (descriptor >= 0) link->direct = true;
    bool shared = !resume && descriptor >= 0 && shared_map(&link->shared, descriptor);
    if (!resume) link->uses_shared = shared;
    if (shared) shared_reader_init(&link->shared.control->client);
    struct {
        struct wire_header header;
        uint32_t kind, zero;
    } transport = {.header = {.op = WIRE_TRANSPORT, .len = 8}, .kind = shared};
    atomic_store(&link->taken, in.header.seq);
    greeting = send_all(fd, &transport, sizeof transport) ? GREETED : TRY_AGAIN;
out:
    free(snapshot);
    if (descriptor >= 0) close(descriptor);
    return greeting;
}

static void use_socket(struct link *link, int fd) {
    struct timeval look = {.tv_usec = LOOK_MS * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
    int old = link->fd;
    link->fd = fd;
    if (old >= 0) close(old);
}

/* ---- the private ring of a stream ---- */

/* Forgets what has been taken. Under send_lock. */
static void trim(struct link *link) {
    uint64_t taken = atomic_load_explicit(&link->taken, memory_order_acquire);
    uint64_t sent = atomic_load_explicit(&link->sent, memory_order_acquire);
    while (link->acknowledged < sent) {
        const struct wire_header *header =
            (const void *)(link->ring + link->acknowledged % RING_BYTES);
        if (header->seq > taken && header->op >= WIRE_SET_CONTEXT) return;
        uint64_t end = link->acknowledged + sizeof *header + header->len;
        if (link->external_first != link->external_end) {
            struct external *external = &link->externals[link->external_first % MAX_EXTERNALS];
            if (external->start == link->acknowledged) {
                end = external->end;
                if (end > sent || link->external_sent == link->external_first) return;
                link->external_first++;
            }
        }
        if (end > sent) return; /* partly sent */
        link->acknowledged = end;
    }
}

/* Feeds the socket with everything that waits, and with what comes meanwhile. Under feed_lock.
 * False: it broke. */
static bool feed(struct link *link) {
    for (;;) {
        uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire), from = link->sent;
        struct external *external = NULL;
        if (link->external_sent !=
            atomic_load_explicit(&link->external_end, memory_order_acquire)) {
            external = &link->externals[link->external_sent % MAX_EXTERNALS];
            if (external->end > tail) external = NULL; /* written after we looked */
        }
        if (from == tail && external == NULL) return true;
        uint64_t until = external != NULL ? external->end : tail;
        struct iovec parts[2] = {{link->ring + from % RING_BYTES, until - from}};
        size_t count = 1;
        if (external != NULL) {
            parts[1] = (struct iovec){(void *)(uintptr_t)(external->data + link->external_offset),
                                      external->bytes - link->external_offset};
            count = 2;
        }
        struct msghdr message = {.msg_iov = parts[0].iov_len ? parts : parts + 1,
                                 .msg_iovlen = parts[0].iov_len ? count : count - 1};
        ssize_t sent = sendmsg(link->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        /* a copy from memory that is not there: elsewhere, that is a segmentation fault */
        if (sent < 0 && errno == EFAULT) abort();
        if (sent <= 0) return false;
        size_t inside = (size_t)sent < parts[0].iov_len ? (size_t)sent : parts[0].iov_len;
        atomic_store_explicit(&link->sent, from + inside, memory_order_release);
        if (external == NULL) continue;
        link->external_offset += (size_t)sent - inside;
        if (link->external_offset == external->bytes && from + inside == external->end) {
            link->external_offset = 0;
            link->external_sent++;
        }
    }
}

static bool unsent_bytes(struct link *link) {
    return link->sent != link->tail || link->external_sent != link->external_end;
}

/* The role of the reader: one thread has it, for all. */
static bool start_reading(struct link *link) {
    bool nobody = false;
    if (!alone()) return atomic_compare_exchange_strong(&link->reading, &nobody, true);
    if (atomic_load_explicit(&link->reading, memory_order_relaxed)) return false;
    atomic_store_explicit(&link->reading, true, memory_order_relaxed);
    return true;
}

/* Not under receive_lock. */
static void stop_reading(struct link *link) {
    atomic_store_explicit(&link->reading, false,
                          alone() ? memory_order_relaxed : memory_order_seq_cst);
    if (atomic_load(&link->sleeping) == 0) return;
    pthread_mutex_lock(&link->receive_lock);
    pthread_cond_broadcast(&link->received);
    pthread_mutex_unlock(&link->receive_lock);
}

/* Until whoever reads has read something, or nobody does. Under receive_lock. */
static void await_reader(struct link *link) {
    atomic_fetch_add(&link->sleeping, 1);
    if (atomic_load(&link->reading)) pthread_cond_wait(&link->received, &link->receive_lock);
    atomic_fetch_sub(&link->sleeping, 1);
}

/* A new connection for the session, for as long as the grace lasts. Under send_lock, and not
 * reading. */
static void recover(struct link *link) {
    shutdown(link->fd, SHUT_RDWR); /* whoever reads from it comes back */
    pthread_mutex_lock(&link->receive_lock);
    while (!start_reading(link)) await_reader(link);
    pthread_mutex_unlock(&link->receive_lock);
    pthread_mutex_lock(&link->feed_lock);
    int64_t deadline = now_ms() + GRACE_SECONDS * 1000;
    const char *lost = NULL;
    while (!atomic_load(&link->dead)) {
        int fd = connect_to(link);
        int error = errno;
        enum greeting greeting = fd < 0 ? TRY_AGAIN : greet(link, fd);
        if (greeting == GREETED) {
            use_socket(link, fd);
            trim(link);
            link->sent = link->acknowledged;
            link->external_sent = link->external_first;
            link->external_offset = 0;
            link->input_head = link->input_tail = link->skip = 0;
            atomic_store(&link->broken, false);
            if (feed(link)) break;
            continue;
        }
        if (fd >= 0) close(fd);
        if (greeting == REFUSED)
            lost = "the executor does not know the session";
        else if (fd < 0 && link->direct)
            lost = strerror(error);
        else if (now_ms() > deadline)
            lost = "no connection within the grace period";
        if (lost != NULL) break;
        usleep(RETRY_MS * 1000);
    }
    pthread_mutex_unlock(&link->feed_lock);
    stop_reading(link);
    if (lost != NULL) die(link, lost);
}

/* Sends all that is written; or does nothing if somebody else is sending and `wait` is false: he
 * goes on until nothing is left. */
static bool fed(struct link *link, bool wait) {
    if (wait)
        pthread_mutex_lock(&link->feed_lock);
    else if (pthread_mutex_trylock(&link->feed_lock) != 0)
        return true;
    bool good = !atomic_load(&link->broken) && feed(link);
    pthread_mutex_unlock(&link->feed_lock);
    return good;
}

/* Under send_lock. */
static void flush_locked(struct link *link) {
    if (link->uses_shared) return;
    if (!fed(link, true)) recover(link);
}

void link_flush(struct link *link) {
    lock_sending(link);
    if (!atomic_load(&link->dead) && unsent_bytes(link)) flush_locked(link);
    unlock_sending(link);
}

/* What is posted and not followed by anything goes out after a moment: a shorter one when the GPU
 * may have nothing to do. */
static void *flusher(void *argument) {
    struct link *link = argument;
    prctl(PR_SET_NAME, "egpu-flush");
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (!atomic_load(&link->dead)) {
        while (atomic_load(&link->unsent) == 0 && !atomic_load(&link->dead)) {
            struct timespec second = {1, 0};
            syscall(SYS_futex, &link->unsent, FUTEX_WAIT_PRIVATE, 0, &second, NULL, 0);
        }
        /* Being woken has taken part of the time, often more than that; a sleep for the rest would
         * take as long again. */
        while (now_ns() < atomic_load_explicit(&link->unsent_since, memory_order_relaxed) +
                              FIRST_BATCH_NS &&
               unsent_bytes(link))
            pause_briefly();
        struct timespec batch = {0, 0};
        /* stays awake while calls keep coming: being woken costs the program */
        for (int idle = 0; idle < IDLE_BATCHES; idle++) {
            if (batch.tv_nsec) nanosleep(&batch, NULL);
            batch.tv_nsec = BATCH_NS;
            if (!unsent_bytes(link) || atomic_load(&link->dead)) continue;
            /* it broke: under the first lock, whoever comes first begins anew */
            if (!fed(link, false)) {
                lock_sending(link);
                if (!atomic_load(&link->dead)) flush_locked(link);
                unlock_sending(link);
            }
            idle = 0;
        }
        lock_sending(link); /* nobody who saw us awake has written and gone */
        if (!unsent_bytes(link) || atomic_load(&link->dead)) atomic_store(&link->unsent, 0);
        unlock_sending(link);
    }
    return NULL;
}

/* ---- receiving ---- */

void callback_arrived(struct link *link, uint64_t number, const struct wire_callback *callback);

static void deliver(struct call *call, const struct wire_reply *reply, const uint8_t *data,
                    size_t bytes) {
    call->result = (CUresult)reply->result;
    if (call->into != NULL) {
        call->into_got = bytes < call->into_bytes ? bytes : call->into_bytes;
        memcpy(call->into, data, call->into_got);
    } else {
        call->reply = bytes <= sizeof call->small ? call->small : malloc(bytes);
        call->reply_bytes = call->reply == NULL ? 0 : bytes;
        if (call->reply_bytes) memcpy(call->reply, data, bytes);
        call->in = (struct reader){call->reply, call->reply_bytes, false};
    }
    call->done = true;
}

/* One frame whose payload is all there. Whose reply `mine` is knows it without a look at who else
 * waits. */
static void dispatch(struct link *link, const struct wire_header *header, const uint8_t *payload,
                     struct call *mine) {
    if (header->op == WIRE_CALLBACK && header->len == sizeof(struct wire_callback)) {
        struct wire_callback callback;
        memcpy(&callback, payload, sizeof callback);
        callback_arrived(link, header->seq, &callback);
        return;
    }
    if (header->op == WIRE_PROGRESS) {
        if (header->seq > atomic_load(&link->taken)) atomic_store(&link->taken, header->seq);
        return;
    }
    if (header->op != WIRE_REPLY || header->len < sizeof(struct wire_reply)) return;
    /* calls are begun in order */
    if (header->seq > atomic_load(&link->taken)) atomic_store(&link->taken, header->seq);
    struct wire_reply reply;
    memcpy(&reply, payload, sizeof reply);
    if (reply.pending != 0) {
        uint32_t none = 0;
        atomic_compare_exchange_strong(&link->pending_error, &none, reply.pending);
    }
    size_t bytes = header->len - sizeof reply;
    const uint8_t *data = payload + sizeof reply;
    if (mine != NULL && mine->seq == header->seq) {
        deliver(mine, &reply, data, bytes);
        return;
    }
    pthread_mutex_lock(&link->receive_lock);
    struct call *call = link->waiting;
    while (call != NULL && call->seq != header->seq) call = call->next;
    if (call != NULL) deliver(call, &reply, data, bytes);
    /* we may go on reading for long */
    if (call != NULL && atomic_load(&link->sleeping)) pthread_cond_broadcast(&link->received);
    pthread_mutex_unlock(&link->receive_lock);
}

/* A long reply goes straight to where the program wants it. True if it did. */
static bool receive_into(struct link *link, const struct wire_header *header, bool *failed) {
    if (header->op != WIRE_REPLY || header->len <= sizeof(struct wire_reply)) return false;
    uint64_t have = link->input_tail - link->input_head;
    size_t prefix = sizeof *header + sizeof(struct wire_reply);
    if (have < prefix || have >= sizeof *header + header->len) return false;
    pthread_mutex_lock(&link->receive_lock);
    struct call *call = link->waiting;
    while (call != NULL && call->seq != header->seq) call = call->next;
    pthread_mutex_unlock(&link->receive_lock);
    size_t bytes = header->len - sizeof(struct wire_reply);
    if (call == NULL || call->into == NULL || bytes > call->into_bytes) return false;
    size_t here = have - prefix;
    struct wire_reply reply;
    memcpy(&reply, link->input + (link->input_head + sizeof *header) % INPUT_BYTES, sizeof reply);
    memcpy(call->into, link->input + (link->input_head + prefix) % INPUT_BYTES, here);
    link->input_head = link->input_tail;
    while (here < bytes) {
        ssize_t got = recv(link->fd, (uint8_t *)call->into + here, bytes - here, MSG_WAITALL);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
            if (!atomic_load(&link->dead)) continue;
        }
        if (got <= 0) {
            *failed = true;
            return true;
        }
        here += (size_t)got;
    }
    if (header->seq > atomic_load(&link->taken)) atomic_store(&link->taken, header->seq);
    pthread_mutex_lock(&link->receive_lock);
    call->result = (CUresult)reply.result;
    call->into_got = bytes;
    call->done = true;
    pthread_mutex_unlock(&link->receive_lock);
    if (reply.pending != 0) {
        uint32_t none = 0;
        atomic_compare_exchange_strong(&link->pending_error, &none, reply.pending);
    }
    return true;
}

static void receive_stream(struct link *link) {
    ssize_t got = recv(link->fd, link->input + link->input_tail % INPUT_BYTES,
                       INPUT_BYTES - (link->input_tail - link->input_head), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    bool failed = got <= 0;
    if (!failed && link->skip != 0) {
        uint64_t skipped = (uint64_t)got < link->skip ? (uint64_t)got : link->skip;
        link->skip -= skipped;
        link->input_head += skipped;
    }
    if (!failed) link->input_tail += (uint64_t)got;
    while (!failed && link->input_tail - link->input_head >= sizeof(struct wire_header)) {
        struct wire_header header;
        memcpy(&header, link->input + link->input_head % INPUT_BYTES, sizeof header);
        if (header.len > WIRE_MAX_PAYLOAD) failed = true;
        if (failed || receive_into(link, &header, &failed)) continue;
        if (link->input_tail - link->input_head < sizeof header + header.len) {
            if (sizeof header + header.len <= INPUT_BYTES ||
                link->input_tail - link->input_head < sizeof header + sizeof(struct wire_reply))
                break;
            /* A long reply that came a second time, after a cut: nobody waits for it any more. */
            link->skip = sizeof header + header.len - (link->input_tail - link->input_head);
            link->input_head = link->input_tail;
            break;
        }
        dispatch(link, &header, link->input + (link->input_head + sizeof header) % INPUT_BYTES,
                 NULL);
        link->input_head += sizeof header + header.len;
    }
    if (failed) atomic_store(&link->broken, true);
}

static void receive_shared(struct link *link, struct call *mine) {
    struct shared_control *control = link->shared.control;
    uint64_t head = atomic_load_explicit(&control->reply_head, memory_order_relaxed);
    if (!shared_wait(&control->replies, head, &control->client, LOOK_MS)) {
        char byte;
        ssize_t got = recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            die(link, "the executor is gone");
        return;
    }
    struct wire_header header;
    uint64_t last[SHARED_SHORT_WORDS],
        tail = atomic_load_explicit(&control->replies.at, memory_order_acquire),
        ready = tail - head;
    const uint8_t *at = link->shared.replies + head % SHARED_RING_BYTES;
    if (shared_beside(&control->replies, head, tail, last)) at = (const uint8_t *)last;
    memcpy(&header, at, sizeof header);
    uint64_t frame = shared_frame(header.len);
    /* also: there would be something to read when it is long dead */
    if (ready > SHARED_RING_BYTES || frame > ready) {
        die(link, "the executor sent nonsense");
        return;
    }
    dispatch(link, &header, at + sizeof header, mine);
    atomic_store_explicit(&control->reply_head, head + frame, memory_order_release);
}

static void receive_once(struct link *link) {
    if (link->uses_shared)
        receive_shared(link, NULL);
    else
        receive_stream(link);
}

/* Reads once, or waits while somebody else does. Under receive_lock. */
static void take_part(struct link *link) {
    if (!start_reading(link)) {
        await_reader(link);
        return;
    }
    pthread_mutex_unlock(&link->receive_lock);
    receive_once(link);
    stop_reading(link);
    pthread_mutex_lock(&link->receive_lock);
}

void link_serve(struct link *link) {
    pthread_mutex_lock(&link->receive_lock);
    bool broken = atomic_load(&link->broken);
    if (!broken) take_part(link);
    pthread_mutex_unlock(&link->receive_lock);
    if (atomic_load(&link->broken)) {
        lock_sending(link);
        if (atomic_load(&link->broken) && !atomic_load(&link->dead)) recover(link);
        unlock_sending(link);
    }
}

/* ---- calls ---- */

/* When all calls have been taken the ring is used from its beginning again: that part of it is in
 * the cache. Under send_lock. */
static void begin_again(struct link *link) {
    uint64_t tail = link->tail;
    if (tail % RING_BYTES < BATCH_BYTES || link->sent != tail ||
        link->external_sent != link->external_end)
        return;
    if (atomic_load_explicit(&link->taken, memory_order_acquire) != link->next_seq - 1 ||
        pthread_mutex_trylock(&link->feed_lock) != 0)
        return;
    link->acknowledged = (tail + RING_BYTES - 1) / RING_BYTES * RING_BYTES;
    link->external_first = link->external_end;
    atomic_store_explicit(&link->tail, link->acknowledged, memory_order_relaxed);
    atomic_store_explicit(&link->sent, link->acknowledged, memory_order_relaxed);
    pthread_mutex_unlock(&link->feed_lock);
}

/* Room for a frame. Under send_lock. */
static uint8_t *room_for(struct link *link, size_t frame) {
    if (link->uses_shared) {
        struct shared_control *control = link->shared.control;
        size_t whole = shared_frame(frame - sizeof(struct wire_header));
        int64_t next_look = 0;
        for (unsigned spins = 0; link->tail + whole - link->request_head > SHARED_RING_BYTES;) {
            link->request_head = atomic_load_explicit(&control->request_head, memory_order_acquire);
            if (atomic_load(&link->dead)) return NULL;
            if (++spins < 200) continue;
            usleep(20);
            if (next_look == 0) next_look = now_ms() + LOOK_MS;
            if (now_ms() < next_look) continue;
            next_look = now_ms() + LOOK_MS;
            char byte;
            if (recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
                die(link, "the executor is gone");
        }
        return link->shared.requests + link->tail % SHARED_RING_BYTES;
    }
    begin_again(link);
    while (link->tail + frame - link->acknowledged > RING_BYTES ||
           link->external_end - link->external_first >= MAX_EXTERNALS) {
        trim(link);
        if (link->tail + frame - link->acknowledged <= RING_BYTES &&
            link->external_end - link->external_first < MAX_EXTERNALS)
            break;
        if (atomic_load(&link->dead)) return NULL;
        flush_locked(link);
        pthread_mutex_lock(&link->receive_lock);
        take_part(link);
        pthread_mutex_unlock(&link->receive_lock);
        if (atomic_load(&link->broken) && !atomic_load(&link->dead)) recover(link);
    }
    return link->ring + link->tail % RING_BYTES;
}

/* Makes a frame visible. Under send_lock. */
static void publish(struct link *link, size_t frame, const void *at) {
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed);
    if (link->uses_shared) {
        struct shared_control *control = link->shared.control;
        uint8_t *slot = link->shared.requests + tail % SHARED_RING_BYTES;
        tail += shared_frame(frame - sizeof(struct wire_header));
        atomic_store_explicit(&link->tail, tail, memory_order_relaxed);
        if (at == link->short_frame)
            shared_publish_short(&control->requests, tail, link->short_frame, frame, slot);
        else
            shared_publish(&control->requests, tail);
        shared_wake(&control->executor);
        return;
    }
    atomic_store_explicit(&link->tail, tail + frame, memory_order_release);
}

static bool control_frame(struct link *link, uint16_t op, uint64_t seq, const void *payload,
                          uint32_t bytes) {
    uint8_t *at = room_for(link, sizeof(struct wire_header) + bytes);
    if (at == NULL) return false;
    put_header(at, op, 0, bytes, seq);
    if (bytes) memcpy(at + sizeof(struct wire_header), payload, bytes);
    publish(link, sizeof(struct wire_header) + bytes, at);
    return true;
}

CUresult call_begin(struct call *call, size_t bytes, enum call_mode mode) {
    uint64_t context = context_current();
    if (call->link == NULL) call->link = context ? links[wire_server(context)] : links[0];
    struct link *link = call->link;
    if (bytes > BATCH_BYTES * 8) return CUDA_ERROR_INVALID_VALUE;
    if (mode == CALL_POSTED) {
        CUresult error = context_error();
        if (error != CUDA_SUCCESS) return error;
    }
    lock_sending(link);
    if (atomic_load_explicit(&link->dead, memory_order_relaxed)) goto dead;
    if (!pthread_equal(link->owner, pthread_self()))
        atomic_store_explicit(&link->concurrent, true, memory_order_relaxed);
    uint64_t wanted =
        context && links[wire_server(context)] == link ? wire_without_server(context) : 0;
    if (wanted != link->wire_context) {
        if (!control_frame(link, WIRE_SET_CONTEXT, link->next_seq, &wanted, sizeof wanted))
            goto dead;
        link->next_seq++;
        link->wire_context = wanted;
    }
    /* the executor may forget the replies that have come */
    if (mode == CALL_WAITS && !link->uses_shared) {
        uint64_t received = received_so_far(link);
        if (received > link->received_told) {
            link->received_told = received;
            if (!control_frame(link, WIRE_RECEIVED, received, NULL, 0)) goto dead;
        }
    }
    uint8_t *at = room_for(link, sizeof(struct wire_header) + bytes);
    if (at == NULL) goto dead;
    if (mode == CALL_WAITS && link->uses_shared &&
        sizeof(struct wire_header) + bytes <= sizeof link->short_frame)
        at = (uint8_t *)link->short_frame;
    call->header = (void *)at;
    call->out = (struct writer){at + sizeof(struct wire_header), bytes, false};
    call->seq = link->next_seq++;
    call->waits = mode == CALL_WAITS;
    return CUDA_SUCCESS;
dead:
    unlock_sending(link);
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

/* Completes the frame. Under send_lock. */
static void complete(struct call *call) {
    struct link *link = call->link;
    size_t inside = (size_t)(call->out.at - (uint8_t *)(call->header + 1));
    bool concurrent = atomic_load_explicit(&link->concurrent, memory_order_relaxed);
    put_header(call->header, call->op,
               (call->waits ? WIRE_REPLY_WANTED : 0) | (concurrent ? WIRE_CONCURRENT : 0),
               (uint32_t)(inside + call->external_bytes), call->seq);
    if (call->external != NULL && !link->uses_shared) {
        unsigned end = link->external_end;
        link->externals[end % MAX_EXTERNALS] =
            (struct external){link->tail, link->tail + sizeof(struct wire_header) + inside,
                              call->external, call->external_bytes};
        atomic_store_explicit(&link->external_end, end + 1, memory_order_release);
    }
    publish(link, sizeof(struct wire_header) + inside, call->header);
}

CUresult call_post(struct call *call) {
    struct link *link = call->link;
    complete(call);
    if (!link->uses_shared) {
        if (call->external != NULL) {
            flush_locked(link);
        } else if (link->tail - link->sent >= BATCH_BYTES) {
            if (!fed(link, false)) recover(link);
        } else if (atomic_load_explicit(&link->unsent, memory_order_relaxed) == 0) {
            atomic_store_explicit(&link->unsent_since, now_ns(), memory_order_relaxed);
            atomic_store(&link->unsent, 1);
            syscall(SYS_futex, &link->unsent, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        }
    }
    unlock_sending(link);
    return CUDA_SUCCESS;
}

CUresult call_send(struct call *call) {
    struct link *link = call->link;
    pthread_mutex_lock(&link->receive_lock);
    call->next = link->waiting;
    link->waiting = call;
    pthread_mutex_unlock(&link->receive_lock);
    complete(call);
    flush_locked(link);
    unlock_sending(link);
    return CUDA_SUCCESS;
}

/* The calls that tell of errors of earlier ones. */
static bool synchronises(uint16_t op) {
    switch (op) {
    case OP_cuCtxSynchronize:
    case OP_cuCtxSynchronize_v2:
    case OP_cuStreamSynchronize:
    case OP_cuStreamQuery:
    case OP_cuEventSynchronize:
    case OP_cuEventQuery:
    case OP_COPY_OUT:
    case OP_COPY_OUT_SHARED:
    case OP_COPY_HOST_OUT:
    case OP_COPY_RECT_OUT: return true;
    default: return false;
    }
}

/* Its reply has come, or never will. */
static CUresult concluded(struct call *call) {
    struct link *link = call->link;
    if (!call->done) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (call->result == CUDA_SUCCESS && synchronises(call->op) &&
        atomic_load_explicit(&link->pending_error, memory_order_relaxed))
        call->result = (CUresult)atomic_exchange(&link->pending_error, 0);
    if (call->result != CUDA_SUCCESS) context_failed(call->result);
    return call->result;
}

CUresult call_wait(struct call *call) {
    struct link *link = call->link;
    pthread_mutex_lock(&link->receive_lock);
    while (!call->done && !atomic_load_explicit(&link->dead, memory_order_relaxed)) {
        if (!atomic_load_explicit(&link->broken, memory_order_relaxed)) {
            take_part(link);
            continue;
        }
        pthread_mutex_unlock(&link->receive_lock);
        lock_sending(link);
        if (atomic_load(&link->broken) && !atomic_load(&link->dead)) recover(link);
        unlock_sending(link);
        pthread_mutex_lock(&link->receive_lock);
    }
    struct call **at = &link->waiting;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    if (call->seq > link->last_reply) link->last_reply = call->seq;
    pthread_mutex_unlock(&link->receive_lock);
    return concluded(call);
}

CUresult call_exchange(struct call *call) {
    struct link *link = call->link;
    /* In shared memory a reply is often there within a microsecond: whoever has the role of the
     * reader before the call goes out gets it himself. */
    if (!link->uses_shared || !start_reading(link)) {
        call_send(call);
        return call_wait(call);
    }
    complete(call);
    unlock_sending(link);
    while (!call->done && !atomic_load_explicit(&link->dead, memory_order_relaxed))
        receive_shared(link, call);
    stop_reading(link);
    return concluded(call);
}

void call_end(struct call *call) {
    if (call->reply != NULL && call->reply != call->small) free(call->reply);
    call->reply = NULL;
}

bool link_done(struct link *link, uint64_t seq) {
    return atomic_load_explicit(&link->shared.control->taken, memory_order_acquire) >= seq;
}

void link_callback_done(struct link *link, uint64_t number) {
    lock_sending(link);
    if (!atomic_load(&link->dead) && control_frame(link, WIRE_CALLBACK_DONE, number, NULL, 0))
        flush_locked(link);
    unlock_sending(link);
}

bool link_send_fd(struct link *link, int fd) {
    char byte = 'F';
    struct iovec part = {&byte, 1};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
    beside->cmsg_level = SOL_SOCKET;
    beside->cmsg_type = SCM_RIGHTS;
    beside->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(beside), &fd, sizeof fd);
    return sendmsg(link->fd, &message, MSG_NOSIGNAL) == 1;
}

/* ---- life ---- */

static void goodbye(void) {
    if (atomic_load(&initialised) != getpid()) return;
    for (unsigned i = 0; i < link_count; i++) {
        struct link *link = links[i];
        /* some thread is still at it: the socket's end says it as well */
        if (pthread_mutex_trylock(&link->send_lock) != 0) continue;
        link->send_locked = true;
        if (!atomic_load(&link->dead) && control_frame(link, WIRE_GOODBYE, 0, NULL, 0) &&
            !link->uses_shared)
            fed(link, true);
        unlock_sending(link);
    }
}

__attribute__((destructor)) static void at_exit(void) { goodbye(); }

/* The child of a fork has no GPU, as with the real driver. Its parent's sockets are not its to
 * use. */
static void in_child(void) {
    atomic_store(&initialised, 0);
    for (unsigned i = 0; i < link_count; i++) {
        atomic_store(&links[i]->dead, true);
        close(links[i]->fd);
    }
}

static struct link *link_new(unsigned index, const char *path) {
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL) return NULL;
    link->index = index;
    link->fd = -1;
    link->next_seq = 1;
    link->owner = pthread_self();
    snprintf(link->path, sizeof link->path, "%s", path);
    size_t length = strlen(path);
    link->direct = length > 5 && strcmp(path + length - 5, ".addr") == 0;
    pthread_mutex_init(&link->send_lock, NULL);
    pthread_mutex_init(&link->feed_lock, NULL);
    pthread_mutex_init(&link->receive_lock, NULL);
    pthread_mutex_init(&link->handle_lock, NULL);
    pthread_mutex_init(&link->slot_lock, NULL);
    pthread_cond_init(&link->received, NULL);
    if (getrandom(link->session, sizeof link->session, 0) != sizeof link->session ||
        !handles_init(link))
        return NULL;
    return link;
}

/* The first connection of a link. One that breaks before the welcome is made anew, as any later one
 * is, with a session of its own: what the executor has begun for the one before ends there. */
static int first_connection(struct link *link) {
    int64_t deadline = now_ms() + GRACE_SECONDS * 1000;
    for (;;) {
        int fd = connect_to(link);
        if (fd < 0) {
            fprintf(stderr, "egpu: cannot connect to %s: %s\n", link->path, strerror(errno));
            return -1;
        }
        enum greeting greeting = greet(link, fd);
        if (greeting == GREETED) return fd;
        close(fd);
        if (greeting == REFUSED || now_ms() > deadline ||
            getrandom(link->session, sizeof link->session, 0) != sizeof link->session) {
            fprintf(stderr, "egpu: %s: no welcome from the executor\n", link->path);
            return -1;
        }
        usleep(RETRY_MS * 1000);
    }
}

static CUresult link_open(unsigned index, const char *path) {
    struct link *link = link_new(index, path);
    if (link == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    int fd = first_connection(link);
    if (fd < 0) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    link->connected_once = true;
    use_socket(link, fd);
    pthread_t thread;
    if (!link->uses_shared) {
        link->ring = doubled(RING_BYTES);
        link->input = doubled(INPUT_BYTES);
        if (link->ring == NULL || link->input == NULL ||
            pthread_create(&thread, NULL, flusher, link) != 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
        pthread_detach(thread);
    }
    links[index] = link;
    for (unsigned i = 0; i < index; i++) link->first_ordinal += links[i]->device_count;
    link_count = index + 1;
    return CUDA_SUCCESS;
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

CUresult links_open(void) {
    Dl_info here;
    char folder[3072], path[4096];
    if (dladdr((const void *)&links, &here) == 0) return CUDA_ERROR_UNKNOWN;
    const char *slash = strrchr(here.dli_fname, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - here.dli_fname) : 1,
             slash ? here.dli_fname : ".");
    static const char *const endings[] = {"sock", "addr"};
    CUresult result = CUDA_ERROR_NO_DEVICE;
    for (unsigned server = 0; server < MAX_SERVERS; server++) {
        bool found = false;
        for (int i = 0; i < 2 && !found; i++) {
            snprintf(path, sizeof path, "%s/lease%u.%s", folder, server, endings[i]);
            found = exists(path);
            if (!found && server == 0) {
                snprintf(path, sizeof path, "%s/lease.%s", folder, endings[i]);
                found = exists(path);
            }
        }
        if (!found) break;
        if ((result = link_open(server, path)) != CUDA_SUCCESS) return result;
    }
    if (result == CUDA_ERROR_NO_DEVICE)
        fprintf(stderr, "egpu: no lease.sock beside %s\n", here.dli_fname);
    if (result != CUDA_SUCCESS) return result;
    pthread_atfork(NULL, NULL, in_child);
    atomic_store_explicit(&initialised, getpid(), memory_order_release);
    return CUDA_SUCCESS;
}
