/* egpu-relay: carries bytes between a program (or an executor) and another machine, or an executor
 * on this one. A Python daemon decides who may talk to whom. This program sets up TLS, reports the
 * name in the peer's certificate, and copies.
 *
 *     egpu-relay CONTROL [LIBSSL AUTHORITY CERTIFICATE KEY]
 *
 * CONTROL is the number of a unix SOCK_SEQPACKET socket. A message there is one byte and two
 * descriptors, `far` and `near`:
 *
 *     S  far is a TCP socket with TLS, we are the server       P  far is a TCP socket without TLS
 *        (loopback)
 *     C  far is a TCP socket with TLS, we are the client       U  far is a unix socket; descriptors
 *        are carried, too
 *
 * Each has a thread. First it reports the result of TLS on `near`: u8 status (0: good, 1: refused,
 * 2: the connection ended, or nothing came), u16 length, then the peer's common name or the reason.
 * Then it copies both ways until either end closes. Python may talk over near for as long as it
 * likes. When it sends a descriptor with its last byte, the connection continues there, and near
 * only shows that someone is still interested: closing it closes all. The byte is J to join, or G:
 * when the process at the new near end dies, GOODBYE (docs/internals/wire.md) is sent for it.
 *
 * When CONTROL closes, the program ends, and with it all connections.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"
#include "tls.h"
#include "wire.h"

#define BUFFER (256u << 10) /* per direction */
#define HANDSHAKE_MS 5000
#define LAST_MS 1000 /* for the rest after one end has closed */
#define DEATH_MS 500 /* a killed process closes its sockets shortly before it is dead */

static struct tls_files files;

struct way { /* one direction: bytes read but not written yet */
    uint8_t *data;
    size_t start, end;
    int descriptors[DESCRIPTOR_MAX];
    int descriptor_count;
    bool ended; /* nothing more will be read */
};

struct connection {
    char role;
    int far, near, interested; /* -1: none */
    struct tls *tls;
    struct way out, in; /* near to far; far to near */
    short far_wants;    /* events that TLS waits for before it can write */
    bool more;          /* TLS may hold more than fitted */
    bool goodbye;
    int process; /* pidfd of the program at near, or -1 */
};

static void forget(struct way *way) {
    while (way->descriptor_count > 0) close(way->descriptors[--way->descriptor_count]);
}

/* ---- reading and writing: bytes, 0 at the end, -1: not now ---- */

