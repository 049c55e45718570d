#include "protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int mps_connect(const char *pipe_directory, const char *name) {
    /* Through a descriptor: a socket's address has little room for a path. */
    int directory = open(pipe_directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return -1;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory, name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool connected = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    int error = errno;
    close(directory);
    if (connected) return fd;
    if (fd >= 0) close(fd);
    errno = error;
    return -1;
}

bool mps_send(int fd, const struct mps_message *message) {
    return send(fd, message, sizeof *message, MSG_NOSIGNAL) == (ssize_t)sizeof *message;
}

bool mps_receive(int fd, struct mps_message *message, int flags) {
    ssize_t got;
    do {
        errno = 0;
        got = recv(fd, message, sizeof *message, flags);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof *message) return false;
    message->text[MPS_TEXT_BYTES - 1] = '\0';
    return true;
}

bool mps_parse_bytes(const char *text, uint64_t *bytes) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || *text == '-' || errno) return false;
    unsigned shift = *end == 'G' ? 30 : *end == 'M' ? 20 : 0;
    if (shift) end++;
    if (shift && *end == 'B') end++;
    if (*end && *end != ',') return false;
    if (value > UINT64_MAX >> shift) return false;
    *bytes = (uint64_t)value << shift;
    return true;
}

uint64_t mps_limit_of(const char *list, int ordinal) {
    for (const char *item = list; item && *item;) {
        char *value;
        uint64_t bytes;
        long number = strtol(item, &value, 10);
        if (value != item && *value == '=' && number == ordinal &&
            mps_parse_bytes(value + 1, &bytes))
            return bytes;
        item = strchr(item, ',');
        if (item) item++;
    }
    return MPS_NO_LIMIT;
}
