/* Keeps a caller's images. What is written has a name of its own, is locked by who writes it, and
 * gets its digest's name when it is whole: so a file without a lock under such a name is what a
 * killed writer has left, and goes. Several executors of a caller have a keeper each; what must not
 * happen twice at a time happens under the lock of the directory's file `lock`. */
#define _GNU_SOURCE
#include "executor/images/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"
#include "executor/confinement/confinement.h"

#define LOCK "lock"
#define DRAFT "new-" /* of names that are no digest's */
#define PIECE_BYTES (256u << 10)
#define CHANNEL_STACK_BYTES (256u << 10)

/* ---- which files go ---- */

bool store_make_room(struct store_entry *entries, unsigned count, uint64_t wanted) {
    uint64_t busy_bytes = 0, bytes = 0;
    unsigned busy = 0, left = count;
    for (unsigned i = 0; i < count; i++) {
        entries[i].goes = false;
        bytes += entries[i].bytes;
        busy += entries[i].busy;
        if (entries[i].busy) busy_bytes += entries[i].bytes;
    }
    if (wanted > STORE_FILE_BYTES(STORE_SHARE) - busy_bytes ||
        busy_bytes > STORE_FILE_BYTES(STORE_SHARE) || busy >= STORE_ENTRIES)
        return false;
    while (left >= STORE_ENTRIES || bytes + wanted > STORE_FILE_BYTES(STORE_SHARE)) {
        struct store_entry *oldest = NULL;
        for (unsigned i = 0; i < count; i++)
            if (!entries[i].busy && !entries[i].goes &&
                (oldest == NULL || entries[i].used_ns < oldest->used_ns))
                oldest = &entries[i];
        oldest->goes = true;
        bytes -= oldest->bytes;
        left--;
    }
    return true;
}

/* ---- the directory ---- */

static void name_of(const uint8_t digest[32], char name[STORE_NAME]) {
    for (int i = 0; i < 32; i++) sprintf(name + 2 * i, "%02x", digest[i]);
}

/* Whether somebody writes it: then it is locked. */
static bool is_written(int directory, const char *name) {
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool written = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0) close(fd);
    return written;
}

/* What is there; what killed writers have left is removed. Under the lock. -1: errno. */
static int look(int directory, struct store_entry entries[2 * STORE_ENTRIES]) {
    int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *open_one = again < 0 ? NULL : fdopendir(again);
    if (open_one == NULL) {
        if (again >= 0) close(again);
        return -1;
    }
    int count = 0;
    for (struct dirent *entry; (entry = readdir(open_one)) != NULL;) {
        struct stat status;
        const char *name = entry->d_name;
        if (strlen(name) >= STORE_NAME || strcmp(name, LOCK) == 0 ||
            fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
            continue;
        bool draft = strncmp(name, DRAFT, strlen(DRAFT)) == 0;
        bool busy = draft && is_written(directory, name);
        if ((draft && !busy) || count == 2 * STORE_ENTRIES) {
            unlinkat(directory, name, 0);
            continue;
        }
        struct store_entry *one = &entries[count++];
        *one = (struct store_entry){.bytes = (uint64_t)status.st_size,
                                    .used_ns = (int64_t)status.st_mtim.tv_sec * 1000000000 +
                                               status.st_mtim.tv_nsec,
                                    .busy = busy};
        strcpy(one->name, name);
    }
    closedir(open_one);
    return count;
}

/* A file of that many bytes, under a name for now and locked; -1: there is no room. It has its size
 * from the beginning, so that whoever looks counts it. */
static int draft_open(int directory, uint64_t bytes, char name[STORE_NAME]) {
    static _Atomic unsigned number;
    snprintf(name, STORE_NAME, DRAFT "%d-%u", (int)getpid(), number++);
    int lock = openat(directory, LOCK, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0) return -1;
    struct store_entry *entries = calloc(2 * STORE_ENTRIES, sizeof *entries);
    int count = entries != NULL && flock(lock, LOCK_EX) == 0 ? look(directory, entries) : -1,
        fd = -1;
    if (count >= 0 && store_make_room(entries, (unsigned)count, bytes)) {
        for (int i = 0; i < count; i++)
            if (entries[i].goes) unlinkat(directory, entries[i].name, 0);
        fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) != 0 || ftruncate(fd, (off_t)bytes) != 0)) {
            unlinkat(directory, name, 0);
            close(fd);
            fd = -1;
        }
    }
    free(entries);
    close(lock);
    return fd;
}

