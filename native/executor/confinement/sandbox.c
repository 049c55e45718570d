/* What a session may still do once it has its driver: compute, map memory, open files, talk on what
 * it has. No program is executed, no process is made, traced, read, limited or signalled, no new
 * connection is opened, no privilege is gained. A list of what is allowed, for a driver's needs are
 * known (its own ioctls, files, memory, threads) and the kernel's next calls are not: whatever is
 * not listed fails with EPERM.
 */
#define _GNU_SOURCE
#include "executor/executor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the sandbox is written for x86-64 and AArch64"
#endif

/* What a warm driver (driver_warm) and our own threads go on doing, with the reason. Not here,
 * because it is done once and before: sockets that are made, bound or listened on, directories and
 * names that are made, moved or removed (the cache of compiled code: without it a driver compiles
 * again). */
static const int allowed[] = {
    /* frames, and waiting for them: first, for the list is walked */
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_futex,
    SYS_clock_gettime,
    SYS_recvmsg,
    SYS_nanosleep,
    SYS_read,
    SYS_write,
    /* files that there are: device nodes of the other cards, libraries, /proc and /sys; what may be
     * opened is the view's and Landlock's to say */
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_close,
    SYS_openat,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_lseek,
    SYS_readlinkat,
    SYS_faccessat,
    SYS_getdents64,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_flock,
    SYS_fstatfs,
    SYS_statfs,
    /* a context's own events, and descriptors for memory that is exported */
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_eventfd2,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_ppoll,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_memfd_create,
    /* memory: reserved for the card's addresses, pinned for its copies, near to it */
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_mlock,
    SYS_munlock,
    SYS_mbind,
    SYS_get_mempolicy,
    SYS_set_mempolicy,
    SYS_membarrier,
    SYS_msync,
    SYS_mincore,
    /* threads: a driver starts some for each context, and places them */
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_getparam,
    SYS_sched_setscheduler,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getcpu,
    SYS_sigaltstack,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_restart_syscall,
    SYS_exit,
    SYS_exit_group,
    /* time */
    SYS_clock_nanosleep,
    SYS_clock_getres,
    SYS_gettimeofday,
    /* connections that are open */
    SYS_sendto,
    SYS_shutdown,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_getpeername,
    /* who and where it is */
    SYS_getpid,
    SYS_gettid,
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrusage,
#if defined(__x86_64__)
    /* older forms of the same */
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_poll,
    SYS_select,
    SYS_pipe,
    SYS_dup2,
    SYS_epoll_wait,
    SYS_arch_prctl,
    SYS_time,
#endif
};

/* What NCCL does to find other ranks, in a network that has nobody else in it; with sockets of the
 * kinds that such a network keeps apart (see judged). */
static const int networking[] = {
    SYS_bind, SYS_listen, SYS_connect, SYS_accept, SYS_accept4,
};

#define ALWAYS (sizeof allowed / sizeof *allowed)
#define COUNT (ALWAYS + sizeof networking / sizeof *networking)
#define MAX_VALUES 16

/* Calls that are allowed, or refused, by the low word of one argument: all that the kernel reads of
 * these. */
static const struct {
    int call;
    unsigned argument;
    bool refused;   /* with these values; otherwise allowed with them only */
    bool networked; /* where there is a network alone */
    unsigned count;
    unsigned values[MAX_VALUES];
} judged[] = {
    /* Not whom a descriptor tells of its news, and by which signal. */
    {SYS_fcntl,
     1,
     false,
     false,
     15,
     {F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_OFD_GETLK,
      F_OFD_SETLK, F_OFD_SETLKW, F_DUPFD_CLOEXEC, F_ADD_SEALS, F_GET_SEALS, F_SETPIPE_SZ}},
    /* The same by ioctl, and input that a terminal is made to believe in. */
    {SYS_ioctl, 1, true, false, 5, {FIOSETOWN, SIOCSPGRP, FIOASYNC, TIOCSTI, TIOCLINUX}},
    /* A driver names its threads and their memory; not who dies with whom, or may look at whom. */
    {SYS_prctl,
     0,
     false,
     false,
     5,
     {PR_SET_NAME, PR_GET_NAME, PR_SET_TIMERSLACK, PR_SET_VMA, PR_GET_DUMPABLE}},
    /* Its own limits, by the number that means itself. */
    {SYS_prlimit64, 0, false, false, 1, {0}},
    /* Whether a process lives may be asked (the usage file's dead are found so), and a thread. */
    {SYS_kill, 1, false, false, 1, {0}},
    {SYS_tgkill, 2, false, false, 1, {0}},
    {SYS_socket, 0, false, true, 4, {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}},
    {SYS_socketpair, 0, false, true, 1, {AF_UNIX}},
};
#define JUDGED (sizeof judged / sizeof *judged)

struct program {
    struct sock_filter code[COUNT + 24 + JUDGED * (MAX_VALUES + 4)];
    unsigned length;
};

static void put(struct program *program, unsigned short code, unsigned value, unsigned char yes,
                unsigned char no) {
    program->code[program->length++] = (struct sock_filter){code, yes, no, value};
}

static void answer(struct program *program, unsigned action) {
    put(program, BPF_RET | BPF_K, action, 0, 0);
}

static void load_argument(struct program *program, unsigned argument) {
    put(program, BPF_LD | BPF_W | BPF_ABS,
        (unsigned)(offsetof(struct seccomp_data, args) + argument * sizeof(uint64_t)), 0, 0);
}

/* Is it this call? If not, on to what follows the next `length` instructions. */
static void only_for(struct program *program, int call, unsigned length) {
    put(program, BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, (unsigned char)length);
}

static void judge(struct program *program, unsigned which) {
    unsigned count = judged[which].count, refusal = SECCOMP_RET_ERRNO | EPERM;
    only_for(program, judged[which].call, count + 3);
    load_argument(program, judged[which].argument);
    for (unsigned i = 0; i < count; i++)
        put(program, BPF_JMP | BPF_JEQ | BPF_K, judged[which].values[i], (unsigned char)(count - i),
            0);
    answer(program, judged[which].refused ? SECCOMP_RET_ALLOW : refusal);
    answer(program, judged[which].refused ? refusal : SECCOMP_RET_ALLOW);
}

/* Threads, not processes. clone3 hides its flags in memory: glibc falls back to clone. */
static void judge_clone(struct program *program) {
    only_for(program, SYS_clone3, 1);
    answer(program, SECCOMP_RET_ERRNO | ENOSYS);
    only_for(program, SYS_clone, 4);
    load_argument(program, 0);
    put(program, BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1);
    answer(program, SECCOMP_RET_ALLOW);
    answer(program, SECCOMP_RET_ERRNO | EPERM);
}

bool sandbox_enter(void) {
    static struct program program;
    put(&program, BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch), 0, 0);
    put(&program, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    answer(&program, SECCOMP_RET_KILL_PROCESS);
    put(&program, BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    judge_clone(&program);
    for (unsigned i = 0; i < JUDGED; i++)
        if (!judged[i].networked || session_has_network()) judge(&program, i);
    unsigned count = session_has_network() ? COUNT : ALWAYS;
    for (unsigned i = 0; i < count; i++) {
        int call = i < ALWAYS ? allowed[i] : networking[i - ALWAYS];
        put(&program, BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, (unsigned char)(count - i), 0);
    }
    answer(&program, SECCOMP_RET_ERRNO | EPERM);
    answer(&program, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {(unsigned short)program.length, program.code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) {
        perror("egpu-executor: no sandbox (seccomp)");
        return false;
    }
    return true;
}
