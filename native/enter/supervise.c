/* A supervisor that outlives the process that started it.
 *
 * In DIRECTORY, each written aside and renamed:
 *
 *   pid    "<command pid> <its start time> <supervisor pid> <its start time>\n"; start times as in
 *          /proc/<pid>/stat
 *   log    the command's stdout and stderr in log.h's format (appended to)
 *   attach a socket for seeing the output at once and for typing (attach.h)
 *   exit   "<exit status> <signal> <CLOCK_REALTIME ns>\n"; signal 0: it exited by itself
 *
 * The command runs in its own session. SIGTERM, SIGINT, SIGHUP and SIGQUIT to the supervisor go to
 * the command's process group. When the command ends, all processes that it left are killed before
 * `exit` appears, so `exit` means that nothing of it is left. A killed supervisor takes the command
 * with it (parent-death signal) and leaves no `exit`.
 */
#define _GNU_SOURCE
#include "attach.h"
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
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/process.h"

/* Everything that has a path, opened while the paths lead there. */
static struct {
    int directory, nothing;
    int ends[3]; /* the command's stdin, stdout and stderr */
    struct log_stream streams[2];
    struct attached attached;
} prepared;

static unsigned long long stat_field(pid_t pid, int field) {
    char text[1024];
    return process_field(process_stat((uint32_t)pid, text, sizeof text), field);
}

/* Whole or not at all for readers while this machine runs: after a power failure the container that
 * it describes does not exist either. */