/* ---- the keeper ---- */

static bool answer(int channel, bool good, int passed) {
    struct store_answer is = {.good = good};
    struct iovec part = {&is, sizeof is};
    return descriptor_send_all(channel, &part, 1, passed, 0);
}

static bool received(int channel, void *data, size_t bytes) {
    int64_t until = clock_now_ms() + 1000 * STORE_SECONDS;
    return descriptor_receive_all(channel, data, bytes, NULL, until);
}

/* What comes goes into the file. False: the session is gone. `*written`: all of it did. */
static bool fill(int channel, int fd, uint64_t bytes, bool *written) {
    uint8_t *piece = malloc(PIECE_BYTES);
    *written = piece != NULL;
    bool here = piece != NULL;
    while (here && bytes != 0) {
        size_t now = bytes < PIECE_BYTES ? (size_t)bytes : PIECE_BYTES;
        here = received(channel, piece, now);
        for (size_t done = 0; here && *written && done < now;) {
            ssize_t put = write(fd, piece + done, now - done);
            if (put > 0)
                done += (size_t)put;
            else if (put == 0 || errno != EINTR)
                *written = false;
        }
        bytes -= now;
    }
    free(piece);
    return here;
}

static bool keep(int directory, int channel, const struct store_request *request) {
    char draft[STORE_NAME], name[STORE_NAME];
    uint64_t bytes = STORE_FILE_BYTES(request->total);
    int fd = draft_open(directory, bytes, draft);
    if (fd < 0) return answer(channel, false, -1);
    name_of(request->digest, name);
    bool written = false;
    bool here = answer(channel, true, -1) && fill(channel, fd, bytes, &written);
    /* Opened again: what a session gets cannot be written through it, nor by its name. */
    int given = here && written && fchmod(fd, 0400) == 0
                    ? openat(directory, draft, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
                    : -1;
    bool good = given >= 0 && renameat(directory, draft, directory, name) == 0;
    if (!good) unlinkat(directory, draft, 0);
    here = here && answer(channel, good, good ? given : -1);
    if (given >= 0) close(given);
    close(fd);
    return here;
}

/* When it was used last is when it was modified last: mounts may not note when it was read. */
static bool find(int directory, int channel, const struct store_request *request) {
    char name[STORE_NAME];
    struct stat status;
    name_of(request->digest, name);
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool good = fd >= 0 && fstat(fd, &status) == 0 &&
                (uint64_t)status.st_size == STORE_FILE_BYTES(request->total);
    if (good) futimens(fd, NULL);
    bool here = answer(channel, good, good ? fd : -1);
    if (fd >= 0) close(fd);
    return here;
}

void store_serve(int directory, int channel) {
    struct store_request request;
    for (bool here = true; here && descriptor_receive_all(channel, &request, sizeof request, NULL,
                                                          DESCRIPTOR_NO_DEADLINE);) {
        bool sane = request.zero == 0 && request.total != 0 && request.total <= STORE_SHARE;
        if (sane && request.kind == STORE_FIND)
            here = find(directory, channel, &request);
        else if (sane && request.kind == STORE_KEEP)
            here = keep(directory, channel, &request);
        else
            here = false;
    }
    close(channel);
}

static int kept_directory;

static void *channel_thread(void *channel) {
    store_serve(kept_directory, (int)(intptr_t)channel);
    return NULL;
}

/* Of the daemon's own rights it needs none but to be the directory's owner. */
static bool confined(int directory) {
    const struct rlimit file = {STORE_FILE_BYTES(STORE_SHARE), STORE_FILE_BYTES(STORE_SHARE)};
    if (!confinement_give_up() || setrlimit(RLIMIT_FSIZE, &file) != 0) return false;
    if (landlock_abi() == 0) return true;
    int rules = landlock_directory(directory);
    bool held = rules >= 0 && landlock_enter(rules);
    if (rules >= 0) close(rules);
    return held;
}

static _Noreturn void keeper(int directory, int control, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "egpu-images");
    /* Events are the parent's, and so is all that it has inherited: locks, for one. */
    int highest = control > directory ? control : directory;
    int lowest = control < directory ? control : directory;
    close_range(3, (unsigned)lowest - 1, 0);
    if (highest > lowest + 1) close_range((unsigned)lowest + 1, (unsigned)highest - 1, 0);
    close_range((unsigned)highest + 1, ~0U, 0);
    signal(SIGPIPE, SIG_IGN);
    if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0 || getppid() != parent || !confined(directory)) {
        perror("egpu-executor: images are not kept: their keeper cannot be confined");
        _exit(1);
    }
    kept_directory = directory;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, CHANNEL_STACK_BYTES);
    char mark;
    for (int channel;
         descriptor_receive_all(control, &mark, 1, &channel, DESCRIPTOR_NO_DEADLINE);) {
        pthread_t thread;
        if (channel >= 0 &&
            pthread_create(&thread, &attributes, channel_thread, (void *)(intptr_t)channel) != 0)
            close(channel);
    }
    _exit(0); /* the parent is gone */
}

