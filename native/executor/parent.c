/* See parent.h. */
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
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "executor/moves/mover.h"
#include "executor/parent.h"
#include "executor/session/greeting.h"
#include "executor/images/store.h"

#define MAX_GREETERS 64 /* connections that have not said HELLO yet */
#define HELLO_MS 2000

struct session sessions[MAX_SESSIONS];
static int session_count;
static struct roster *roster;

static struct greeter {
    int fd; /* -1: free */
    int64_t deadline_ms;
    size_t have;
    uint8_t bytes[sizeof(struct wire_header) + sizeof(struct wire_hello) + WIRE_MAX_TOKEN];
} greeters[MAX_GREETERS];

/* ---- telling ---- */

static void print_escaped(const char *text) {
    for (; *text; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 32)
            printf("\\u%04x", (unsigned char)*text);
        else
            putchar(*text);
}

static void tell_session(const struct session *session, const char *state, const char *reason) {
    printf("{\"event\": \"session\", \"state\": \"%s\", \"session\": \"", state);
    for (int i = 0; i < 16; i++) printf("%02x", session->id[i]);
    printf("\", \"pid\": %d", (int)session->pid);
    if (reason != NULL) printf(", \"reason\": \"%s\"", reason);
    printf(", \"sessions\": %d}\n", session_count);
    fflush(stdout);
}

static void refuse(int fd, uint32_t status, const char *reason) {
    printf("{\"event\": \"refused\", \"reason\": \"%s\"}\n", reason);
    fflush(stdout);
    greeting_refuse(fd, status);
}

/* ---- sessions ---- */

