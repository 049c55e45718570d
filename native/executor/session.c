/* A session: one client process, one GPU address space. Its threads: the loop (this file's main
 * function), the control thread, which gets new connections from the parent and sees the client
 * die, waiters that carry out calls which may wait for the GPU, and whatever the driver has.
 */
#define _GNU_SOURCE
#include "executor.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "greeting.h"
#include "ring.h"

#define INPUT_BYTES (4u << 20)
#define OUTPUT_BYTES (256u << 10)
#define REPLY_BYTES (192u << 10) /* results of one call, but for copies */
#define KEPT_REPLIES 1024
#define WAITERS 256
#define TELL_BYTES (1u << 20)
#define TELL_CALLS 512
#define HEAD_BYTES (SHARED_RING_BYTES / 16) /* the client is told of room at least this often */

struct kept { /* a reply that the client may not have got */
    uint64_t seq;
    struct wire_reply reply;
    uint8_t *data;
    size_t bytes;
};

struct callback {
    uint64_t number;
    struct wire_callback said;
    bool done;
    struct callback *next;
};

static const struct settings *settings;
static driver_pointer functions[EGPU_DRIVER_FUNCTIONS];
static uint8_t snapshot[WIRE_MAX_SNAPSHOT];
static size_t snapshot_bytes;

static int connection = -1;
static bool over_unix, uses_shared;
static struct shared shared;
static uint8_t *input;
static uint64_t input_head, input_tail;
static uint8_t *private_payload;

static pthread_mutex_t out_lock = PTHREAD_MUTEX_INITIALIZER; /* output, kept replies, callbacks */
static uint8_t output[OUTPUT_BYTES];
/* shared memory: ours, and the client's as last seen; looking there costs a cache line */
static uint64_t reply_tail, reply_head;
static size_t output_bytes;
static struct kept kept[KEPT_REPLIES];
static unsigned kept_count;
static struct callback *callbacks;
static uint64_t next_callback = 1;
static pthread_cond_t callback_done = PTHREAD_COND_INITIALIZER;

static uint64_t taken, told;
static size_t bytes_since_told;
static uint64_t current_context;
static _Thread_local uint64_t thread_context; /* what this thread has made current */
static _Thread_local bool context_gone;       /* it is no more: nothing is current in its place */
/* then what other threads have made current may be no more */
static _Atomic unsigned contexts_ended;
static _Thread_local unsigned ended_seen;
static _Atomic uint32_t pending_error;
static uint8_t reply_space[REPLY_BYTES];

static pthread_mutex_t control_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t control_news = PTHREAD_COND_INITIALIZER;
static int next_connection = -1;
static struct greeting next_greeting;
static _Atomic int watched = -1; /* the connection whose end is the client's end (shared memory) */
static _Atomic int waiters;

driver_pointer driver_function(egpu_driver_id id) { return functions[id]; }

_Noreturn static void end(int code) {
    fflush(NULL);
    _exit(code);
}

/* ---- the driver ---- */

#define DRIVER(symbol, ...) ((CUresult (*)(__VA_ARGS__))functions[EGPU_FN_##symbol])

static bool load_driver(void) {
    void *library = dlopen(settings->driver, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        fprintf(stderr, "egpu-executor: %s\n", dlerror());
        return false;
    }
    for (int id = 0; id < EGPU_DRIVER_FUNCTIONS; id++) {
        /* the interposer's, where it has one */
        void *symbol = dlsym(library, egpu_driver_functions[id].symbol);
        memcpy(&functions[id], &symbol, sizeof symbol);
    }
    CUresult result =
        functions[EGPU_FN_cuInit] == NULL ? CUDA_ERROR_NOT_FOUND : DRIVER(cuInit, unsigned)(0);
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "egpu-executor: cuInit of %s: error %d\n", settings->driver, (int)result);
    return result == CUDA_SUCCESS;
}

