/* A session's loops, over a stream and over shared memory, with a client that says whatever it
 * likes: frames and their order, replies that are kept, callbacks, cuts and new connections.
 * session.c is compiled here with the input in place of the sockets; whatever waits is answered at
 * once, what would be a thread is a call, and the end of the process is the end of the input.
 *
 * Input: a byte of `enum how`, a byte for the size of what is read at once; then frames of {op u16,
 * flags u16, length u16, seq u8, form u8, payload}. seq 0: the number that is due. Form: `enum
 * form`. With RAW all that follows is what the client sends, byte for byte.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum how { OVER_SHARED = 1, RAW = 2, RESUMES = 4, SENDS_FD = 8, READS_LATE = 16, BESIDE = 32 };
/* POKE: the payload is written over the control page, at `op` */
enum form { CUT_AFTER = 1, LONGER = 2, POKE = 4 };

enum { FIRST_SOCKET = 100000, WIRE_ROOM = 1 << 20 };

static jmp_buf over;

/* What the client sends, and where its connections are cut. In a ring: where frames end. */
static struct {
    uint8_t *bytes;
    size_t size, at, chunk;
    size_t marks[1024], mark_count, mark;
    struct {
        size_t at, length, where;
        const uint8_t *bytes;
    } pokes[64];
    unsigned poke_count;
    unsigned how, connections;
} said;

static _Noreturn void fuzz_exit(int code) { longjmp(over, code + 1); }

/* What a call that does not return leaves behind. */
static void *kept_blocks[64];
static void *fuzz_malloc(size_t bytes) {
    void *block = malloc(bytes);
    for (unsigned i = 0; i < 64; i++)
        if (kept_blocks[i] == NULL) {
            kept_blocks[i] = block;
            break;
        }
    return block;
}
static void fuzz_free(void *block) {
    for (unsigned i = 0; i < 64 && block != NULL; i++)
        if (kept_blocks[i] == block) kept_blocks[i] = NULL;
    free(block);
}

static ssize_t fuzz_recv(int fd, void *to, size_t room, int flags) {
    (void)fd, (void)flags;
    size_t until = said.mark < said.mark_count ? said.marks[said.mark] : said.size,
           left = until - said.at;
    size_t bytes = room < left ? room : left;
    if (bytes > said.chunk) bytes = said.chunk;
    if (bytes == 0) {
        if (said.mark < said.mark_count) said.mark++; /* the connection is cut here */
        return 0;
    }
    memcpy(to, said.bytes + said.at, bytes);
    said.at += bytes;
    return (ssize_t)bytes;
}

static ssize_t fuzz_sendmsg(int fd, const struct msghdr *message, int flags) {
    (void)fd, (void)flags;
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        driver_reads(message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        bytes += message->msg_iov[i].iov_len;
    }
    return (ssize_t)(bytes > said.chunk ? said.chunk : bytes); /* as much as would fit */
}

/* A byte with a descriptor beside it, or without. */
static ssize_t fuzz_recvmsg(int fd, struct msghdr *message, int flags) {
    (void)fd, (void)flags;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int memory = said.how & SENDS_FD ? memfd_create("fuzz", MFD_ALLOW_SEALING) : -1;
    if (memory < 0) return message->msg_controllen = 0, -1;
    if (ftruncate(memory, 65536) != 0 ||
        (said.chunk % 2 && fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) != 0))
        abort();
    *header = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof memory)};
    memcpy(CMSG_DATA(header), &memory, sizeof memory);
    return 1;
}

static int fuzz_poll(struct pollfd *ready, nfds_t count, int milliseconds) {
    (void)milliseconds;
    for (nfds_t i = 0; i < count; i++) ready[i].revents = ready[i].events;
    return (int)count;
}

static int fuzz_close(int fd) { return fd < FIRST_SOCKET ? close(fd) : 0; }

static int fuzz_thread(void *(*function)(void *), void *argument) { return function(argument), 0; }

static void client_reads(void);
static void callback_answered(pthread_mutex_t *lock);
static int fuzz_connects(void);
struct shared_tail;
struct shared_reader;
bool fuzz_shared_wait(struct shared_tail *tail, uint64_t seen, struct shared_reader *reader,
                      int milliseconds);

#define _exit fuzz_exit
#define malloc fuzz_malloc
#define free fuzz_free
#define recv fuzz_recv
#define sendmsg fuzz_sendmsg
#define recvmsg fuzz_recvmsg
#define poll fuzz_poll
#define close fuzz_close
#define shutdown(fd, how) ((void)(how))
#define usleep(microseconds) client_reads()
#define fprintf(...) ((void)0)
#define pthread_create(thread, attributes, function, argument) \
    ((void)(attributes), (void)(thread), fuzz_thread(function, argument))
