/* Landlock: the kernel itself refuses to open what is not listed, whoever asks. It needs no
 * privilege, so it holds where there can be no view; and it keeps sessions from each other's
 * memory, for one ruleset's process may trace no other's. Source:
 * Documentation/userspace-api/landlock.rst of Linux (its system calls have no wrappers in the C
 * library). */
#define _GNU_SOURCE
#include "executor/confinement/confinement.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As the kernel's header has them: that of the system that we are built on may be older. */
#define CREATE_RULESET 444
#define ADD_RULE 445
#define RESTRICT_SELF 446
#define RULESET_VERSION 1u
#define RULE_PATH_BENEATH 1
#define FS_EXECUTE (UINT64_C(1) << 0)
#define FS_WRITE_FILE (UINT64_C(1) << 1)
#define FS_READ_FILE (UINT64_C(1) << 2)
#define FS_READ_DIR (UINT64_C(1) << 3)
#define FS_REMOVE_FILE (UINT64_C(1) << 5)
#define FS_MAKE_REG (UINT64_C(1) << 8)
#define FS_ABI_1 ((UINT64_C(1) << 13) - 1)
#define FS_REFER (UINT64_C(1) << 13)     /* ABI 2 */
#define FS_TRUNCATE (UINT64_C(1) << 14)  /* ABI 3 */
#define FS_IOCTL_DEV (UINT64_C(1) << 15) /* ABI 5 */
#define NET_TCP UINT64_C(3)              /* bind and connect, ABI 4 */
#define SCOPES UINT64_C(3)               /* abstract sockets and signals of others, ABI 6 */
#define SCOPE_SOCKETS UINT64_C(1)

struct ruleset {
    uint64_t files, network, scoped;
};
struct path_rule {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

int landlock_abi(void) {
    long abi = syscall(CREATE_RULESET, NULL, 0, RULESET_VERSION);
    return abi < 0 ? 0 : (int)abi;
}

/* Executing is left to the parent, which starts sessions; in a session seccomp refuses it. */
static struct ruleset handled(int abi) {
    struct ruleset rules = {FS_ABI_1 & ~FS_EXECUTE, 0, 0};
    if (abi >= 2) rules.files |= FS_REFER;
    if (abi >= 3) rules.files |= FS_TRUNCATE;
    if (abi >= 4) rules.network = NET_TCP;
    if (abi >= 5) rules.files |= FS_IOCTL_DEV;
    if (abi >= 6) rules.scoped = SCOPES;
    return rules;
}

static bool allow(int rules, const struct shown_path *shown, uint64_t known) {
    struct stat status;
    int fd = open(shown->path, O_PATH | O_CLOEXEC);
    bool there = fd >= 0 && fstat(fd, &status) == 0;
    struct path_rule rule = {FS_READ_FILE, fd};
    if (there && S_ISDIR(status.st_mode)) rule.allowed |= FS_READ_DIR;
    if (shown->writable) rule.allowed |= FS_WRITE_FILE | FS_IOCTL_DEV;
    rule.allowed &= known;
    bool good = there && syscall(ADD_RULE, rules, RULE_PATH_BENEATH, &rule, 0) == 0;
    if (fd >= 0) close(fd);
    return good;
}

/* How much of it a kernel knows of. */
static int ruleset_make(const struct ruleset *is, int abi) {
    size_t size = abi >= 6 ? sizeof *is : abi >= 4 ? 2 * sizeof(uint64_t) : sizeof(uint64_t);
    return (int)syscall(CREATE_RULESET, is, size, 0);
}

int landlock_directory(int directory) {
    int abi = landlock_abi();
    struct ruleset is = handled(abi);
    is.files |= FS_EXECUTE;
    uint64_t allowed =
        FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_TRUNCATE | FS_MAKE_REG | FS_REMOVE_FILE;
    struct path_rule rule = {allowed & is.files, directory};
    int rules = ruleset_make(&is, abi);
    if (rules < 0 || syscall(ADD_RULE, rules, RULE_PATH_BENEATH, &rule, 0) == 0) return rules;
    close(rules);
    return -1;
}

int landlock_rules(const struct shown_paths *paths, bool network) {
    int abi = landlock_abi();
    struct ruleset is = handled(abi);
    if (network) { /* in which there is nobody else */
        is.network = 0;
        is.scoped &= ~SCOPE_SOCKETS;
    }
    int rules = ruleset_make(&is, abi);
    for (unsigned i = 0; rules >= 0 && i < paths->count; i++)
        if (!allow(rules, &paths->at[i], is.files)) {
            close(rules);
            rules = -1;
        }
    return rules;
}

bool landlock_enter(int rules) { return syscall(RESTRICT_SELF, rules, 0) == 0; }