bool roster_open(void) {
    options.roster = memfd_create("egpu-roster", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (options.roster < 0 || ftruncate(options.roster, sizeof *roster) != 0) return false;
    roster = mmap(NULL, sizeof *roster, PROT_READ | PROT_WRITE, MAP_SHARED, options.roster, 0);
    return roster != MAP_FAILED &&
           fcntl(options.roster, F_ADD_SEALS,
                 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
}

struct session *session_find(const uint8_t id[16]) {
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0 && memcmp(sessions[i].id, id, 16) == 0) return &sessions[i];
    return NULL;
}

uint32_t session_client(const struct session *session) {
    return roster->sessions[session - sessions].client;
}

/* LD_PRELOAD brings the interposer. */
struct session *session_start(const uint8_t id[16], uint32_t client) {
    struct session *session = NULL;
    for (int i = 0; i < MAX_SESSIONS && session == NULL; i++)
        if (sessions[i].pid == 0) session = &sessions[i];
    int pair[2];
    if (session == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return NULL;
    int store = store_connect();
    char descriptor[16], grace[16], known[16], rules[16], images[16], preload[4200];
    snprintf(descriptor, sizeof descriptor, "%d", pair[1]);
    snprintf(grace, sizeof grace, "%d", options.grace);
    snprintf(known, sizeof known, "%d", options.roster);
    snprintf(rules, sizeof rules, "%d", options.confinement.rules);
    snprintf(images, sizeof images, "%d", store);
    snprintf(preload, sizeof preload, "%s/libegpu-interposer.so",
             options.slice ? options.slice : "");
    pid_t pid = fork();
    if (pid < 0) {
        close(pair[0]);
        close(pair[1]);
        if (store >= 0) close(store);
        return NULL;
    }
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        fcntl(pair[1], F_SETFD, 0);
        fcntl(options.roster, F_SETFD, 0);
        fcntl(options.confinement.rules, F_SETFD, 0);
        fcntl(store, F_SETFD, 0);
        dup2(STDERR_FILENO, STDOUT_FILENO); /* only the parent writes events */
        if (options.slice != NULL) setenv("LD_PRELOAD", preload, 1);
        if (options.confinement.network)
            setenv("NCCL_SHM_DISABLE", "1", 1); /* there is no /dev/shm */
        execl("/proc/self/exe", "egpu-session", "--session", descriptor, "--roster", known,
              "--rules", rules, "--images", images, "--driver", options.driver, "--grace", grace,
              "--lease", options.lease, options.movable ? "--movable" : "--fixed",
              options.confinement.network ? "--network" : NULL, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    if (store >= 0) close(store);
    *session = (struct session){.pid = pid, .control = pair[0]};
    memcpy(session->id, id, 16);
    roster->sessions[session - sessions].client = client;
    roster->sessions[session - sessions].pid = (uint32_t)pid;
    session_count++;
    return session;
}

static void session_ended(pid_t pid, int status) {
    for (int i = 0; i < MAX_SESSIONS; i++) {
        if (sessions[i].pid != pid) continue;
        char reason[32];
        if (WIFSIGNALED(status)) {
            snprintf(reason, sizeof reason, "signal %d", WTERMSIG(status));
        } else {
            int code = WEXITSTATUS(status);
            const char *known = code == 0                ? "goodbye"
                                : code == EXIT_GRACE     ? "grace"
                                : code == EXIT_VIOLATION ? "violation"
                                : code == EXIT_GONE      ? "client gone"
                                                         : NULL;
            if (known != NULL)
                snprintf(reason, sizeof reason, "%s", known);
            else
                snprintf(reason, sizeof reason, "exit %d", code);
        }
        close(sessions[i].control);
        session_count--;
        roster->sessions[i].pid = 0;
        tell_session(&sessions[i], "closed", reason);
        sessions[i].pid = 0;
    }
}

/* ---- connections ---- */

static bool read_token(char token[WIRE_MAX_TOKEN + 2], size_t *length) {
    ssize_t got = file_read(options.token_file, token, WIRE_MAX_TOKEN + 2);
    while (got > 0 && (token[got - 1] == '\n' || token[got - 1] == ' ' || token[got - 1] == '\t' ||
                       token[got - 1] == '\r'))
        got--;
    *length = got > 0 ? (size_t)got : 0;
    return got > 0 && got <= (ssize_t)WIRE_MAX_TOKEN;
}

static void greeted(struct greeter *greeter) {
    int fd = greeter->fd;
    greeter->fd = -1;
    struct greeting greeting = {0};
    char token[WIRE_MAX_TOKEN + 2];
    size_t token_length = 0;
    bool have_token = options.token_file != NULL;
    if (have_token && !read_token(token, &token_length)) {
        refuse(fd, WIRE_STATUS_TOKEN, "token"); /* no token is valid now */
        return;
    }
    uint32_t status = greeting_check(greeter->bytes, greeter->have, have_token ? token : NULL,
                                     token_length, &greeting.hello);
    if (status != WIRE_STATUS_WELCOME) {
        refuse(fd, status, status == WIRE_STATUS_TOKEN ? "token" : "version");
        return;
    }
    struct session *session = session_find(greeting.hello.session);
    bool fresh = session == NULL;
    if (fresh && greeting.hello.flags & WIRE_HELLO_RESUME) {
        refuse(fd, WIRE_STATUS_SESSION, "session");
        return;
    }
    if (fresh && session_count >= options.sessions) {
        refuse(fd, WIRE_STATUS_FULL, "sessions");
        return;
    }
    if (fresh && (session = session_start(greeting.hello.session, greeting.hello.pid)) == NULL) {
        refuse(fd, WIRE_STATUS_FULL, "sessions");
        return;
    }
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    greeting.over_unix =
        getsockname(fd, (struct sockaddr *)&name, &length) == 0 && name.ss_family == AF_UNIX;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    if (!greeting_pass(session->control, &greeting, fd)) {
        refuse(fd, WIRE_STATUS_SESSION, "session");
        return;
    }
    close(fd);
    if (fresh) tell_session(session, "opened", NULL);
}

/* Reads the HELLO only: the session reads what follows. */
static void greeter_read(struct greeter *greeter) {
    struct wire_header header;
    size_t wanted = sizeof header;
    if (greeter->have >= sizeof header) {
        memcpy(&header, greeter->bytes, sizeof header);
        /* of a bridge whose client never came back */
        if (header.op == WIRE_GOODBYE && header.len == 0) {
            close(greeter->fd);
            greeter->fd = -1;
            return;
        }
        if (header.op != WIRE_HELLO || header.len < sizeof(struct wire_hello) ||
            header.len > sizeof greeter->bytes - sizeof header) {
            int fd = greeter->fd;
            greeter->fd = -1;
            refuse(fd, WIRE_STATUS_VERSION, "hello");
            return;
        }
        wanted += header.len;
    }
    ssize_t got = recv(greeter->fd, greeter->bytes + greeter->have, wanted - greeter->have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        close(greeter->fd);
        greeter->fd = -1;
        return;
    }
    greeter->have += (size_t)got;
    if (greeter->have == wanted && wanted > sizeof header)
        greeted(greeter);
    else if (greeter->have == sizeof header)
        greeter_read(greeter);
}

/* Return how long the next greeter may still take; -1: there is none. */
static int greeters_wait_ms(void) {
    int64_t first = INT64_MAX;
    for (int i = 0; i < MAX_GREETERS; i++)
        if (greeters[i].fd >= 0 && greeters[i].deadline_ms < first) first = greeters[i].deadline_ms;
    int64_t left = first - clock_now_ms();
    return first == INT64_MAX ? -1 : left < 0 ? 0 : (int)left + 1; /* closed after it, not at it */
}

static void accept_one(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), one = 1;
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
    struct greeter *free_one = NULL, *oldest = &greeters[0];
    for (int i = 0; i < MAX_GREETERS; i++) {
        if (greeters[i].fd < 0) free_one = &greeters[i];
        if (greeters[i].deadline_ms < oldest->deadline_ms) oldest = &greeters[i];
    }
    if (free_one == NULL) { /* too many that say nothing: close the oldest */
        close(oldest->fd);
        free_one = oldest;
    }
    *free_one = (struct greeter){.fd = fd, .deadline_ms = clock_now_ms() + HELLO_MS};
    greeter_read(free_one);
}

int listener_open(void) {
    if (options.listen_fd >= 0) return options.listen_fd;
    if (options.tcp_port >= 0) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)options.tcp_port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        socklen_t length = sizeof at;
        if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 128) != 0 ||
            getsockname(fd, (struct sockaddr *)&at, &length) != 0)
            return -1;
        options.tcp_port = ntohs(at.sin_port);
        return fd;
    }
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(options.listen) >= sizeof at.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(at.sun_path, options.listen);
    unlink(options.listen);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t mask = umask(0117);
    int failed = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&at, sizeof at);
    umask(mask);
    return failed != 0 || listen(fd, 128) != 0 ? -1 : fd;
}