static ssize_t receive(int fd, struct way *way, size_t room) {
    size_t came;
    ssize_t got =
        descriptor_receive(fd, way->data + way->end, room, way->descriptors + way->descriptor_count,
                           DESCRIPTOR_MAX - (size_t)way->descriptor_count, &came, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
    way->descriptor_count += (int)came;
    return got;
}

static ssize_t transmit(int fd, struct way *way) {
    struct iovec part = {way->data + way->start, way->end - way->start};
    ssize_t sent = descriptor_send(fd, &part, 1, way->descriptors, (size_t)way->descriptor_count,
                                   MSG_DONTWAIT);
    if (sent > 0) forget(way);
    return sent > 0 ? sent : sent < 0 && (errno == EAGAIN || errno == EINTR) ? -1 : 0;
}

/* ---- one connection ---- */

/* Python has handed over: the descriptor is the new near end; the last byte says what to do when it
 * closes. */
static void hand_over(struct connection *c) {
    int fd = c->out.descriptors[--c->out.descriptor_count];
    forget(&c->out);
    c->goodbye = c->out.data[--c->out.end] == 'G';
    c->interested = c->near;
    c->near = fd;
    struct ucred who;
    socklen_t length = sizeof who;
    if (c->goodbye && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && who.pid > 0)
        c->process = (int)syscall(SYS_pidfd_open, who.pid, 0);
}

/* Read from the near end. False: it has closed. */
static bool read_near(struct connection *c) {
    if (c->out.start != c->out.end) return true;
    c->out.start = c->out.end = 0;
    ssize_t got = receive(c->near, &c->out, BUFFER);
    if (got == 0) return false;
    if (got < 0) return true;
    c->out.end = (size_t)got;
    if (c->out.descriptor_count != 0 && c->interested < 0)
        hand_over(c);
    else if (c->role != 'U')
        forget(&c->out); /* a program's descriptors are not carried */
    return true;
}

static bool write_far(struct connection *c) {
    c->far_wants = 0;
    while (c->out.start != c->out.end) {
        ssize_t sent =
            c->tls ? tls_write(c->tls, c->out.data + c->out.start, c->out.end - c->out.start)
                   : transmit(c->far, &c->out);
        if (sent == 0 || sent == TLS_FAILED) return false;
        if (sent < 0) {
            c->far_wants = c->tls && sent == TLS_WANTS_READ ? POLLIN : POLLOUT;
            return true;
        }
        c->out.start += (size_t)sent;
    }
    return true;
}

static bool read_far(struct connection *c) {
    if (c->in.start != c->in.end) return true;
    c->in.start = c->in.end = 0;
    if (c->tls == NULL) {
        ssize_t got = receive(c->far, &c->in, BUFFER);
        if (got > 0) c->in.end = (size_t)got;
        if (c->role != 'U') forget(&c->in);
        return got != 0;
    }
    while (c->in.end < BUFFER) { /* everything that has come: TLS returns one record at a time */
        ssize_t got = tls_read(c->tls, c->in.data + c->in.end, BUFFER - c->in.end);
        if (got == 0 || got == TLS_FAILED) {
            c->in.ended = true; /* earlier bytes are still delivered */
            return c->in.end != 0;
        }
        if (got < 0) {
            c->more = false;
            return true;
        }
        c->in.end += (size_t)got;
    }
    c->more = true;
    return true;
}

static bool write_near(struct connection *c) {
    while (c->in.start != c->in.end) {
        ssize_t sent = transmit(c->near, &c->in);
        if (sent == 0) return false;
        if (sent < 0) return true;
        c->in.start += (size_t)sent;
    }
    return true;
}

/* Send the rest, if that is possible shortly. */
static void finish(struct connection *c) {
    int64_t deadline = clock_now_ms() + LAST_MS;
    while ((c->out.start != c->out.end || c->in.start != c->in.end) && clock_now_ms() < deadline) {
        if (!write_far(c)) c->out.start = c->out.end;
        if (!write_near(c)) c->in.start = c->in.end;
        struct pollfd ready[2] = {
            {.fd = c->out.start != c->out.end ? c->far : -1, .events = c->far_wants},
            {.fd = c->in.start != c->in.end ? c->near : -1, .events = POLLOUT}};
        if (ready[0].fd >= 0 || ready[1].fd >= 0) poll(ready, 2, 50);
    }
}

static void speak_for_the_dead(struct connection *c) {
    struct pollfd dead = {.fd = c->process, .events = POLLIN};
    /* it is alive, only its connection broke */
    if (c->process >= 0 && poll(&dead, 1, DEATH_MS) <= 0) return;
    struct wire_header goodbye = {.op = WIRE_GOODBYE};
    if (BUFFER - c->out.end < sizeof goodbye) return;
    memcpy(c->out.data + c->out.end, &goodbye, sizeof goodbye);
    c->out.end += sizeof goodbye;
}

static void carry(struct connection *c) {
    c->more = c->tls != NULL; /* bytes may have come with the end of the handshake */
    for (;;) {
        bool waits = c->role == 'U' && c->interested < 0; /* to receive bytes for it */
        struct pollfd ready[3] = {
            {.fd = c->far,
             .events = (short)((c->in.start == c->in.end && !waits ? POLLIN : 0) | c->far_wants)},
            {.fd = c->near,
             .events = (short)((c->out.start == c->out.end ? POLLIN : 0) |
                               (c->in.start != c->in.end ? POLLOUT : 0))},
            {.fd = c->interested, .events = POLLIN},
        };
        if (poll(ready, 3, c->more && c->in.start == c->in.end ? 0 : -1) < 0 && errno != EINTR)
            return;
        if (c->interested >= 0 && ready[2].revents != 0) return;
        if (!write_far(c) || !write_near(c)) break;
        if (c->in.ended && c->in.start == c->in.end) break;
        if ((ready[0].revents != 0 || c->more) && !waits && !c->in.ended &&
            (!read_far(c) || !write_near(c)))
            break;
        if (ready[1].revents & (POLLIN | POLLHUP | POLLERR) && c->out.start == c->out.end) {
            if (!read_near(c)) {
                if (c->goodbye) speak_for_the_dead(c);
                break;
            }
            if (!write_far(c)) break;
        }
    }
    finish(c);
}

static bool announce(int near, int status, const char *text) {
    uint8_t said[3 + 512];
    size_t length = strnlen(text, 512);
    said[0] = (uint8_t)status;
    said[1] = (uint8_t)length;
    said[2] = (uint8_t)(length >> 8);
    memcpy(said + 3, text, length);
    return send(near, said, 3 + length, MSG_NOSIGNAL) == (ssize_t)(3 + length);
}

/* Set up TLS if needed, and report the result. */
static bool greet(struct connection *c) {
    char text[512] = "";
    if (c->role == 'P' || c->role == 'U') return announce(c->near, 0, text);
    if (files.key == NULL) return announce(c->near, 1, "this relay has no certificate"), false;
    c->tls = tls_new(c->far, c->role == 'S', &files, text, sizeof text);
    /* Not a refusal: the files are ours, and may be in the middle of a replacement. */
    if (c->tls == NULL) return announce(c->near, 2, text), false;
    int64_t deadline = clock_now_ms() + HANDSHAKE_MS;
    for (;;) {
        int is = tls_handshake(c->tls, text, sizeof text);
        if (is == 0) {
            if (tls_peer(c->tls, text, sizeof text)) return announce(c->near, 0, text);
            snprintf(text, sizeof text, "the peer's certificate has no name");
            break;
        }
        int64_t left = deadline - clock_now_ms();
        struct pollfd ready[2] = {{.fd = c->far, .events = is == TLS_WANTS_READ ? POLLIN : POLLOUT},
                                  {.fd = c->near, .events = POLLRDHUP}};
        if (is == TLS_FAILED) break;
        if (is == TLS_LOST) return announce(c->near, 2, text), false;
        if (left <= 0 || (poll(ready, 2, (int)left) < 0 && errno != EINTR) ||
            ready[1].revents != 0) {
            snprintf(text, sizeof text, "no TLS connection within %d s", HANDSHAKE_MS / 1000);
            return announce(c->near, 2, text), false;
        }
    }
    announce(c->near, 1, text);
    return false;
}

static void *connection_thread(void *argument) {
    struct connection *c = argument;
    c->out.data = malloc(BUFFER);
    c->in.data = malloc(BUFFER);
    fcntl(c->far, F_SETFL, fcntl(c->far, F_GETFL) | O_NONBLOCK);
    if (c->out.data != NULL && c->in.data != NULL && greet(c)) carry(c);
    forget(&c->out);
    forget(&c->in);
    tls_free(c->tls);
    free(c->out.data);
    free(c->in.data);
    int all[] = {c->far, c->near, c->interested, c->process};
    for (int i = 0; i < 4; i++)
        if (all[i] >= 0) {
            if (i < 2) shutdown(all[i], SHUT_RDWR); /* Python may hold a copy */
            close(all[i]);
        }
    free(c);
    return NULL;
}

/* ---- the control socket ---- */

static void begin(char role, int far, int near) {
    struct connection *c = calloc(1, sizeof *c);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    if (c != NULL)
        *c = (struct connection){
            .role = role, .far = far, .near = near, .interested = -1, .process = -1};
    if (c != NULL && pthread_create(&thread, &attributes, connection_thread, c) == 0) return;
    free(c);
    close(far);
    close(near);
}

int main(int argc, char **argv) {
    char why[512];
    if (argc != 2 && argc != 6) {
        fprintf(stderr, "usage: egpu-relay CONTROL [LIBSSL AUTHORITY CERTIFICATE KEY]\n");
        return 2;
    }
    int control = atoi(argv[1]);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_DUMPABLE, 0); /* keys */
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    signal(SIGPIPE, SIG_IGN); /* the library uses write */
    /* a terminal's, here and below: our daemon closes CONTROL when it has ended */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    if (argc == 6) {
        files = (struct tls_files){argv[3], argv[4], argv[5]};
        if (!tls_load(argv[2], why, sizeof why)) {
            fprintf(stderr, "egpu-relay: TLS needs the shared library of OpenSSL 3: %s\n", why);
            return 3;
        }
    }
    if (send(control, "R", 1, MSG_NOSIGNAL) != 1) return 0; /* ready */
    for (;;) {
        struct way message = {.data = (uint8_t *)why};
        ssize_t got;
        do {
            struct pollfd ready = {.fd = control, .events = POLLIN};
            poll(&ready, 1, -1);
            got = receive(control, &message, 1);
        } while (got < 0);
        if (got == 0) _exit(0); /* nothing to clean up, and threads use the library */
        if (message.descriptor_count == 2)
            begin(why[0], message.descriptors[0], message.descriptors[1]);
        else
            forget(&message);
    }
}
