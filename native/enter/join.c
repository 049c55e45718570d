/* A command beside a running one: in the same mounts, and ended with everything it starts. */
#define _GNU_SOURCE
#include "enter.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/* Enter one namespace of a process, unless it is ours already: that needs no privilege. */
static void join_namespace(const char *process, const char *kind, int type) {
    char path[64], own[64];
    struct stat theirs, ours;
    snprintf(path, sizeof path, "/proc/%s/ns/%s", process, kind);
    snprintf(own, sizeof own, "/proc/self/ns/%s", kind);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &theirs) != 0 || stat(own, &ours) != 0)
        enter_fail("--join %s: cannot open %s: %s", process, path, strerror(errno));
    bool there = theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino;
    if (!there && setns(file, type) != 0)
        enter_fail("--join %s: cannot enter its %s namespace: %s", process, kind, strerror(errno));
    close(file);
}

void enter_join(const char *process) {
    if (process[0] == 0 || strspn(process, "0123456789") != strlen(process))
        enter_fail("--join %s: want a process id", process);
    join_namespace(process, "user", CLONE_NEWUSER); /* first: it owns the mounts */
    join_namespace(process, "mnt", CLONE_NEWNS);
}

static _Noreturn void attend(pid_t child, const sigset_t *watched) {
    int status = 0;
    for (;;) {
        int number = sigwaitinfo(watched, NULL);
        if (number > 0 && number != SIGCHLD) break; /* a signal: end it */
        pid_t ended;
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0 && ended != child) continue;
        if (ended == child) {
            enter_kill_descendants();
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        }
    }
    enter_kill_descendants();
    _exit(ENTER_FAILED);
}

void enter_attend(bool terminal) {
    sigset_t watched, before;
    sigemptyset(&watched);
    const int awaited[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof awaited / sizeof *awaited; i++) sigaddset(&watched, awaited[i]);
    sigprocmask(SIG_BLOCK, &watched, &before);
    signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would lose the exit status */
    /* neither this process nor the command may outlive the process that started us */
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
        enter_fail("cannot attend the command: %s", strerror(errno));
    pid_t attendant = getpid(), child = fork();
    if (child < 0) enter_fail("cannot fork: %s", strerror(errno));
    if (child > 0) {
        /* only the command has its streams: they end with it, not with us */
        int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int stream = 0; nothing >= 0 && stream <= 2; stream++) dup2(nothing, stream);
        attend(child, &watched);
    }
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != attendant) _exit(ENTER_FAILED);
    if (terminal && ioctl(STDIN_FILENO, TIOCSCTTY, 0) != 0)
        enter_fail("--terminal: standard input is not a terminal: %s", strerror(errno));
    sigprocmask(SIG_SETMASK, &before, NULL);
}