static bool take_snapshot(void) {
    struct writer out = {snapshot, sizeof snapshot, false};
    struct wire_snapshot is = {0};
    int count = 0, version = 0;
    if (DRIVER(cuDeviceGetCount, int *)(&count) != CUDA_SUCCESS ||
        DRIVER(cuDriverGetVersion, int *)(&version) != CUDA_SUCCESS)
        return false;
    is.device_count = count > (int)WIRE_MAX_DEVICES ? WIRE_MAX_DEVICES : (uint32_t)count;
    is.driver_version = (uint32_t)version;
    put_bytes(&out, &is, sizeof is);
    for (int i = 0; i < (int)is.device_count; i++) {
        struct wire_device device = {.attribute_count = WIRE_ATTRIBUTES};
        int32_t attributes[WIRE_ATTRIBUTES];
        CUuuid uuid = {{0}};
        size_t total = 0;
        int major = 0, minor = 0;
        DRIVER(cuDeviceTotalMem_v2, size_t *, CUdevice)(&total, i);
        CUresult (*identify)(CUuuid *, CUdevice) =
            functions[EGPU_FN_cuDeviceGetUuid_v2] ? DRIVER(cuDeviceGetUuid_v2, CUuuid *, CUdevice)
                                                  : DRIVER(cuDeviceGetUuid, CUuuid *, CUdevice);
        identify(&uuid, i);
        DRIVER(cuDeviceGetName, char *, int, CUdevice)(device.name, sizeof device.name, i);
        DRIVER(cuDeviceGetPCIBusId, char *, int, CUdevice)(device.pci, sizeof device.pci, i);
        for (int a = 0; a < (int)WIRE_ATTRIBUTES; a++) {
            int value;
            bool known =
                a != 0 && DRIVER(cuDeviceGetAttribute, int *, CUdevice_attribute,
                                 CUdevice)(&value, (CUdevice_attribute)a, i) == CUDA_SUCCESS;
            attributes[a] = known ? value : WIRE_NO_ATTRIBUTE;
        }
        major = attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
        minor = attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
        device.total_bytes = total;
        memcpy(device.uuid, uuid.bytes, sizeof device.uuid);
        device.major = (uint32_t)major;
        device.minor = (uint32_t)minor;
        put_bytes(&out, &device, sizeof device);
        put_bytes(&out, attributes, sizeof attributes);
    }
    snapshot_bytes = sizeof snapshot - out.left;
    return !out.bad;
}

/* Empties this thread's stack of contexts. Setting none takes away the uppermost only, and the one
 * below would serve calls that have none. */
static void no_context(void) {
    CUcontext context = NULL;
    while (DRIVER(cuCtxGetCurrent, CUcontext *)(&context) == CUDA_SUCCESS && context != NULL)
        if (DRIVER(cuCtxPopCurrent_v2, CUcontext *)(&context) != CUDA_SUCCESS) break;
    thread_context = 0;
    context_gone = false;
}

static void make_current(uint64_t handle) {
    unsigned ended = atomic_load_explicit(&contexts_ended, memory_order_relaxed);
    if (thread_context == handle && ended_seen == ended) return;
    ended_seen = ended;
    CUresult bad = CUDA_SUCCESS;
    CUcontext context = (CUcontext)(uintptr_t)handle_value(KIND_context, handle, &bad);
    if (DRIVER(cuCtxSetCurrent, CUcontext)(bad == CUDA_SUCCESS ? context : NULL) != CUDA_SUCCESS)
        DRIVER(cuCtxSetCurrent, CUcontext)(NULL);
    thread_context = handle;
    context_gone = handle != 0 && bad != CUDA_SUCCESS;
}

/* ---- sending ---- */

static bool send_parts(struct iovec *parts, size_t count) {
    while (count != 0) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t sent = sendmsg(connection, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false; /* the loop finds out; what is kept is sent again */
        while (count != 0 && (size_t)sent >= parts->iov_len) {
            sent -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count != 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + sent;
            parts->iov_len -= (size_t)sent;
        }
    }
    return true;
}