#define pthread_cond_wait(condition, lock) callback_answered(lock)
#define pthread_cond_timedwait(condition, lock, until) ((void)(until), fuzz_connects())
#define shared_wait fuzz_shared_wait
#include "../../common/descriptor.c"
#include "../../executor/images/store.h"
#include "../../executor/session/session.c"
#include "../../executor/session/connection.c"
#include "../../executor/session/transport_stream.c"
#include "../../executor/session/transport_shared.c"
#include "../../executor/session/callback.c"
#include "../../executor/session/driver.c"
#undef malloc
#undef free

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void status_init(const struct settings *given) { (void)given; }
int store_find(int channel, const uint8_t digest[32], uint64_t total) {
    return (void)channel, (void)digest, (void)total, -1;
}
int store_keep(int channel, const uint8_t digest[32], const uint8_t *image, uint64_t total) {
    return (void)channel, (void)digest, (void)image, (void)total, -1;
}
CUresult status_read(uint32_t device, struct writer *out) {
    return put_word(out, device), CUDA_SUCCESS;
}
/* No session warms its driver: each would leave a thread behind. */
void driver_warm(void) {}
void driver_cool_before(uint16_t op) { (void)op; }
void driver_cool_after(uint16_t op) { (void)op; }
void contexts_hold(uint64_t cards) { (void)cards; }
void contexts_give(void) {}
bool contexts_enter(unsigned card) { return card < WIRE_MAX_DEVICES; }
bool sandbox_enter(void) { return true; }
bool landlock_enter(int rules) { return rules >= 0; }

/* The reply ring is full. */
static void client_reads(void) {
    struct shared_control *control = session.shared.control;
    atomic_store(&control->reply_head, atomic_load(&control->replies.at));
}

/* A callback is answered as soon as somebody waits for that: the client that never does is the one
 * that has gone. */
static void callback_answered(pthread_mutex_t *lock) {
    if (callbacks == NULL || said.how & READS_LATE) session_end(EXIT_GONE);
    pthread_mutex_unlock(lock);
    callback_ended(callbacks->number);
    pthread_mutex_lock(lock);
}

/* The next connection comes while the session waits for it, as long as anything is left to be
 * said. */
static int fuzz_connects(void) {
    if (said.connections > 1 && said.at >= said.size) return ETIMEDOUT;
    next_connection = FIRST_SOCKET + (int)said.connections++;
    next_greeting = (struct greeting){.over_unix = 1};
    next_greeting.hello.features = said.how & OVER_SHARED ? WIRE_FEATURE_SHARED : 0;
    next_greeting.hello.flags = said.how & RESUMES && said.connections > 1 ? WIRE_HELLO_RESUME : 0;
    next_greeting.hello.received = said.how & RESUMES ? session.taken / 2 : 0;
    return 0;
}

/* The ring is empty: the next frame, or all of it. */
bool fuzz_shared_wait(struct shared_tail *tail, uint64_t seen, struct shared_reader *reader,
                      int milliseconds) {
    (void)reader, (void)milliseconds;
    for (unsigned i = 0; i < said.poke_count; i++)
        if (said.pokes[i].at == said.at)
            for (size_t n = 0; n < said.pokes[i].length; n++)
                if (said.pokes[i].where % 4096 + n < sizeof(struct shared_control))
                    ((uint8_t *)session.shared.control)[said.pokes[i].where % 4096 + n] =
                        said.pokes[i].bytes[n];
    if (tail->at != seen) return true; /* a poke */
    if (said.at >= said.size) session_end(EXIT_GONE);
    while (said.mark < said.mark_count && said.marks[said.mark] <= said.at) said.mark++;
    size_t until = said.mark < said.mark_count ? said.marks[said.mark] : said.size,
           bytes = until - said.at;
    if (bytes > SHARED_RING_BYTES) bytes = SHARED_RING_BYTES;
    memcpy(session.shared.requests + seen % SHARED_RING_BYTES, said.bytes + said.at, bytes);
    said.at += bytes;
    if (bytes <= SHARED_SHORT_BYTES && said.how & BESIDE) {
        memcpy((void *)tail->frame, session.shared.requests + seen % SHARED_RING_BYTES, bytes);
        tail->beside = seen + bytes;
    }
    tail->at = seen + bytes;
    return true;
}

