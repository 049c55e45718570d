#define _GNU_SOURCE
#include "descriptor.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

union control {
    char space[CMSG_SPACE(DESCRIPTOR_MAX * sizeof(int))];
    struct cmsghdr header;
};

ssize_t descriptor_send(int socket, const struct iovec *parts, size_t part_count,
                        const int *descriptors, size_t count, int flags) {
    union control control = {0};
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = part_count};
    if (count != 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
    }
    return sendmsg(socket, &message, flags | MSG_NOSIGNAL);
}

ssize_t descriptor_receive(int socket, void *data, size_t bytes, int *descriptors, size_t room,
                           size_t *count, int flags) {
    union control control;
    struct iovec part = {data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (room != 0) { /* exactly: the padding would hold one more */
        message.msg_control = &control;
        message.msg_controllen = CMSG_LEN(room * sizeof(int));
    }
    *count = 0;
    ssize_t got = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        *count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(descriptors, CMSG_DATA(header), *count * sizeof(int));
    }
    return got;
}

bool descriptor_send_all(int socket, struct iovec *parts, size_t part_count, int passed,
                         int flags) {
    while (part_count != 0) {
        ssize_t sent = descriptor_send(socket, parts, part_count, &passed, passed >= 0, flags);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        passed = -1;
        while (part_count != 0 && (size_t)sent >= parts->iov_len) {
            sent -= (ssize_t)parts->iov_len;
            parts++;
            part_count--;
        }
        if (part_count != 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + sent;
            parts->iov_len -= (size_t)sent;
        }
    }
    return true;
}

/* Receive one piece of a message, and perhaps the first descriptor. */
static ssize_t receive_piece(int socket, void *data, size_t bytes, int *passed) {
    if (passed == NULL || *passed >= 0) return recv(socket, data, bytes, 0);
    int came = -1;
    size_t count;
    ssize_t got = descriptor_receive(socket, data, bytes, &came, 1, &count, 0);
    if (count != 0) *passed = came;
    return got;
}

bool descriptor_receive_all(int socket, void *data, size_t bytes, int *passed,
                            int64_t deadline_ms) {
    uint8_t *at = data;
    if (passed != NULL) *passed = -1;
    while (bytes != 0) {
        int64_t left = deadline_ms == DESCRIPTOR_NO_DEADLINE ? -1 : deadline_ms - clock_now_ms();
        struct pollfd ready = {.fd = socket, .events = POLLIN};
        bool late = deadline_ms != DESCRIPTOR_NO_DEADLINE && left <= 0;
        int found = late ? 0 : poll(&ready, 1, (int)left);
        ssize_t got = found > 0 ? receive_piece(socket, at, bytes, passed) : found;
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (passed != NULL && *passed >= 0) close(*passed);
            if (passed != NULL) *passed = -1;
            return false;
        }
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}
