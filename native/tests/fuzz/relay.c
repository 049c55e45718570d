/* The relay with any input from both ends: pieces, descriptors beside them, hand-overs, ends of
 * either side, TLS that wants the other direction. main.c is compiled here with the input as TLS's
 * records. Received bytes equal the sent ones, and no descriptor stays open.
 *
 * Input: a byte for the role (S, C, P, U by its lowest bits) and for TLS's behaviour, then steps of
 * {what u8, length u8, bytes}, all sent before the relay reads: `what` bit 0: the near end sends,
 * not the far one; bits 1-2: number of descriptors; bit 3: the handed-over end sends.
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
#include <time.h>
#include <unistd.h>

#include "descriptors.h"

static unsigned idle;

/* Nothing blocks: all data has been sent. A thread that would wait forever sees that the other side
 * has ended. */
static int fuzz_poll(struct pollfd *ready, nfds_t count, int milliseconds) {
    int found = poll(ready, count, 0);
    if (found != 0 || milliseconds >= 0) return found;
    if (++idle < 8) return 0;
    errno = EBADF;
    return -1;
}

#define main relay_main
int relay_main(int argc, char **argv);
#define poll fuzz_poll
#include "../../relay/main.c"
#undef main
#undef poll

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* TLS that returns the sent bytes in records, and sometimes wants the other direction first. */
struct tls {
    int fd;
    uint8_t moods, step;
};
static uint8_t moods;

static bool moody(struct tls *tls) { return tls->moods >> (tls->step++ % 8) & 1; }

bool tls_load(const char *library, char *why, size_t room) {
    return (void)library, (void)why, (void)room, true;
}
struct tls *tls_new(int fd, bool server, const struct tls_files *given, char *why, size_t room) {
    (void)server, (void)given, (void)why, (void)room;
    struct tls *tls = malloc(sizeof *tls);
    if (tls != NULL) *tls = (struct tls){fd, moods, 0};
    return tls;
}
int tls_handshake(struct tls *tls, char *why, size_t room) {
    if (moods == 0xff) return snprintf(why, room, "%s", "no certificate"), TLS_FAILED;
    return tls->step < 3 && moody(tls) ? TLS_WANTS_READ : 0;
}
bool tls_peer(struct tls *tls, char *name, size_t room) {
    return (void)tls, snprintf(name, room, "%s", "peer") > 0;
}
ssize_t tls_read(struct tls *tls, void *to, size_t bytes) {
    if (moody(tls)) return TLS_WANTS_WRITE;
    ssize_t got = recv(tls->fd, to, bytes < 100 ? bytes : 100, MSG_DONTWAIT);
    return got < 0 ? TLS_WANTS_READ : got;
}
ssize_t tls_write(struct tls *tls, const void *from, size_t bytes) {
    if (moody(tls)) return TLS_WANTS_READ;
    ssize_t sent = send(tls->fd, from, bytes < 100 ? bytes : 100, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? TLS_FAILED : sent;
}
void tls_free(struct tls *tls) { free(tls); }

static void pair_of(int pair[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) abort();
}

static void say(int fd, const uint8_t *bytes, size_t count, const int *descriptors,
                size_t how_many) {
    union {
        char space[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, count};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (how_many != 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(how_many * sizeof(int));
        control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(how_many * sizeof(int))};
        memcpy(CMSG_DATA(&control.header), descriptors, how_many * sizeof(int));
    }
    sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Compare everything received with the start of what was sent. */
static void compare(int fd, const uint8_t *said, size_t count, const char *who) {
    uint8_t got[4096];
    size_t at = 0;
    for (ssize_t n; (n = recv(fd, got, sizeof got, MSG_DONTWAIT)) > 0; at += (size_t)n)
        if (at + (size_t)n > count || memcmp(said + at, got, (size_t)n) != 0) {
            fprintf(stderr, "%s: %zu bytes from %zu on are not what was said (%zu in all)\n", who,
                    (size_t)n, at, count);
            abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t far_said[65536 + 16], near_said[65536 + 64];
    size_t far_count = 0, near_count = 0, heard;
    if (size < 2 || size > 60000) return 0;
    unsigned before = open_descriptors();
    int far[2], near[2], later[2];
    pair_of(far), pair_of(near), pair_of(later);
    files.key = "key";
    moods = data[1];
    idle = 0;
    char role = "SCPU"[data[0] & 3];
    bool handed_over = false, talks_on = false;
    /* The relay's report on TLS comes first, on near. */
    heard = role == 'P' || role == 'U' ? 3 : 7;
    static const uint8_t good[] = {0, 4, 0, 'p', 'e', 'e', 'r'}, nothing[3];
    memcpy(far_said, heard == 7 ? good : nothing, heard);
    far_count = heard;
    data += 2, size -= 2;
    while (size >= 2) {
        uint8_t what = data[0], length = data[1];
        data += 2, size -= 2;
        size_t count = length < size ? length : size;
        int many[4] = {later[0], near[1], far[1], later[0]};
        size_t descriptors = what >> 1 & 3;
        if (!(what & 1)) {
            say(far[1], data, count, many + 1, count != 0 ? descriptors : 0);
            memcpy(far_said + far_count, data, count);
            far_count += count;
        } else if (what & 8) {
            say(later[1], data, count, many + 1, count != 0 ? descriptors : 0);
            talks_on = true;
        } else if (!handed_over && count != 0) {
            /* With descriptors: the last one is the new near end, the last byte selects how.
             * Neither is passed on. */
            int gone[4] = {far[1], far[1], far[1], later[0]};
            say(near[1], data, count, gone + 4 - descriptors, descriptors);
            handed_over = descriptors != 0;
            memcpy(near_said + near_count, data, handed_over ? count - 1 : count);
            near_count += handed_over ? count - 1 : count;
        }
        data += count, size -= count;
    }
    shutdown(far[1], SHUT_WR);
    shutdown(handed_over ? later[1] : near[1], SHUT_WR);
    int far_end = far[1], near_end = near[1];
    close(later[0]);
    struct connection *c = calloc(1, sizeof *c);
    if (c == NULL) abort();
    *c = (struct connection){
        .role = role, .far = far[0], .near = near[0], .interested = -1, .process = -1};
    connection_thread(c);
    uint8_t how = 1; /* no TLS: a reason came instead */
    if (recv(near_end, &how, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && how == 0 && !handed_over &&
        !talks_on) {
        compare(far_end, near_said, near_count, "far");
        compare(near_end, far_said, far_count, "near");
    }
    /* Descriptors that were sent and never received are in the sockets. */
    close(far_end), close(near_end), close(later[1]);
    if (open_descriptors() != before) abort(); /* one was left open */
    return 0;
}