/* Under out_lock. */
static void flush_output(void) {
    if (output_bytes == 0) return;
    struct iovec part = {output, output_bytes};
    output_bytes = 0;
    if (connection >= 0) send_parts(&part, 1);
}

/* Under out_lock. */
static void emit(const struct wire_header *header, const void *head, size_t head_bytes,
                 const void *data, size_t bytes) {
    size_t whole = sizeof *header + head_bytes + bytes;
    if (uses_shared) {
        struct shared_control *control = shared.control;
        size_t frame = shared_frame(whole - sizeof *header);
        if (frame > SHARED_RING_BYTES) end(EXIT_VIOLATION);
        while (reply_tail + frame - reply_head > SHARED_RING_BYTES) {
            reply_head = atomic_load_explicit(&control->reply_head, memory_order_acquire);
            /* its own problem */
            if (reply_tail + frame - reply_head > SHARED_RING_BYTES) usleep(50);
        }
        uint64_t last[SHARED_SHORT_WORDS] = {0}; /* what pads a frame says nothing of us */
        uint8_t *slot = shared.replies + reply_tail % SHARED_RING_BYTES,
                *at = frame <= sizeof last ? (uint8_t *)last : slot;
        put_header(at, header->op, header->flags, header->len, header->seq);
        if (head_bytes == sizeof(struct wire_reply))
            memcpy(at + sizeof *header, head, sizeof(struct wire_reply)); /* no call */
        else if (head_bytes)
            memcpy(at + sizeof *header, head, head_bytes);
        if (bytes) memcpy(at + sizeof *header + head_bytes, data, bytes);
        reply_tail += frame;
        if (at != slot)
            shared_publish_short(&control->replies, reply_tail, last, whole, slot);
        else
            shared_publish(&control->replies, reply_tail);
        shared_wake(&control->client);
        return;
    }
    if (whole > OUTPUT_BYTES / 4) {
        flush_output();
        struct iovec parts[] = {{(void *)(uintptr_t)header, sizeof *header},
                                {(void *)(uintptr_t)head, head_bytes},
                                {(void *)(uintptr_t)data, bytes}};
        if (connection >= 0) send_parts(parts, 3);
        return;
    }
    if (output_bytes + whole > OUTPUT_BYTES) flush_output();
    memcpy(output + output_bytes, header, sizeof *header);
    if (head_bytes) memcpy(output + output_bytes + sizeof *header, head, head_bytes);
    if (bytes) memcpy(output + output_bytes + sizeof *header + head_bytes, data, bytes);
    output_bytes += whole;
}

static void emit_reply(const struct kept *reply) {
    struct wire_header header = {.op = WIRE_REPLY,
                                 .flags = WIRE_IS_REPLY,
                                 .len = (uint32_t)(sizeof reply->reply + reply->bytes),
                                 .seq = reply->seq};
    emit(&header, &reply->reply, sizeof reply->reply, reply->data, reply->bytes);
}

/* The loop alone sends, until it begins something that answers from another thread; it says so
 * before. */
static bool others_send;

static void lock_output(void) {
    if (others_send) pthread_mutex_lock(&out_lock);
}
static void unlock_output(void) {
    if (others_send) pthread_mutex_unlock(&out_lock);
}

void session_shares_output(void) {
    if (!others_send) others_send = true; /* once: they read it */
}