static bool write_file(int directory, const char *name, const char *text) {
    char draft[64];
    snprintf(draft, sizeof draft, ".%s.new", name);
    int file = openat(directory, draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return false;
    bool whole = write(file, text, strlen(text)) == (ssize_t)strlen(text);
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

/* Take one signal. Return whether the child has ended; pass other signals on to it. */
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

static _Noreturn void watch(pid_t child, int signals) {
    struct log_stream *streams = prepared.streams;
    struct attached *attached = &prepared.attached;
    int status = 0;
    struct pollfd sources[3 + ATTACH_POLLED];
    for (;;) {
        bool behind = attach_behind(attached);
        sources[0] = (struct pollfd){.fd = signals, .events = POLLIN};
        for (int i = 0; i < 2; i++)
            sources[1 + i] = (struct pollfd){.fd = behind ? -1 : streams[i].pipe, .events = POLLIN};
        attach_poll(attached, sources + 3);
        if (poll(sources, 3 + ATTACH_POLLED, -1) < 0) continue;
        for (int i = 0; i < 2; i++)
            if (sources[1 + i].revents != 0 && !attach_behind(attached)) log_take(&streams[i]);
        struct attach_caller *caller = attach_serve(attached, sources + 3);
        for (int i = 0; caller != NULL && i < 2; i++) log_tell_before(&streams[i], caller);
        if (sources[0].revents != 0 && take_signal(signals, child, &status)) break;
    }
    enter_kill_descendants();
    for (int i = 0; i < 2; i++) log_finish(&streams[i]);
    attach_finish(attached);
    char text[96];
    snprintf(text, sizeof text, "%d %d %llu\n",
             WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
             WIFSIGNALED(status) ? WTERMSIG(status) : 0, (unsigned long long)clock_unix_ns());
    _exit(write_file(prepared.directory, "exit", text) ? 0 : ENTER_FAILED);
}

/* Open a pipe. One end is ours and never waited for; the other is the command's and is not
 * inherited by itself. */
static bool open_pipe(int *ours, int *theirs, bool we_write) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    *ours = ends[we_write];
    *theirs = ends[!we_write];
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

static bool open_terminal(int *ours, int *theirs) {
    char path[64];
    *ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (*ours < 0 || unlockpt(*ours) != 0 || ptsname_r(*ours, path, sizeof path) != 0) return false;
    *theirs = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return *theirs >= 0;
}

static bool open_streams(enum enter_input input) {
    struct attached *attached = &prepared.attached;
    int *ends = prepared.ends;
    attached->input = -1;
    attached->terminal = input == INPUT_TERMINAL;
    for (int i = 0; i < 2; i++) {
        prepared.streams[i].channel = i == 0 ? ATTACH_STDOUT : ATTACH_STDERR;
        prepared.streams[i].attached = attached;
        prepared.streams[i].pipe = -1;
    }
    if (attached->terminal) {
        if (!open_terminal(&attached->input, &ends[0])) return false;
        prepared.streams[0].pipe = attached->input;
        ends[1] = ends[2] = ends[0];
        return true;
    }
    if (input == INPUT_NONE)
        ends[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    else if (!open_pipe(&attached->input, &ends[0], true))
        return false;
    return ends[0] >= 0 && open_pipe(&prepared.streams[0].pipe, &ends[1], false) &&
           open_pipe(&prepared.streams[1].pipe, &ends[2], false);
}

/* Writes the file `pid`: the command and its supervisor, each with the time of its start. */
static void write_pids(int directory, pid_t child, pid_t supervisor, int pipe) {
    char text[128];
    snprintf(text, sizeof text, "%d %llu %d %llu\n", child, stat_field(child, PROCESS_START_TIME),
             supervisor, stat_field(supervisor, PROCESS_START_TIME));
    if (!write_file(directory, "pid", text)) {
        int error = errno;
        kill(child, SIGKILL);
        errno = error;
        report(pipe, "cannot write the pid file");
    }
}

static void run_supervisor(int pipe) {
    if (setsid() < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        report(pipe, "cannot become a supervisor");
    unlinkat(prepared.directory, "exit", 0);

    sigset_t watched, before;
    sigemptyset(&watched);
    const int forwarded[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(&watched, forwarded[i]);
    sigprocmask(SIG_BLOCK, &watched, &before);
    signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would lose the exit status */
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
        /* only after the pid file exists, and never if the supervisor has died */
        if (read(go[0], &start, 1) != 1 || getppid() != supervisor) _exit(ENTER_FAILED);
        for (int stream = 0; stream <= 2; stream++) dup2(prepared.ends[stream], stream);
        if (prepared.attached.terminal && ioctl(0, TIOCSCTTY, 0) != 0) _exit(ENTER_FAILED);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return; /* main() execs the command */
    }
    write_pids(prepared.directory, child, supervisor, pipe);
    close(pipe); /* without a report: the command runs */
    /* Keep our end of a terminal: another process must not get it, and it must not hang up. */
    for (int stream = 0; stream <= 2 && !prepared.attached.terminal; stream++)
        close(prepared.ends[stream]);
    for (int stream = 0; stream <= 2; stream++) dup2(prepared.nothing, stream);
    if (write(go[1], "", 1) != 1) kill(child, SIGKILL);
    close(go[1]);
    close(go[0]);
    signal(SIGPIPE, SIG_IGN); /* a command need not read its input */
    watch(child, signals);
}

void enter_prepare_supervisor(const char *path, enum enter_input input) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        enter_fail("cannot make %s: %s", path, strerror(errno));
    prepared.directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (prepared.directory < 0) enter_fail("%s: %s", path, strerror(errno));
    int log = openat(prepared.directory, "log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    prepared.nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (log < 0 || prepared.nothing < 0) enter_fail("cannot open the log: %s", strerror(errno));
    if (!open_streams(input)) enter_fail("cannot open its streams: %s", strerror(errno));
    prepared.streams[0].file = prepared.streams[1].file = log;
    if (!attach_open(&prepared.attached, prepared.directory))
        enter_fail("cannot listen for programs that attach: %s", strerror(errno));
}

void enter_supervise(void) {
    int pipe[2];
    if (pipe2(pipe, O_CLOEXEC) != 0) enter_fail("cannot make a pipe: %s", strerror(errno));
    pid_t supervisor = fork();
    if (supervisor < 0) enter_fail("cannot fork: %s", strerror(errno));
    if (supervisor == 0) {
        close(pipe[0]);
        run_supervisor(pipe[1]);
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
