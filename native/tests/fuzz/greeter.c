/* What the executor's parent makes of strangers: several connections at once that say HELLO, or
 * anything else, in pieces. parent.c is compiled here with sessions that are not started. Nobody
 * gets one without the token.
 *
 * Input: steps of {connection u8, length u8, bytes}: `connection` bits 0-2 say which one speaks (a
 * new one, if there is none), bit 7 that it hangs up afterwards, bit 6 that the HELLO before it is
 * sent up to `length` and the bytes come after it.
 */
#define _GNU_SOURCE
#include "executor/executor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t next_pid;
static int session_ends[MAX_SESSIONS];

static pid_t fuzz_fork(void) { return ++next_pid; }

/* The session's end of its control socket stays open: what is passed on has to arrive there. */
static int fuzz_socketpair(int domain, int type, int protocol, int pair[2]) {
    int result = socketpair(domain, type, protocol, pair);
    for (unsigned i = 0; result == 0 && i < MAX_SESSIONS; i++)
        if (session_ends[i] == 0) {
            session_ends[i] = dup(pair[1]);
            break;
        }
    return result;
}

#define fork fuzz_fork
#define socketpair fuzz_socketpair
#define printf(...) ((void)0)
#define putchar(character) ((void)0)
#define fflush(file) ((void)0)
#include "../../executor/parent.c"
#undef fork
#undef socketpair

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
struct options options = {.listen_fd = -1, .tcp_port = -1, .lease = "-", .roster = -1};
int store_connect(void) { return -1; }
void store_ended(int pid) { (void)pid; }
void store_close(void) {}
void mover_poll(struct pollfd *ready) { (void)ready; }
bool mover_serve(const struct pollfd *ready) { return (void)ready, false; }
bool mover_stands(void) { return false; }

#define TOKEN "open sesame"
enum { CALLERS = 8 };

static void set_up(void) {
    static char path[32];
    int token = memfd_create("token", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", token);
    if (write(token, TOKEN "\n", sizeof TOKEN) != sizeof TOKEN || !roster_open()) abort();
    options.token_file = path;
    options.sessions = 3;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < MAX_GREETERS; i++) greeters[i].fd = -1;
}

static void greeter_of(int fd, int slot) {
    greeters[slot] = (struct greeter){.fd = fd, .deadline_ms = clock_now_ms() + HELLO_MS};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (roster == NULL) set_up();
    int ends[CALLERS];
    struct {
        uint8_t bytes[512];
        size_t count;
    } said[CALLERS] = {0};
    for (int i = 0; i < CALLERS; i++) ends[i] = -1;
    struct {
        struct wire_header header;
        struct wire_hello hello;
        char token[sizeof TOKEN - 1];
    } hello = {.header = {.op = WIRE_HELLO, .len = sizeof hello.hello + sizeof hello.token},
               .hello = {.magic = WIRE_MAGIC,
                         .version = WIRE_VERSION,
                         .table = EGPU_WIRE_TABLE_HASH,
                         .token_length = sizeof hello.token}};
    memcpy(hello.token, TOKEN, sizeof hello.token);
    while (size >= 2) {
        uint8_t who = data[0] & 7, length = data[1], how = data[0];
        data += 2, size -= 2;
        if (ends[who] < 0 || greeters[who].fd < 0) {
            if (ends[who] >= 0) close(ends[who]);
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) abort();
            greeter_of(pair[0], who);
            ends[who] = pair[1];
            said[who].count = 0;
        }
        uint8_t bytes[512];
        size_t count = 0;
        if (how & 64) {
            count = length < sizeof hello ? length : sizeof hello;
            memcpy(bytes, &hello, count);
            length = size != 0 ? (uint8_t)(data[0] % 64) : 0;
        }
        size_t more = length < size ? length : size;
        memcpy(bytes + count, data, more);
        data += more, size -= more;
        count += more;
        if (said[who].count + count <= sizeof said[who].bytes) {
            memcpy(said[who].bytes + said[who].count, bytes, count);
            said[who].count += count;
            if (send(ends[who], bytes, count, MSG_NOSIGNAL) < 0 && count != 0) abort();
        }
        if (how & 128) shutdown(ends[who], SHUT_WR);
        int before = session_count;
        for (int i = 0; i < 4 && greeters[who].fd >= 0; i++) greeter_read(&greeters[who]);
        const size_t token_at = sizeof(struct wire_header) + sizeof(struct wire_hello);
        if (session_count > before &&
            (said[who].count < token_at + sizeof hello.token ||
             memcmp(said[who].bytes + token_at, TOKEN, sizeof hello.token) != 0))
            abort();                /* a session without the token */
        if (greeters[who].fd < 0) { /* its fate is decided */
            close(ends[who]);
            ends[who] = -1;
        }
    }
    for (unsigned i = 0; i < MAX_SESSIONS; i++) {
        if (session_ends[i] == 0) continue;
        struct greeting greeting;
        struct pollfd ready = {.fd = session_ends[i], .events = POLLIN};
        while (poll(&ready, 1, 0) == 1 && ready.revents & POLLIN) {
            int fd;
            if (!greeting_receive(session_ends[i], &greeting, &fd) || fd < 0) break;
            if (memcmp(greeting.hello.magic, WIRE_MAGIC, 8) != 0) abort();
            close(fd);
        }
        close(session_ends[i]);
        session_ends[i] = 0;
    }
    for (int i = 0; i < CALLERS; i++) {
        if (ends[i] >= 0) close(ends[i]);
        if (greeters[i].fd >= 0) close(greeters[i].fd);
        greeters[i].fd = -1;
    }
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0) session_ended(sessions[i].pid, 0);
    next_pid = 0;
    return 0;
}