static void answer(struct task *task, CUresult result, const uint8_t *start, bool flush) {
    struct kept reply = {.seq = task->header.seq,
                         .reply = {(uint32_t)result, atomic_load(&pending_error)
                                                         ? atomic_exchange(&pending_error, 0)
                                                         : 0},
                         .data = task->large,
                         .bytes = task->large ? task->large_bytes : (size_t)(task->out.at - start)};
    lock_output();
    if (uses_shared) {
        reply.data = task->large ? task->large : (uint8_t *)(uintptr_t)start;
        emit_reply(&reply);
        free(task->large);
    } else {
        /* a client that never says what it got */
        if (kept_count == KEPT_REPLIES) end(EXIT_VIOLATION);
        if (task->large == NULL && reply.bytes) {
            reply.data = malloc(reply.bytes);
            if (reply.data == NULL) end(EXIT_VIOLATION);
            memcpy(reply.data, start, reply.bytes);
        }
        kept[kept_count++] = reply;
        emit_reply(&reply);
        if (flush) flush_output();
    }
    unlock_output();
}

static void forget_replies(uint64_t received) {
    pthread_mutex_lock(&out_lock);
    unsigned left = 0;
    for (unsigned i = 0; i < kept_count; i++)
        if (kept[i].seq <= received)
            free(kept[i].data);
        else
            kept[left++] = kept[i];
    kept_count = left;
    pthread_mutex_unlock(&out_lock);
}

/* ---- callbacks ---- */

void session_callback(uint64_t id, CUresult status) {
    struct callback callback = {.said = {id, (uint32_t)status, 0}};
    pthread_mutex_lock(&out_lock);
    callback.number = next_callback++;
    callback.next = callbacks;
    callbacks = &callback;
    struct wire_header header = {
        .op = WIRE_CALLBACK, .len = sizeof callback.said, .seq = callback.number};
    emit(&header, &callback.said, sizeof callback.said, NULL, 0);
    if (!uses_shared) flush_output();
    while (!callback.done) pthread_cond_wait(&callback_done, &out_lock);
    pthread_mutex_unlock(&out_lock);
}

static void callback_ended(uint64_t number) {
    pthread_mutex_lock(&out_lock);
    for (struct callback **at = &callbacks; *at != NULL; at = &(*at)->next)
        if ((*at)->number == number) {
            (*at)->done = true;
            *at = (*at)->next;
            break;
        }
    pthread_cond_broadcast(&callback_done);
    pthread_mutex_unlock(&out_lock);
}

/* ---- carrying out ---- */

static CUresult run(const struct operation *operation, struct task *task, uint8_t *space,
                    size_t room) {
    task->out = (struct writer){space, room, false};
    make_current(task->context);
    CUresult result = operation->run(task);
    /* there was one */
    if (result == CUDA_ERROR_INVALID_CONTEXT && context_gone)
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (task->violated) {
        fprintf(stderr, "egpu-executor: lease %s: a malformed call (op %u), the session ends\n",
                settings->lease, task->header.op);
        end(EXIT_VIOLATION);
    }
    switch (task->header.op) { /* these change what is current */
    case OP_cuCtxDestroy_v2:
    case OP_cuDevicePrimaryCtxRelease_v2: atomic_fetch_add(&contexts_ended, 1); /* fall through */
    case OP_cuCtxCreate_v2:
    case OP_cuCtxCreate_v3: no_context(); break;
    default: break;
    }
    return result;
}

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
    free(beside->payload);
    free(beside);
    DRIVER(cuCtxSetCurrent, CUcontext)(NULL);
    atomic_fetch_sub(&waiters, 1);
    return NULL;
}

/* Hands a call that may wait to a thread of its own. False: carry it out here. */
static bool begin_beside(const struct operation *operation, const struct task *task,
                         const uint8_t *payload) {
    if (atomic_load(&waiters) >= WAITERS) return false;
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
        pthread_attr_setstacksize(&attributes, 256 << 10);
        session_shares_output();
        atomic_fetch_add(&waiters, 1);
        if (pthread_create(&thread, &attributes, wait_beside, beside) == 0) return true;
        atomic_fetch_sub(&waiters, 1);
    }
    free(copy);
    free(beside);
    return false;
}

static void violation(const char *what) {
    fprintf(stderr, "egpu-executor: lease %s: %s, the session ends\n", settings->lease, what);
    end(EXIT_VIOLATION);
}

