#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"

static ssize_t read_up_to(int fd, char *to, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = read(fd, to + done, bytes - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    to[done] = 0;
    return (ssize_t)done;
}

ssize_t file_read(const char *path, char *to, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t got = read_up_to(fd, to, room - 1);
    close(fd);
    return got;
}

char *file_load(const char *path, size_t most, size_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status = {0};
    char *all = NULL;
    if (fd < 0) return NULL;
    if (kernel_fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && (size_t)status.st_size <= most)
        all = malloc((size_t)status.st_size + 1);
    if (all != NULL && read_up_to(fd, all, (size_t)status.st_size) != status.st_size) {
        free(all);
        all = NULL;
    }
    close(fd);
    *bytes = (size_t)status.st_size;
    return all;
}
