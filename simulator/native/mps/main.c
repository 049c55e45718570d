/* nvidia-cuda-mps-control for simulated cards: -d and -f start the daemon of a pipe directory;
 * without either, commands from standard input are sent to it. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PROGRAM "nvidia-cuda-mps-control"
#define PID_FILE PROGRAM ".pid"
#define LOCK_FILE "control_lock"
#define LOG_FILE "control.log"

static const char *directory_of(const char *variable, const char *usual) {
    const char *set = getenv(variable);
    return set && *set ? set : usual;
}

static _Noreturn void give_up(const char *what) {
    fprintf(stderr, PROGRAM ": %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- commands ---- */

static int ask(int fd, const char *line) {
    struct mps_message message = {.kind = MPS_COMMAND};
    snprintf(message.text, sizeof message.text, "%s", line);
    if (!mps_send(fd, &message) || !mps_receive(fd, &message, 0)) return 1;
    fputs(message.text, stdout);
    return message.result;
}

static int talk(const char *pipes) {
    char line[MPS_TEXT_BYTES];
    int status = 0;
    int fd = mps_connect(pipes, MPS_COMMAND_SOCKET);
    if (fd < 0) {
        puts("Cannot find MPS control daemon process");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) status |= ask(fd, line);
    close(fd);
    return status;
}

/* ---- the daemon ---- */

static void make_directory(const char *path) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST) give_up(path);
}

/* One daemon per directory; the lock ends with it. */
static void be_the_only_one(void) {
    int fd = open(LOCK_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) give_up(LOCK_FILE);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return;
    fputs("An instance of this daemon is already running\n", stderr);
    exit(1);
}

/* `mode`: only who may write to a socket can connect to it. */
static int listen_here(const char *name, mode_t mode) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) give_up("socket");
    unlink(name);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || chmod(name, mode) != 0 ||
        listen(fd, MAX_CONNECTIONS) != 0)
        give_up(name);
    return fd;
}

static void write_pid(pid_t pid) {
    unlink(PID_FILE); /* whatever is there, and wherever it leads */
    FILE *file = fopen(PID_FILE, "wxe");
    if (!file || fprintf(file, "%d\n", (int)pid) < 0 || fclose(file) != 0) give_up(PID_FILE);
}

/* After our exit the daemon's pid file exists, and it listens. */
static void leave_terminal(int log) {
    pid_t daemon = fork();
    if (daemon < 0) give_up("fork");
    if (daemon > 0) {
        write_pid(daemon);
        _exit(0);
    }
    setsid();
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
}

static int serve(const char *pipes, bool background) {
    static struct control control;
    const char *logs = directory_of("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps");
    make_directory(pipes);
    make_directory(logs);
    if (chdir(logs) != 0) give_up(logs);
    int log = open(LOG_FILE, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (log < 0) give_up(LOG_FILE);
    if (chdir(pipes) != 0) give_up(pipes);
    be_the_only_one();
    /* Any user may become a client: programs in containers have any user. */
    int listener = listen_here(MPS_SOCKET, 0666),
        privileged = listen_here(MPS_COMMAND_SOCKET, 0600);
    if (background)
        leave_terminal(log); /* the child also has the lock */
    else
        write_pid(getpid());
    signal(SIGPIPE, SIG_IGN);
    control_init(&control, listener, privileged);
    control_log("starting in %s", pipes);
    control_run(&control);
    unlink(MPS_SOCKET);
    unlink(MPS_COMMAND_SOCKET);
    unlink(PID_FILE);
    control_log("ended");
    return 0;
}

int main(int argc, char **argv) {
    const char *pipes = directory_of(MPS_PIPE_DIRECTORY, "/tmp/nvidia-mps");
    if (argc == 1) return talk(pipes);
    if (argc == 2 && strcmp(argv[1], "-d") == 0) return serve(pipes, true);
    if (argc == 2 && strcmp(argv[1], "-f") == 0) return serve(pipes, false);
    fputs("usage: " PROGRAM " [-d | -f]\n", stderr);
    return 2;
}