/* One frame, all of it private to us. */
static void handle_frame(const struct wire_header *header, const uint8_t *payload) {
    switch (header->op) {
    case WIRE_RECEIVED: forget_replies(header->seq); return;
    case WIRE_CALLBACK_DONE: callback_ended(header->seq); return;
    case WIRE_GOODBYE: end(0);
    case WIRE_TRANSPORT: return; /* settled when the connection began */
    default: break;
    }
    if (header->seq <= taken) return; /* it came before a cut, too */
    if (header->seq != taken + 1) violation("a call is missing");
    taken = header->seq;
    if (header->op == WIRE_SET_CONTEXT) {
        if (header->len != 8) violation("a malformed frame");
        memcpy(&current_context, payload, 8);
        if (uses_shared) atomic_store_explicit(&shared.control->taken, taken, memory_order_release);
        return;
    }
    const struct operation *operation = operation_of(header->op);
    if (operation == NULL) violation("an unknown operation");
    struct task task = {
        .in = {payload, header->len, false}, .header = *header, .context = current_context};
    bool wanted = header->flags & WIRE_REPLY_WANTED;
    if (wanted && header->flags & WIRE_CONCURRENT && operation->flags & OPERATION_BLOCKS &&
        begin_beside(operation, &task, payload))
        return;
    CUresult result = run(operation, &task, reply_space, sizeof reply_space);
    if (wanted) {
        answer(&task, result, reply_space, false);
        told = taken; /* a reply says so as well */
        bytes_since_told = 0;
    } else {
        free(task.large);
        uint32_t none = 0;
        if (result != CUDA_SUCCESS)
            atomic_compare_exchange_strong(&pending_error, &none, (uint32_t)result);
    }
    if (uses_shared) atomic_store_explicit(&shared.control->taken, taken, memory_order_release);
}

uint8_t *session_bulk(uint64_t offset, size_t bytes) {
    if (!uses_shared || offset > SHARED_BULK_BYTES || bytes > SHARED_BULK_BYTES - offset)
        return NULL;
    return shared.bulk + offset;
}

int session_receive_fd(void) {
    struct pollfd ready = {.fd = connection, .events = POLLIN};
    if (!uses_shared || poll(&ready, 1, 2000) != 1) return -1;
    char byte;
    struct iovec part = {&byte, 1};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control;
    /* Room for one: what is beyond is closed on its way. */
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return -1;
    struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (beside != NULL && beside->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(beside), sizeof fd);
    return fd;
}

/* ---- connections ---- */