static void say(const void *bytes, size_t count) {
    if (said.size + count > WIRE_ROOM) count = 0;
    memcpy(said.bytes + said.size, bytes, count);
    said.size += count;
}

static void say_transport(void) {
    struct {
        struct wire_header header;
        uint32_t kind, zero;
    } transport = {.header = {.op = WIRE_TRANSPORT, .len = 8}, .kind = said.how & OVER_SHARED};
    say(&transport, sizeof transport);
}

static void mark_here(void) {
    if (said.mark_count < sizeof said.marks / sizeof *said.marks)
        said.marks[said.mark_count++] = said.size;
}

static void prepare(const uint8_t *data, size_t size) {
    uint8_t *room = said.bytes;
    memset(&said, 0, sizeof said);
    said.bytes = room;
    said.how = data[0];
    said.chunk = data[1] == 0 ? WIRE_ROOM : data[1] * 7u;
    data += 2, size -= 2;
    say_transport();
    if (said.how & OVER_SHARED) mark_here();
    if (said.how & RAW) {
        say(data, size);
        return;
    }
    uint64_t due = 1;
    while (size >= 8) {
        uint16_t words[3];
        memcpy(words, data, sizeof words);
        uint8_t seq = data[6], form = data[7];
        data += 8, size -= 8;
        size_t length = words[2] < size ? words[2] : size;
        if (form & POKE && said.how & OVER_SHARED) {
            if (said.poke_count < 64) {
                said.pokes[said.poke_count].at = said.size;
                said.pokes[said.poke_count].where = words[0];
                said.pokes[said.poke_count].length = length;
                said.pokes[said.poke_count++].bytes = data;
            }
        } else {
            bool counts = words[0] >= 64 || words[0] == WIRE_SET_CONTEXT;
            /* a few that are none */
            uint16_t op =
                words[0] < 64 ? words[0] : (uint16_t)(64 + (words[0] - 64) % (OP_COUNT - 56));
            struct wire_header header = {.op = op,
                                         .flags = words[1],
                                         .len =
                                             (uint32_t)(form & LONGER ? words[2] * 1031u : length),
                                         .seq = seq};
            if (seq == 0 && counts) header.seq = due++;
            static const uint8_t none[16];
            say(&header, sizeof header);
            say(data, length);
            if (said.how & OVER_SHARED) say(none, (16 - length % 16) % 16);
        }
        data += length, size -= length;
        if (said.how & OVER_SHARED) {
            mark_here();
        } else if (form & CUT_AFTER) {
            mark_here();
            say_transport();
        }
    }
}

/* As it is when a session's process has been started. */
static void forget(void) {
    stream_forget(UINT64_MAX, UINT64_MAX, NULL, 0);
    atomic_store(&replies_held, 0);
    atomic_store(&beside_bytes, 0);
    for (unsigned i = 0; i < 64; i++) {
        free(kept_blocks[i]);
        kept_blocks[i] = NULL;
    }
    forget_handles();
    forget_calls();
    if (session.shared.control != NULL) shared_unmap(&session.shared);
    session.connection = next_connection = -1;
    session.transport = NULL;
    session.over_unix = may_begin = false;
    session.memory = -1;
    stream_reset();
    callbacks = NULL;
    others_send = false;
    reply_tail = reply_head = 0;
    next_callback = 1;
    session.taken = told = bytes_since_told = current_context = thread_context = 0;
    atomic_store(&contexts_ended, 0);
    context_gone = false;
    ended_seen = 0;
    atomic_store(&pending_error, 0);
    atomic_store(&waiters, 0);
    atomic_store(&watched, -1);
}

static void set_up(void) {
    static const struct settings given = {
        .driver = "none", .lease = "fuzzed", .roster = -1, .store = -1};
    session.settings = &given;
    for (int id = 0; id < EGPU_DRIVER_FUNCTIONS; id++)
        functions[id] = agreeing_driver((egpu_driver_id)id);
    said.bytes = malloc(WIRE_ROOM);
    if (said.bytes == NULL || !stream_open() || !shared_prepare() || !handles_init() ||
        !connection_prepare())
        abort();
    memset(kept_blocks, 0, sizeof kept_blocks); /* what was made here stays */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (session.settings == NULL) set_up();
    if (size < 2) return 0;
    prepare(data, size);
    if (setjmp(over) == 0) {
        connection_await();
        session.transport->serve();
    }
    pthread_mutex_init(&session.out_lock, NULL); /* whoever ended may have held them */
    pthread_mutex_init(&control_lock, NULL);
    forget();
    return 0;
}
