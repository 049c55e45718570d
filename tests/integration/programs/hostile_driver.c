/* A driver in which somebody else's code runs: once its session is sandboxed it tries what an
 * attacker would, and says on standard error of each whether it was had ("had") or refused
 * ("refused"). SECRET: a file that is not its business; FORBIDDEN: one that it would like to make;
 * VICTIM, NEIGHBOUR, KEEPER: processes; NEIGHBOUR_DIRECTORY: of another lease; SLICE: its own
 * lease's. IMAGE, NEIGHBOUR_IMAGE: digests of images, of IMAGE_BYTES, that its caller and another
 * one have sent. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "executor/images/store.h"

static char lines[16384];
static size_t used;

static void say(const char *what, int had) {
    used += (size_t)snprintf(lines + used, sizeof lines - used, "hostile %s %s\n", what,
                             had ? "had" : "refused");
}

static int can_open(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static int memory_of(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    return can_open(path, O_RDWR) || can_open(path, O_RDONLY);
}

static int environment_of(int pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    return can_open(path, O_RDONLY);
}

static int root_of(int pid) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/%s/etc", pid, "root");
    return stat(path, &status) == 0;
}

static int processes(int pid, int (*what)(int)) { return what(pid); }

static int vm_of(int pid) {
    char byte = 0;
    struct iovec here = {&byte, 1}, there = {&byte, 1};
    return syscall(SYS_process_vm_writev, pid, &here, 1, &there, 1, 0) >= 0 || errno != EPERM;
}

static int traced(int pid) { return ptrace(PTRACE_SEIZE, pid, 0, 0) == 0; }

static int limited(int pid) {
    struct rlimit now;
    return prlimit(pid, RLIMIT_NOFILE, NULL, &now) == 0;
}

static int signalled(int pid) { return kill(pid, SIGURG) == 0; }

/* By a descriptor that tells somebody else of its news, with a signal of our choice. */
static int signalled_by_news(int pid) {
    int ends[2];
    if (pipe(ends) != 0) return 0;
    return fcntl(ends[0], F_SETOWN, pid) == 0 || fcntl(ends[0], 10 /* F_SETSIG */, SIGURG) == 0 ||
           ioctl(ends[0], FIOSETOWN, &pid) == 0;
}

static void try_process(const char *who, int pid) {
    static const struct {
        const char *name;
        int (*what)(int);
    } tries[] = {{"memory", memory_of}, {"environment", environment_of},
                 {"root", root_of},     {"process_vm_writev", vm_of},
                 {"ptrace", traced},    {"prlimit", limited},
                 {"signal", signalled}, {"signal by news", signalled_by_news}};
    for (unsigned i = 0; i < sizeof tries / sizeof *tries; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s of %s", tries[i].name, who);
        say(name, processes(pid, tries[i].what));
    }
}

/* The kernel has it or not, it may be called right or wrong: EPERM and nothing else is the filter.
 */
static void try_call(const char *name, long number) {
    errno = 0;
    long got = syscall(number, -1, -1, -1, -1, -1, -1);
    say(name, !(got == -1 && errno == EPERM));
}

static void try_socket(const char *name, int family) {
    errno = 0;
    say(name, socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0) >= 0 || errno != EPERM);
}

static void try_calls(void) {
#define TRY(name) try_call(#name, SYS_##name)
    TRY(process_vm_readv);
    TRY(ptrace);
    TRY(kcmp);
    TRY(pidfd_open);
    TRY(pidfd_getfd);
    TRY(bpf);
    TRY(userfaultfd);
    TRY(keyctl);
    TRY(add_key);
    TRY(io_uring_setup);
    TRY(mount);
    TRY(umount2);
    TRY(open_tree);
    TRY(move_mount);
    TRY(pivot_root);
    TRY(chroot);
    TRY(unshare);
    TRY(setns);
    TRY(open_by_handle_at);
    TRY(name_to_handle_at);
    TRY(execve);
    TRY(execveat);
    TRY(socket);
    TRY(socketpair);
    TRY(connect);
    try_socket("a socket of its network", AF_INET);
    try_socket("a socket to other machines' hosts", AF_VSOCK);
    try_socket("a socket of the kernel's ciphers", AF_ALG);
    try_socket("a socket of packets", AF_PACKET);
    TRY(setuid);
    TRY(setsid);
    TRY(setpgid);
    TRY(perf_event_open);
    TRY(init_module);
    TRY(personality);
    TRY(fchmodat);
    TRY(unlinkat);
    TRY(renameat2);
    TRY(mkdirat);
    TRY(mknodat);
    TRY(tgkill);
    TRY(sched_setattr);
    TRY(setpriority);
}

static int fork_one(void) {
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return pid > 0;
}

static int grow(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd >= 0 &&
           (ftruncate(fd, INT64_C(1) << 30) == 0 || pwrite(fd, "", 1, INT64_C(1) << 30) == 1);
}