/* Gets what the parent passes on, and sees the end of parent and client. */
static void *control_thread(void *argument) {
    int control = (int)(intptr_t)argument;
    for (;;) {
        struct pollfd ready[2] = {{.fd = control, .events = POLLIN},
                                  {.fd = atomic_load(&watched), .events = POLLRDHUP}};
        poll(ready, 2, 1000);
        if (ready[1].fd >= 0 && ready[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) {
            usleep(20000); /* its GOODBYE may be in the ring */
            end(EXIT_GONE);
        }
        if (ready[0].revents == 0) continue;
        struct greeting greeting;
        int fd = greeting_receive(control, &greeting);
        if (fd < 0) end(0); /* the parent is gone, or wants us to go */
        pthread_mutex_lock(&control_lock);
        if (next_connection >= 0) close(next_connection);
        next_connection = fd;
        next_greeting = greeting;
        if (connection >= 0) shutdown(connection, SHUT_RDWR);
        pthread_cond_broadcast(&control_news);
        pthread_mutex_unlock(&control_lock);
    }
    return NULL;
}

static bool read_exactly(int fd, void *data, size_t bytes) {
    uint8_t *at = data;
    while (bytes != 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, 2000) <= 0) return false;
        ssize_t got = recv(fd, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* WELCOME, and what the client makes of it. */
static bool welcome(const struct greeting *greeting) {
    struct {
        struct wire_header header;
        struct wire_welcome welcome;
    } out = {.header = {.op = WIRE_WELCOME,
                        .len = (uint32_t)(sizeof out.welcome + snapshot_bytes),
                        .seq = taken},
             .welcome = {WIRE_STATUS_WELCOME, WIRE_VERSION, 0, (uint32_t)snapshot_bytes}};
    int memory = -1;
    if (over_unix && greeting->hello.features & WIRE_FEATURE_SHARED && taken == 0)
        memory = shared_create();
    out.welcome.features = memory >= 0 ? WIRE_FEATURE_SHARED : 0;
    struct iovec parts[] = {{&out, sizeof out}, {snapshot, snapshot_bytes}};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (memory >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
        beside->cmsg_level = SOL_SOCKET;
        beside->cmsg_type = SCM_RIGHTS;
        beside->cmsg_len = CMSG_LEN(sizeof memory);
        memcpy(CMSG_DATA(beside), &memory, sizeof memory);
    }
    ssize_t sent = sendmsg(connection, &message, MSG_NOSIGNAL);
    bool good = sent > 0;
    if (good && (size_t)sent < sizeof out + snapshot_bytes) {
        size_t done = (size_t)sent;
        struct iovec rest[2] = {{(uint8_t *)&out + (done < sizeof out ? done : sizeof out),
                                 done < sizeof out ? sizeof out - done : 0},
                                {snapshot + (done > sizeof out ? done - sizeof out : 0),
                                 snapshot_bytes - (done > sizeof out ? done - sizeof out : 0)}};
        good = send_parts(rest[0].iov_len ? rest : rest + 1, rest[0].iov_len ? 2 : 1);
    }
    struct {
        struct wire_header header;
        uint32_t kind, zero;
    } transport;
    good = good && read_exactly(connection, &transport, sizeof transport) &&
           transport.header.op == WIRE_TRANSPORT && transport.header.len == 8;
    if (good && transport.kind == 1) {
        good = memory >= 0 && shared_map(&shared, memory);
        if (good) {
            shared_reader_init(&shared.control->executor);
            shared.control->magic = SHARED_MAGIC;
            uses_shared = true;
            atomic_store(&watched, connection);
        }
    }
    if (memory >= 0) close(memory);
    return good;
}

/* Waits for a connection, for as long as the grace lasts, and begins or goes on there. */
static void connected(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += settings->grace_seconds;
    for (;;) {
        pthread_mutex_lock(&control_lock);
        while (next_connection < 0)
            if (pthread_cond_timedwait(&control_news, &control_lock, &until) == ETIMEDOUT &&
                next_connection < 0)
                end(EXIT_GRACE);
        pthread_mutex_lock(&out_lock);
        if (connection >= 0) close(connection);
        connection = next_connection;
        next_connection = -1;
        struct greeting greeting = next_greeting;
        output_bytes = 0;
        pthread_mutex_unlock(&control_lock);
        over_unix = greeting.over_unix;
        input_head = input_tail = 0;
        bool good = welcome(&greeting);
        if (good && greeting.hello.flags & WIRE_HELLO_RESUME) {
            pthread_mutex_unlock(&out_lock);
            forget_replies(greeting.hello.received);
            pthread_mutex_lock(&out_lock);
            for (unsigned i = 0; i < kept_count; i++) emit_reply(&kept[i]);
            for (struct callback *c = callbacks; c != NULL; c = c->next) {
                struct wire_header header = {
                    .op = WIRE_CALLBACK, .len = sizeof c->said, .seq = c->number};
                emit(&header, &c->said, sizeof c->said, NULL, 0);
            }
            flush_output();
        }
        pthread_mutex_unlock(&out_lock);
        if (good) return;
    }
}

/* ---- the loops ---- */

static void loop_stream(void) {
    for (;;) {
        while (input_tail - input_head >= sizeof(struct wire_header)) {
            struct wire_header header;
            memcpy(&header, input + input_head % INPUT_BYTES, sizeof header);
            if (header.len > WIRE_MAX_PAYLOAD) violation("a frame is too long");
            if (input_tail - input_head < sizeof header + header.len) break;
            handle_frame(&header, input + (input_head + sizeof header) % INPUT_BYTES);
            input_head += sizeof header + header.len;
            bytes_since_told += sizeof header + header.len;
        }
        if (input_head == input_tail) input_head = input_tail = 0; /* where the cache is warm */
        pthread_mutex_lock(&out_lock);
        if (taken != told && (bytes_since_told >= TELL_BYTES || taken - told >= TELL_CALLS)) {
            struct wire_header header = {.op = WIRE_PROGRESS, .seq = taken};
            emit(&header, NULL, 0, NULL, 0);
            told = taken;
            bytes_since_told = 0;
        }
        flush_output();
        pthread_mutex_unlock(&out_lock);
        ssize_t got = recv(connection, input + input_tail % INPUT_BYTES,
                           INPUT_BYTES - (input_tail - input_head), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            connected();
        else
            input_tail += (uint64_t)got;
    }
}

static void loop_shared(void) {
    struct shared_control *control = shared.control;
    uint64_t head = 0, tail = 0, said = 0;
    for (;;) {
        /* what has been seen is done; looking at the client's words costs cache lines, so not after
         * each call */
        if (head == tail) {
            if (said != head)
                atomic_store_explicit(&control->request_head, said = head, memory_order_release);
            tail = atomic_load_explicit(&control->requests.at, memory_order_acquire);
            if (tail == head) {
                shared_wait(&control->requests, head, &control->executor, 1000);
                continue;
            }
        }
        if (tail - head > SHARED_RING_BYTES || tail - head < sizeof(struct wire_header))
            violation("the ring is out of order");
        /* Copied once: what is checked is what is used. */
        struct wire_header header;
        uint64_t last[SHARED_SHORT_WORDS];
        bool beside = shared_beside(&control->requests, head, tail, last);
        const uint8_t *at =
            beside ? (const uint8_t *)last : shared.requests + head % SHARED_RING_BYTES;
        memcpy(&header, at, sizeof header);
        size_t frame = shared_frame(header.len);
        if (frame > tail - head) violation("a frame is longer than the ring says");
        if (!beside) memcpy(private_payload, at + sizeof header, header.len);
        head += frame;
        if (header.flags & WIRE_REPLY_WANTED || head - said >= HEAD_BYTES)
            atomic_store_explicit(&control->request_head, said = head, memory_order_release);
        handle_frame(&header, beside ? at + sizeof header : private_payload);
    }
}

int session_run(const struct settings *given, int control) {
    settings = given;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "egpu-session");
    struct rlimit none = {0, 0}, files = {512, 512};
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_NOFILE, &files);
    mallopt(M_MMAP_THRESHOLD, 8 << 20); /* buffers of copies come and go: their pages stay */
    mallopt(M_TRIM_THRESHOLD, 32 << 20);
    shared_register();
    struct greeting greeting;
    int fd = greeting_receive(control, &greeting);
    if (fd < 0) return 0;
    if (!handles_init() || (input = doubled(INPUT_BYTES)) == NULL ||
        (private_payload = malloc(SHARED_RING_BYTES)) == NULL)
        return EXIT_NO_DRIVER;
    if (!load_driver() || !take_snapshot()) {
        greeting_refuse(fd, WIRE_STATUS_DRIVER);
        return EXIT_NO_DRIVER;
    }
    status_init(settings);
    next_connection = fd;
    next_greeting = greeting;
    pthread_t thread;
    if (pthread_create(&thread, NULL, control_thread, (void *)(intptr_t)control) != 0 ||
        !sandbox_enter()) {
        greeting_refuse(fd, WIRE_STATUS_DRIVER);
        return EXIT_NO_DRIVER;
    }
    connected();
    if (uses_shared)
        loop_shared();
    else
        loop_stream();
    return 0;
}
