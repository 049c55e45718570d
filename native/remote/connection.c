/* The connection to a server: dialling, the greeting, and reconnecting. */
#define _GNU_SOURCE
#include "client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"
#include "common/file.h"
#include "common/kernel.h"

#define GRACE_SECONDS 30
#define LONGEST_GRACE_SECONDS 3600
#define RETRY_MS 100
#define HELLO_MS 2000

/* Read a small text file without the white space at its end. */
static bool read_line(const char *path, char *to, size_t room, size_t *length) {
    ssize_t got = file_read(path, to, room);
    if (got < 0) return false;
    while (got > 0 && strchr("\n \t\r", to[got - 1]) != NULL) got--;
    to[got] = 0;
    *length = (size_t)got;
    return true;
}

/* Read how long a session outlives its connection. The process that carries our bytes to another
 * machine puts this time into a file beside the socket if it is not the default. */
static void read_grace(struct link *link) {
    char path[sizeof link->path + 16], text[16];
    size_t length;
    int folder = (int)(strrchr(link->path, '/') - link->path);
    snprintf(path, sizeof path, "%.*s/grace", folder, link->path);
    long seconds = read_line(path, text, sizeof text, &length) ? strtol(text, NULL, 10) : 0;
    link->grace_seconds =
        seconds >= 1 && seconds <= LONGEST_GRACE_SECONDS ? (int)seconds : GRACE_SECONDS;
}