/* The channel to the keeper of images that every session has. */
static int image_channel(void) {
    char words[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = read(fd, words, sizeof words - 1);
    words[got < 0 ? 0 : got] = 0;
    close(fd);
    for (char *word = words; word < words + got; word += strlen(word) + 1)
        if (strcmp(word, "--images") == 0) return atoi(word + strlen(word) + 1);
    return -1;
}

static int image_answer(int channel) {
    struct store_answer is = {0};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control;
    struct iovec part = {&is, sizeof is};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    int fd = -1;
    if (recvmsg(channel, &message, 0) != sizeof is || !is.good) return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL) memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static int image_find(int channel, const char *name) {
    struct store_request request = {.kind = STORE_FIND, .total = IMAGE_BYTES};
    for (int i = 0; i < 32; i++) sscanf(name + 2 * i, "%2hhx", &request.digest[i]);
    return send(channel, &request, sizeof request, 0) < 0 ? -1 : image_answer(channel);
}

static int image_changed(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return can_open(path, O_RDWR) || can_open(path, O_WRONLY) || write(fd, "x", 1) == 1 ||
           ftruncate(fd, 1) == 0 || fallocate(fd, 0, 0, 1 << 20) == 0 || fchmod(fd, 0666) == 0 ||
           mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED;
}

/* Something else under a digest that its caller has. */
static int image_forged(int channel, const char *name) {
    static char other[IMAGE_BYTES + 1] = "not what its digest says";
    struct store_request request = {.kind = STORE_KEEP, .total = IMAGE_BYTES};
    struct store_answer room = {0};
    for (int i = 0; i < 32; i++) sscanf(name + 2 * i, "%2hhx", &request.digest[i]);
    return send(channel, &request, sizeof request, 0) > 0 &&
           recv(channel, &room, sizeof room, MSG_WAITALL) == sizeof room && room.good &&
           send(channel, other, sizeof other, 0) > 0 && image_answer(channel) >= 0;
}

static void try_images(void) {
    int channel = image_channel(), mine = image_find(channel, IMAGE);
    say("honest: an image of its caller", mine >= 0);
    say("changing an image", image_changed(mine));
    say("an image of another caller", image_find(channel, NEIGHBOUR_IMAGE) >= 0);
    say("honest: keeping an image", image_forged(channel, IMAGE));
    struct store_request nonsense = {.kind = 77, .total = UINT64_MAX};
    char byte;
    say("honest: being hung up on",
        send(channel, &nonsense, sizeof nonsense, 0) > 0 && recv(channel, &byte, 1, 0) == 0);
}

static int has_capabilities(void) {
    char text[4096] = "";
    FILE *file = fopen("/proc/self/status", "re");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[got] = 0;
    for (const char *at = text; (at = strstr(at, "Cap")) != NULL; at++)
        if (at[6] == ':' && strtoull(at + 7, NULL, 16) != 0) return 1;
    return 0;
}

static int core_files(void) {
    struct rlimit core;
    return getrlimit(RLIMIT_CORE, &core) == 0 && core.rlim_max != 0;
}

static void *attack(void *unused) {
    (void)unused;
    for (char text[4096];;) {
        FILE *file = fopen("/proc/self/status", "re");
        size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file) fclose(file);
        text[got] = 0;
        if (strstr(text, "Seccomp:\t2") != NULL) break;
        usleep(1000);
    }
    signal(SIGXFSZ, SIG_IGN);
    say("a secret", can_open(SECRET, O_RDONLY));
    say("the machine's passwords",
        can_open("/etc/shadow", O_RDONLY) || can_open("/etc/passwd", O_RDONLY));
    say("a new file", can_open(FORBIDDEN, O_WRONLY | O_CREAT));
    say("a new file beside the usage", can_open(SLICE "/new", O_WRONLY | O_CREAT));
    say("a new file in /tmp", can_open("/tmp/egpu-hostile", O_WRONLY | O_CREAT));
    say("its policy", can_open(SLICE "/policy", O_RDWR));
    say("its record", can_open(SLICE "/executor.json", O_RDONLY));
    say("a neighbour's usage", can_open(NEIGHBOUR_DIRECTORY "/usage", O_RDONLY));
    say("a neighbour's policy", can_open(NEIGHBOUR_DIRECTORY "/policy", O_RDONLY));
    say("a setting of the kernel", can_open("/proc/sys/kernel/core_pattern", O_WRONLY));
    say("growing its usage", grow(SLICE "/usage"));
    say("capabilities", has_capabilities());
    say("core files", core_files());
    say("a process", fork_one());
    say("being looked at", prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    say("outliving its parent", prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) == 0);
    try_process("another process", VICTIM);
    try_process("its parent", getppid());
    try_process("a neighbour", NEIGHBOUR);
    try_process("what keeps images", KEEPER);
    try_images();
    try_calls();
    /* What an honest driver does. */
    struct rlimit own;
    say("honest: its usage", can_open(SLICE "/usage", O_RDWR));
    say("honest: its policy", can_open(SLICE "/policy", O_RDONLY));
    say("honest: its libraries", can_open("/usr/lib", O_RDONLY | O_DIRECTORY));
    say("honest: its maps", can_open("/proc/self/maps", O_RDONLY));
    say("honest: the machine's processors", can_open("/sys/devices/system/cpu/possible", O_RDONLY));
    say("honest: its limits", prlimit(0, RLIMIT_NOFILE, NULL, &own) == 0);
    say("honest: naming itself", prctl(PR_SET_NAME, "driver", 0, 0, 0) == 0);
    say("honest: memory without a file", syscall(SYS_memfd_create, "driver", 0) >= 0);
    say("end", 1);
    if (write(STDERR_FILENO, lines, used) < 0) abort();
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, attack, NULL);
}