int serve(int listener) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    for (int i = 0; i < MAX_GREETERS; i++) greeters[i].fd = -1;
    printf("{\"event\": \"ready\", \"lease\": \"");
    print_escaped(options.lease);
    if (options.tcp_port >= 0)
        printf("\", \"port\": %d}\n", options.tcp_port);
    else {
        printf("\", \"listen\": \"");
        print_escaped(options.listen ? options.listen : "inherited");
        printf("\"}\n");
    }
    fflush(stdout);
    bool asked_to_end = false, left = false;
    while (!asked_to_end && !left) {
        struct pollfd ready[2 + MAX_GREETERS + MOVER_POLLS] = {
            {.fd = mover_stands() ? -1 : listener, .events = POLLIN},
            {.fd = signal_fd, .events = POLLIN}};
        for (int i = 0; i < MAX_GREETERS; i++)
            ready[2 + i] =
                (struct pollfd){.fd = mover_stands() ? -1 : greeters[i].fd, .events = POLLIN};
        mover_poll(ready + 2 + MAX_GREETERS);
        poll(ready, 2 + MAX_GREETERS + MOVER_POLLS, greeters_wait_ms());
        struct signalfd_siginfo got;
        while (read(signal_fd, &got, sizeof got) == sizeof got)
            asked_to_end |= got.ssi_signo != SIGCHLD;
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
            session_ended(pid, status);
            store_ended(pid);
        }
        for (int i = 0; i < MAX_GREETERS; i++) {
            if (greeters[i].fd >= 0 && ready[2 + i].fd == greeters[i].fd && ready[2 + i].revents)
                greeter_read(&greeters[i]);
            if (greeters[i].fd >= 0 && clock_now_ms() > greeters[i].deadline_ms) {
                close(greeters[i].fd);
                greeters[i].fd = -1;
            }
        }
        if (ready[0].revents) accept_one(listener);
        left = mover_serve(ready + 2 + MAX_GREETERS);
    }
    if (left) memset(sessions, 0, sizeof sessions);
    for (int i = 0; i < MAX_SESSIONS; i++)
        if (sessions[i].pid != 0) kill(sessions[i].pid, SIGKILL);
    store_close();
    for (int status, pid; (pid = wait(&status)) > 0;) session_ended(pid, status);
    if (options.listen != NULL && options.tcp_port < 0) unlink(options.listen);
    return 0;
}
