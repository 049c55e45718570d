/* Enters what holds an executor, in the one order that works: what is seen, then who we are, then
 * what may be opened; each needs a right that the next one gives up. */
#define _GNU_SOURCE
#include "executor/confinement/confinement.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_GROUPS 16
/* A session may map 4096 pieces of its client's memory, and has streams, files and its driver's
 * devices. */
#define MAX_FILES 65536
/* Of one file that an executor writes: what its sessions say goes into one. The largest that is
 * honestly written is the memory that a session shares with its client, 6 MiB. */
#define MAX_FILE_BYTES (64u << 20)

static bool failed(const char *what) {
    fprintf(stderr, "egpu-executor: cannot be confined: %s: %s\n", what, strerror(errno));
    return false;
}

/* ---- who ---- */

/* Groups that may use what is writable where others may not: a card's device nodes, mostly. */
static int device_groups(const struct shown_paths *paths, gid_t groups[MAX_GROUPS]) {
    int count = 0;
    for (unsigned i = 0; i < paths->count && count < MAX_GROUPS; i++) {
        struct stat status;
        if (!paths->at[i].writable || stat(paths->at[i].path, &status) != 0) continue;
        mode_t mode = status.st_mode;
        bool wanted = (mode & 0006) != 0006 && (mode & 0060) == 0060 && status.st_gid != 0;
        for (int known = 0; known < count; known++) wanted &= groups[known] != status.st_gid;
        if (wanted) groups[count++] = status.st_gid;
    }
    return count;
}

/* No way back: neither by a set-user-id program (nobody may start one anyway) nor through a saved
 * id. */
static bool become(const char *user, const struct shown_paths *paths) {
    unsigned uid, gid;
    char rest;
    gid_t groups[MAX_GROUPS];
    if (sscanf(user, "%u:%u%c", &uid, &gid, &rest) != 2 || uid == 0 || gid == 0) {
        fprintf(stderr, "egpu-executor: --user is UID:GID, neither of them 0; found %s\n", user);
        return false;
    }
    int count = device_groups(paths, groups);
    if (setgroups((size_t)count, groups) == 0 && setresgid(gid, gid, gid) == 0 &&
        setresuid(uid, uid, uid) == 0)
        return true;
    fprintf(stderr, "egpu-executor: cannot become %s: %s\n", user, strerror(errno));
    return false;
}

/* What nobody may have any more, not even through a program that carries it. Who has no privileges
 * cannot take them from the bounding set, and needs not: nothing is executed with new ones. */
static bool drop_bounding(void) {
    for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) return errno == EPERM;
    return true;
}

static bool drop_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &header, none) == 0;
}

bool confinement_give_up(void) {
    return drop_bounding() && drop_capabilities() && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
}

/* ---- how much ---- */

/* What holds without a control group as well. A core file would have a tenant's memory in it. */
static bool limit(void) {
    const struct rlimit no_core = {0, 0}, file = {MAX_FILE_BYTES, MAX_FILE_BYTES};
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return false;
    if (files.rlim_max > MAX_FILES) files.rlim_max = MAX_FILES;
    files.rlim_cur = files.rlim_max;
    return setrlimit(RLIMIT_CORE, &no_core) == 0 && setrlimit(RLIMIT_NOFILE, &files) == 0 &&
           setrlimit(RLIMIT_FSIZE, &file) == 0;
}

/* ---- all of it ---- */

static bool unprivileged(const struct confinement *asked) {
    return asked->user == NULL && geteuid() != 0;
}

/* With privileges: in a mount namespace; without: in a user namespace as well. */
static bool enter_view(const struct confinement *asked) {
    return view_enter(asked->paths, unprivileged(asked));
}

bool confinement_enter(struct confinement *asked) {
    bool with_user = !asked->view && unprivileged(asked);
    asked->rules = -1;
    if (asked->view && !enter_view(asked)) return failed("a view of its own");
    if (asked->network && !network_enter(asked->joined, with_user))
        return failed("a network of its own");
    if (asked->landlock && (asked->rules = landlock_rules(asked->paths, asked->network)) < 0)
        return failed("Landlock");
    if (!drop_bounding()) return failed("capabilities");
    if (asked->user != NULL && !become(asked->user, asked->paths)) return false;
    if (!limit()) return failed("limits");
    if (!drop_capabilities()) return failed("capabilities");
    /* Our memory is nobody's to read or write: sessions are the same user, and less trusted. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return failed("no new privileges");
    if (asked->rules >= 0 && !landlock_enter(asked->rules)) return failed("Landlock");
    return true;
}

/* ---- what can be asked for ---- */

/* In a process of its own, for there is no way back. */
int confinement_probe(struct confinement *asked) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) _exit(enter_view(asked) ? 0 : errno & 255);
    bool ended = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status);
    const char *why = !ended                ? "it cannot be tried"
                      : WEXITSTATUS(status) ? strerror(WEXITSTATUS(status))
                                            : "";
    printf("{\"view\": \"%s\", \"landlock\": %d, \"movable\": 1}\n", why, landlock_abi());
    return 0;
}
