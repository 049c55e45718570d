/* See attach.h. */
#define _GNU_SOURCE
#include "attach.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { LAST_WORDS_MS = 2000 }; /* for callers that are behind when the command has ended */

bool attach_open(struct attached *attached, int directory) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    attached->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    for (int i = 0; i < ATTACH_CALLERS; i++) attached->callers[i].socket = -1;
    /* through the descriptor: a socket's address only has room for short paths */
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/attach", directory);
    if (attached->listener < 0 || (unlinkat(directory, "attach", 0) != 0 && errno != ENOENT))
        return false;
    mode_t before = umask(0177);
    int bound = bind(attached->listener, (struct sockaddr *)&address, sizeof address);
    umask(before);
    return bound == 0 && listen(attached->listener, ATTACH_CALLERS) == 0;
}

static bool would_wait(void) { return errno == EAGAIN || errno == EINTR; }

static void leave(struct attach_caller *caller) {
    close(caller->socket);
    caller->socket = -1;
    caller->length = 0;
}

/* A caller that has gone may have typed something before: `hear` reads it, and ends with the
 * caller.
 */
static void pass_said(struct attach_caller *caller) {
    ssize_t sent =
        send(caller->socket, caller->packet, caller->length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0 || !would_wait()) caller->length = 0; /* packets are sent whole */
}

static void pass_typed(struct attached *attached) {
    ssize_t size = write(attached->input, attached->typing, attached->typed);
    if (size < 0 && would_wait()) return;
    if (size < 0) size = (ssize_t)attached->typed; /* no process reads it any more */
    attached->typed -= (size_t)size;
    memmove(attached->typing, attached->typing + size, attached->typed);
}

static void resize(const struct attached *attached, const char *payload, size_t length) {
    uint16_t rows_columns[2];
    if (!attached->terminal || length != sizeof rows_columns) return;
    memcpy(rows_columns, payload, sizeof rows_columns);
    struct winsize size = {.ws_row = rows_columns[0], .ws_col = rows_columns[1]};
    if (ioctl(attached->input, TIOCSWINSZ, &size) != 0) return;
}

static void hear(struct attached *attached, struct attach_caller *caller) {
    char packet[1 + ATTACH_TYPED];
    ssize_t size = recv(caller->socket, packet, sizeof packet, MSG_DONTWAIT);
    /* It has gone and left output unread. What it typed comes next. */
    if (size < 0 && errno == ECONNRESET)
        size = recv(caller->socket, packet, sizeof packet, MSG_DONTWAIT);
    if (size < 0 && would_wait()) return;
    if (size <= 0) {
        leave(caller);
        return;
    }
    size_t length = (size_t)size - 1;
    switch ((enum attach_channel)(unsigned char)packet[0]) {
    case ATTACH_STDIN:
        if (attached->input < 0 || length == 0) break;
        memcpy(attached->typing, packet + 1, length);
        attached->typed = length;
        pass_typed(attached);
        break;
    case ATTACH_RESIZE: resize(attached, packet + 1, length); break;
    case ATTACH_CLOSE:
        if (attached->terminal || attached->input < 0) break;
        close(attached->input);
        attached->input = -1;
        break;
    case ATTACH_STDOUT:
    case ATTACH_STDERR:
    case ATTACH_BEFORE: break;
    }
}

/* Return a free place for a caller, or -1. */
static int free_caller(const struct attached *attached) {
    for (int i = 0; i < ATTACH_CALLERS; i++)
        if (attached->callers[i].socket < 0) return i;
    return -1;
}

void attach_poll(const struct attached *attached, struct pollfd polled[ATTACH_POLLED]) {
    int listener = free_caller(attached) >= 0 ? attached->listener : -1;
    polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    int input = attached->typed > 0 ? attached->input : -1;
    polled[1] = (struct pollfd){.fd = input, .events = POLLOUT};
    for (int i = 0; i < ATTACH_CALLERS; i++) {
        const struct attach_caller *caller = &attached->callers[i];
        int events = (attached->typed > 0 ? 0 : POLLIN) | (caller->length > 0 ? POLLOUT : 0);
        /* polled for nothing, it would report again and again that it has gone */
        polled[2 + i] =
            (struct pollfd){.fd = events != 0 ? caller->socket : -1, .events = (short)events};
    }
}

struct attach_caller *attach_serve(struct attached *attached,
                                   const struct pollfd polled[ATTACH_POLLED]) {
    for (int i = 0; i < ATTACH_CALLERS; i++) {
        struct attach_caller *caller = &attached->callers[i];
        if (polled[2 + i].revents == 0) continue;
        if (caller->length > 0) pass_said(caller);
        if (caller->socket >= 0 && attached->typed == 0) hear(attached, caller);
    }
    if (polled[1].revents != 0) pass_typed(attached);
    if (polled[0].revents == 0) return NULL;
    struct attach_caller *caller = &attached->callers[free_caller(attached)];
    caller->socket = accept4(attached->listener, NULL, NULL, SOCK_CLOEXEC);
    return caller->socket >= 0 ? caller : NULL;
}

void attach_tell_before(struct attach_caller *caller, struct attach_before before, const char *line,
                        size_t length) {
    char channel = ATTACH_BEFORE;
    struct iovec parts[] = {{&channel, 1}, {&before, sizeof before}, {(char *)line, length}};
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = 3};
    /* The first packets to a new socket, which has room for them. One that has gone is heard. */
    if (caller->socket >= 0) sendmsg(caller->socket, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool attach_behind(const struct attached *attached) {
    for (int i = 0; i < ATTACH_CALLERS; i++)
        if (attached->callers[i].length > 0) return true;
    return false;
}

static void wait_for(struct attach_caller *caller) {
    struct pollfd polled = {.fd = caller->socket, .events = POLLOUT};
    if (caller->length > 0 && poll(&polled, 1, LAST_WORDS_MS) > 0) pass_said(caller);
    if (caller->length > 0) leave(caller);
}

void attach_say(struct attached *attached, enum attach_channel channel, const char *text,
                size_t length) {
    for (int i = 0; i < ATTACH_CALLERS; i++) {
        struct attach_caller *caller = &attached->callers[i];
        wait_for(caller);
        if (caller->socket < 0) continue;
        caller->packet[0] = (char)channel;
        memcpy(caller->packet + 1, text, length);
        caller->length = 1 + length;
        pass_said(caller);
    }
}

void attach_finish(struct attached *attached) {
    for (int i = 0; i < ATTACH_CALLERS; i++) wait_for(&attached->callers[i]);
}