static int dial_tcp(struct link *link) {
    char text[64], host[48];
    unsigned port;
    size_t got;
    if (!read_line(link->path, text, sizeof text, &got) ||
        sscanf(text, "%47[0-9.]:%u", host, &port) != 2)
        return -1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1 || (ntohl(to.sin_addr.s_addr) >> 24) != 127) {
        errno = EACCES; /* only loopback goes without TLS */
        return -1;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static int dial_unix(struct link *link) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(link->path);
    int folder = -1;
    if (length < sizeof to.sun_path) {
        memcpy(to.sun_path, link->path, length + 1);
    } else { /* addresses of sockets are short: use the folder's descriptor */
        char parent[sizeof link->path];
        memcpy(parent, link->path, length + 1);
        char *slash = strrchr(parent, '/');
        *slash = 0;
        folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
        snprintf(to.sun_path, sizeof to.sun_path, "/proc/self/fd/%d/%.40s", folder, slash + 1);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int failed = fd < 0 ? -1 : connect(fd, (struct sockaddr *)&to, sizeof to);
    int saved = errno;
    if (folder >= 0) close(folder);
    if (failed == 0) return fd;
    if (fd >= 0) close(fd);
    errno = saved;
    return -1;
}

/* Return a new socket, or -1 with errno. */
static int dial(struct link *link) {
    size_t length = strlen(link->path);
    bool tcp = length > 5 && strcmp(link->path + length - 5, ".addr") == 0;
    return tcp ? dial_tcp(link) : dial_unix(link);
}

/* ---- the greeting ---- */

static bool read_snapshot(struct link *link, const uint8_t *bytes, size_t length) {
    struct reader in = {bytes, length, false};
    struct wire_snapshot snapshot;
    get_bytes(&in, &snapshot, sizeof snapshot);
    if (in.bad || snapshot.device_count > WIRE_MAX_DEVICES) return false;
    struct device *devices =
        calloc(snapshot.device_count ? snapshot.device_count : 1, sizeof *devices);
    if (devices == NULL) return false;
    for (unsigned i = 0; i < snapshot.device_count && !in.bad; i++) {
        struct wire_device *is = &devices[i].is;
        get_bytes(&in, is, sizeof *is);
        uint32_t count = is->attribute_count;
        const int32_t *values = count > WIRE_ATTRIBUTES ? NULL : take(&in, count * sizeof *values);
        if (values == NULL) in.bad = true;
        for (unsigned a = 0; a < WIRE_ATTRIBUTES; a++) devices[i].attributes[a] = WIRE_NO_ATTRIBUTE;
        if (values != NULL) memcpy(devices[i].attributes, values, count * sizeof *values);
        is->name[sizeof is->name - 1] = is->pci[sizeof is->pci - 1] = 0;
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

enum greeting { GREETED, TRY_AGAIN, REFUSED };

static bool send_bytes(int fd, void *data, size_t bytes) {
    struct iovec part = {data, bytes};
    return descriptor_send_all(fd, &part, 1, -1, 0);
}

static bool say_hello(struct link *link, int fd, bool resume) {
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
    if (!read_line(beside, out.token, sizeof out.token, &length)) length = 0;
    memcpy(out.hello.session, link->session, sizeof link->session);
    out.hello.features = resume ? 0 : WIRE_FEATURE_SHARED;
    out.hello.flags = resume ? WIRE_HELLO_RESUME : 0;
    out.hello.token_length = (uint32_t)length;
    out.hello.received = resume ? call_received(link) : 0;
    out.header.len = (uint32_t)(sizeof out.hello + length);
    return send_bytes(fd, &out, sizeof out.header + out.header.len);
}

/* Say why no session begins. A bridge that sends WIRE_STATUS_TOLD has said it in its own words. */
static void complain(const struct link *link, uint32_t status) {
    if (status == WIRE_STATUS_TOLD) return;
    static const char *const why[] = {
        "",
        "the executor refused the token",
        "client and executor are of different versions",
        "the executor does not know this session",
        "the executor has too many sessions",
        "the executor has no driver",
    };
    fprintf(stderr, "egpu: %s: %s\n", link->path,
            status < sizeof why / sizeof *why ? why[status] : "unknown answer");
}

/* Handle the rest of a WELCOME and answer it. `memory` came with it, or is -1. */
static enum greeting accept_welcome(struct link *link, int fd, const struct wire_welcome *welcome,
                                    int memory, int64_t deadline) {
    uint8_t *snapshot = malloc(welcome->snapshot_length + 1);
    bool heard = snapshot != NULL &&
                 descriptor_receive_all(fd, snapshot, welcome->snapshot_length, NULL, deadline);
    bool resume = link->connected_once;
    bool good = heard && (resume || read_snapshot(link, snapshot, welcome->snapshot_length));
    free(snapshot);
    if (!good && heard) complain(link, UINT32_MAX);
    if (!good) return heard ? REFUSED : TRY_AGAIN;
    if (memory >= 0) link->direct = true;
    bool shared = !resume && memory >= 0 && shared_map(&link->shared.memory, memory);
    if (!resume) link->transport = shared ? &transport_shared : &transport_stream;
    if (shared) shared_reader_init(&link->shared.memory.control->client);
    struct {
        struct wire_header header;
        uint32_t kind, zero;
    } chosen = {.header = {.op = WIRE_TRANSPORT, .len = 8}, .kind = shared};
    return send_bytes(fd, &chosen, sizeof chosen) ? GREETED : TRY_AGAIN;
}

/* Exchange HELLO and WELCOME on a new socket. */
static enum greeting greet(struct link *link, int fd) {
    struct {
        struct wire_header header;
        struct wire_welcome welcome;
    } in;
    bool resume = link->connected_once;
    if (!say_hello(link, fd, resume)) return TRY_AGAIN;
    int memory;
    int64_t deadline = clock_now_ms() + (resume ? HELLO_MS : link->grace_seconds * 1000);
    if (!descriptor_receive_all(fd, &in, sizeof in, &memory, deadline)) return TRY_AGAIN;
    enum greeting greeting = REFUSED;
    bool sane = in.header.op == WIRE_WELCOME && in.welcome.snapshot_length <= WIRE_MAX_SNAPSHOT &&
                in.header.len == sizeof in.welcome + in.welcome.snapshot_length;
    if (sane && in.welcome.status == WIRE_STATUS_WELCOME) {
        greeting = accept_welcome(link, fd, &in.welcome, memory, deadline);
        if (greeting == GREETED) atomic_store(&link->taken, in.header.seq);
    } else {
        complain(link, sane ? in.welcome.status : UINT32_MAX);
    }
    if (memory >= 0) close(memory);
    return greeting;
}

static void use_socket(struct link *link, int fd) {
    struct timeval look = {.tv_usec = LOOK_MS * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
    int old = link->fd;
    link->fd = fd;
    if (old >= 0) close(old);
}

/* ---- the first connection, and reconnecting ---- */

/* Return whether a socket without a listener may get one again: the process that carries our bytes
 * to another machine replaces its socket when it restarts. An executor on this machine, whose
 * policy is beside the socket, does not come back. */
static bool may_listen_again(const struct link *link, int error) {
    char policy[sizeof link->path + 16];
    int folder = (int)(strrchr(link->path, '/') - link->path);
    snprintf(policy, sizeof policy, "%.*s/executor-policy", folder, link->path);
    return error == ECONNREFUSED && !link->direct && access(policy, F_OK) != 0;
}

/* Return the first socket, or -1 after a line on stderr. */
static int dial_first(struct link *link, int64_t deadline) {
    for (bool waits = false;; waits = true) {
        int fd = dial(link), error = errno;
        if (fd >= 0) return fd;
        if (!may_listen_again(link, error) || clock_now_ms() > deadline) {
            fprintf(stderr, "egpu: cannot connect to %s: %s\n", link->path, strerror(error));
            return -1;
        }
        if (!waits)
            fprintf(stderr, "egpu: %s: nothing listens yet; waits %d s for its agent\n", link->path,
                    link->grace_seconds);
        usleep(RETRY_MS * 1000);
    }
}

/* If a connection breaks before the welcome, dial again, as for any later break, but with a new
 * session: the executor ends what it began for the previous one. */
bool connection_open(struct link *link) {
    read_grace(link);
    int64_t deadline = clock_now_ms() + (int64_t)link->grace_seconds * 1000;
    for (;;) {
        int fd = dial_first(link, deadline);
        if (fd < 0) return false;
        enum greeting greeting = greet(link, fd);
        if (greeting == GREETED) {
            link->connected_once = true;
            use_socket(link, fd);
            return true;
        }
        close(fd);
        if (greeting == REFUSED) return false; /* with a line on stderr */
        if (clock_now_ms() > deadline || !kernel_random(link->session, sizeof link->session)) {
            fprintf(stderr, "egpu: %s: no executor answered in %d s\n", link->path,
                    link->grace_seconds);
            return false;
        }
        usleep(RETRY_MS * 1000);
    }
}

/* Try once to reconnect. Return NULL if a later attempt may succeed, otherwise why none will. */
static const char *reconnect(struct link *link, int64_t deadline, bool *connected) {
    int fd = dial(link), error = errno;
    enum greeting greeting = fd < 0 ? TRY_AGAIN : greet(link, fd);
    if (greeting == GREETED) {
        use_socket(link, fd);
        *connected = stream_resume(link);
        return NULL;
    }
    if (fd >= 0) close(fd);
    if (greeting == REFUSED) return "the executor does not know the session";
    if (fd < 0 && link->direct) return strerror(error);
    if (clock_now_ms() > deadline) return "no connection within the grace period";
    usleep(RETRY_MS * 1000);
    return NULL;
}

void connection_recover(struct link *link) {
    shutdown(link->fd, SHUT_RDWR); /* threads that read from it return */
    pthread_mutex_lock(&link->receive_lock);
    while (!reading_start(link)) reading_await(link);
    pthread_mutex_unlock(&link->receive_lock);
    pthread_mutex_lock(&link->stream.feed_lock);
    int64_t deadline = clock_now_ms() + (int64_t)link->grace_seconds * 1000;
    const char *lost = NULL;
    bool connected = false;
    while (!connected && lost == NULL && !atomic_load(&link->dead))
        lost = reconnect(link, deadline, &connected);
    pthread_mutex_unlock(&link->stream.feed_lock);
    reading_stop(link);
    if (lost != NULL) link_die(link, lost);
}

void connection_mend(struct link *link) {
    if (!atomic_load(&link->broken)) return;
    link_lock(link);
    if (atomic_load(&link->broken) && !atomic_load(&link->dead)) connection_recover(link);
    link_unlock(link);
}