/* ---- the parent ---- */

static int keeper_control = -1;
static pid_t keeper_pid;

bool store_start(int directory) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
    pid_t parent = getpid();
    keeper_pid = fork();
    if (keeper_pid == 0) keeper(directory, pair[1], parent);
    int error = errno;
    close(pair[1]);
    close(directory);
    keeper_control = pair[0];
    errno = error;
    return keeper_pid > 0;
}

int store_connect(void) {
    const struct timeval patience = {.tv_sec = STORE_SECONDS};
    int pair[2];
    if (keeper_control < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    for (int i = 0; i < 2; i++)
        setsockopt(pair[i], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    char mark = 0;
    struct iovec part = {&mark, 1};
    bool passed = descriptor_send_all(keeper_control, &part, 1, pair[1], MSG_DONTWAIT);
    close(pair[1]);
    if (passed) return pair[0];
    close(pair[0]);
    return -1;
}

void store_close(void) {
    if (keeper_control >= 0) close(keeper_control);
    keeper_control = -1;
}

void store_ended(int pid) {
    if (pid != keeper_pid || keeper_control < 0) return;
    fprintf(stderr, "egpu-executor: the keeper of images has ended: sessions keep their own\n");
    store_close();
}

/* ---- the session ---- */

static bool ask(int channel, uint32_t kind, const uint8_t digest[32], uint64_t total) {
    struct store_request request = {.kind = kind, .total = total};
    memcpy(request.digest, digest, sizeof request.digest);
    struct iovec part = {&request, sizeof request};
    return descriptor_send_all(channel, &part, 1, -1, 0);
}

/* One that does not answer in time is not asked again: the next answer would be this one. */
static bool answered(int channel, int *passed) {
    struct store_answer is;
    int64_t until = clock_now_ms() + 1000 * STORE_SECONDS;
    if (descriptor_receive_all(channel, &is, sizeof is, passed, until)) return is.good;
    shutdown(channel, SHUT_RDWR);
    return false;
}

int store_find(int channel, const uint8_t digest[32], uint64_t total) {
    int fd = -1;
    return ask(channel, STORE_FIND, digest, total) && answered(channel, &fd) ? fd : -1;
}

int store_keep(int channel, const uint8_t digest[32], const uint8_t *image, uint64_t total) {
    int fd = -1;
    if (!ask(channel, STORE_KEEP, digest, total) || !answered(channel, NULL)) return -1;
    struct iovec part = {(void *)(uintptr_t)image, (size_t)STORE_FILE_BYTES(total)};
    return descriptor_send_all(channel, &part, 1, -1, 0) && answered(channel, &fd) ? fd : -1;
}
