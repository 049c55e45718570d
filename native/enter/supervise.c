/* A supervisor that outlives whoever started it.
 *
 * In DIRECTORY, each written aside and renamed:
 *
 *   pid    "<command pid> <its start time> <supervisor pid> <its start time>\n"; start times as in
 *          /proc/<pid>/stat
 *   log    what the command writes to stdout and stderr, as log.h says (appended to)
 *   exit   "<exit status> <signal> <CLOCK_REALTIME ns>\n"; signal 0 when it exited by itself
 *
 * The command runs in its own session; SIGTERM, SIGINT, SIGHUP and SIGQUIT to the supervisor go to
 * the command's process group. When the command ends, whatever it left running is killed before
 * `exit` appears, so `exit` means that nothing of it is left. A supervisor that is killed takes the
 * command with it (its parent-death signal) and leaves no `exit`.
 */
#define _GNU_SOURCE
#include "enter.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/process.h"

static unsigned long long stat_field(pid_t pid, int field) {
    char text[1024];
    return process_field(process_stat((uint32_t)pid, text, sizeof text), field);
}

static bool write_file(int directory, const char *name, const char *text) {
    char draft[64];
    snprintf(draft, sizeof draft, ".%s.new", name);
    int file = openat(directory, draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return false;
    bool whole = write(file, text, strlen(text)) == (ssize_t)strlen(text) && fsync(file) == 0;
    return close(file) == 0 && whole && renameat(directory, draft, directory, name) == 0;
}

void enter_kill_descendants(void) {
    for (;;) {
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        while (proc != NULL && (entry = readdir(proc)) != NULL) {
            pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
            if (pid > 0 && (pid_t)stat_field(pid, PROCESS_PARENT) == getpid()) kill(pid, SIGKILL);
        }
        if (proc != NULL) closedir(proc);
        if (waitpid(-1, NULL, 0) < 0 && errno == ECHILD) return;
    }
}

static void report(int pipe, const char *what) {
    dprintf(pipe, "%s: %s", what, strerror(errno));
    _exit(ENTER_FAILED);
}

/* Takes one signal. Says whether the child has ended; the others are passed on to it. */
static bool take_signal(int signals, pid_t child, int *status) {
    struct signalfd_siginfo arrived;
    if (read(signals, &arrived, sizeof arrived) != sizeof arrived) return false;
    int number = (int)arrived.ssi_signo;
    if (number != SIGCHLD) {
        if (kill(-child, number) != 0) kill(child, number);
        return false;
    }
    pid_t ended;
    while ((ended = waitpid(-1, status, WNOHANG)) > 0)
        if (ended == child) return true;
    return false;
}

static _Noreturn void watch(pid_t child, int directory, int signals, struct log_stream *streams) {
    int status = 0;
    struct pollfd sources[] = {
        {signals, POLLIN, 0}, {streams[0].pipe, POLLIN, 0}, {streams[1].pipe, POLLIN, 0}};
    for (;;) {
        if (poll(sources, 3, -1) < 0) continue;
        for (int i = 0; i < 2; i++)
            if (sources[1 + i].revents != 0 && log_take(&streams[i]) == 0) sources[1 + i].fd = -1;
        if (sources[0].revents != 0 && take_signal(signals, child, &status)) break;
    }
    enter_kill_descendants();
    for (int i = 0; i < 2; i++) log_finish(&streams[i]);
    char text[96];
    snprintf(text, sizeof text, "%d %d %llu\n",
             WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
             WIFSIGNALED(status) ? WTERMSIG(status) : 0, (unsigned long long)clock_unix_ns());
    _exit(write_file(directory, "exit", text) ? 0 : ENTER_FAILED);
}

/* A pipe for one stream of the command: its end of it, which is not passed on by itself. */
static int open_stream(struct log_stream *stream, const char *name, int file) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return -1;
    stream->name = name;
    stream->file = file;
    stream->pipe = ends[0];
    stream->length = 0;
    return ends[1];
}

static void run_supervisor(const char *path, int pipe) {
    static struct log_stream streams[2];
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) report(pipe, path);
    int log = openat(directory, "log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (log < 0 || nothing < 0) report(pipe, "cannot open the log");
    int out = open_stream(&streams[0], "stdout", log),
        err = open_stream(&streams[1], "stderr", log);
    if (out < 0 || err < 0) report(pipe, "cannot make a pipe");
    if (setsid() < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        report(pipe, "cannot become a supervisor");
    unlinkat(directory, "exit", 0);

    sigset_t watched, before;
    sigemptyset(&watched);
    const int forwarded[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(&watched, forwarded[i]);
    sigprocmask(SIG_BLOCK, &watched, &before);
    signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would swallow the exit status */
    int signals = signalfd(-1, &watched, SFD_CLOEXEC);
    if (signals < 0) report(pipe, "cannot wait for signals");

    int go[2];
    if (pipe2(go, O_CLOEXEC) != 0) report(pipe, "cannot make a pipe");
    pid_t supervisor = getpid(), child = fork();
    if (child < 0) report(pipe, "cannot fork");
    if (child == 0) {
        char start;
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(go[1]);
        /* not before the pid file is there; and not at all if the supervisor died meanwhile */
        if (read(go[0], &start, 1) != 1 || getppid() != supervisor) _exit(ENTER_FAILED);
        dup2(nothing, 0);
        dup2(out, 1);
        dup2(err, 2);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return; /* main() execs the command */
    }
    char text[128];
    snprintf(text, sizeof text, "%d %llu %d %llu\n", child, stat_field(child, PROCESS_START_TIME),
             supervisor, stat_field(supervisor, PROCESS_START_TIME));
    if (!write_file(directory, "pid", text)) {
        int error = errno;
        kill(child, SIGKILL);
        errno = error;
        report(pipe, "cannot write the pid file");
    }
    close(pipe); /* nothing was said: it runs */
    close(out);
    close(err);
    for (int stream = 0; stream <= 2; stream++) dup2(nothing, stream);
    if (write(go[1], "", 1) != 1) kill(child, SIGKILL);
    close(go[1]);
    close(go[0]);
    watch(child, directory, signals, streams);
}

void enter_supervise(const char *directory) {
    int pipe[2];
    if (mkdir(directory, 0755) != 0 && errno != EEXIST)
        enter_fail("cannot make %s: %s", directory, strerror(errno));
    if (pipe2(pipe, O_CLOEXEC) != 0) enter_fail("cannot make a pipe: %s", strerror(errno));
    pid_t supervisor = fork();
    if (supervisor < 0) enter_fail("cannot fork: %s", strerror(errno));
    if (supervisor == 0) {
        close(pipe[0]);
        run_supervisor(directory, pipe[1]);
        return;
    }
    char problem[512];
    size_t length = 0;
    ssize_t size;
    close(pipe[1]);
    while (length < sizeof problem - 1 &&
           (size = read(pipe[0], problem + length, sizeof problem - 1 - length)) > 0)
        length += (size_t)size;
    problem[length] = 0;
    if (length > 0) enter_fail("%s", problem);
    int status;
    if (waitpid(supervisor, &status, WNOHANG) == supervisor && WIFEXITED(status) &&
        WEXITSTATUS(status) != 0)
        enter_fail("the supervisor ended at once");
    exit(0);
}
