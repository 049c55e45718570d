/* A mount namespace whose root is an empty tmpfs with some paths of the machine in it, at their own
 * names. What is not shown is not there: other leases' directories, the machine's files, its
 * sockets. Source of the calls: open_tree(2), move_mount(2), mount_setattr(2), pivot_root(2). */
#define _GNU_SOURCE
#include "executor/confinement/confinement.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STAND "/proc" /* where the new root is put together: a directory that every machine has */

static bool write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return good;
}

bool user_namespace_enter(void) {
    char uids[64], gids[64];
    snprintf(uids, sizeof uids, "%u %u 1\n", geteuid(), geteuid());
    snprintf(gids, sizeof gids, "%u %u 1\n", getegid(), getegid());
    return unshare(CLONE_NEWUSER) == 0 && write_file("/proc/self/setgroups", "deny") &&
           write_file("/proc/self/uid_map", uids) && write_file("/proc/self/gid_map", gids);
}

/* A detached mount of a path, and of what is mounted below: nothing in it gains a privilege, and
 * only what is written is writable. */
static int detached(const struct shown_path *shown, bool directory) {
    int tree = open_tree(AT_FDCWD, shown->path,
                         OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_SYMLINK_NOFOLLOW);
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_NOSUID};
    if (!shown->writable) attributes.attr_set |= MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV;
    if (shown->writable && !directory) attributes.attr_set |= MOUNT_ATTR_NOEXEC;
    if (tree < 0 ||
        mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof attributes) == 0)
        return tree;
    int error = errno;
    close(tree);
    errno = error;
    return -1;
}

/* The directories above it. */
static bool make_parents(const char *path) {
    char part[PATH_MAX];
    for (const char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, STAND "%.*s", (int)(slash - path), path);
        if (mkdir(part, 0755) != 0 && errno != EEXIST) return false;
    }
    return true;
}

/* Whether it can be seen already: below a directory that is shown. Parents come first. */
static bool covered(const struct shown_paths *paths, unsigned which) {
    for (unsigned i = 0; i < which; i++) {
        size_t length = strlen(paths->at[i].path);
        if (strncmp(paths->at[i].path, paths->at[which].path, length) == 0 &&
            paths->at[which].path[length] == '/')
            return true;
    }
    return false;
}

/* Something for the mount to lie on: below what is shown it is there. */
static bool make_place(const char *path, bool directory, bool is_covered) {
    char at[PATH_MAX + sizeof STAND];
    snprintf(at, sizeof at, STAND "%s", path);
    if (is_covered) return true;
    if (!make_parents(path)) return false;
    if (directory) return mkdir(at, 0755) == 0;
    int fd = open(at, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static bool make_link(const char *path) {
    char at[PATH_MAX + sizeof STAND], target[PATH_MAX];
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0 || !make_parents(path)) return false;
    target[length] = 0;
    snprintf(at, sizeof at, STAND "%s", path);
    return symlink(target, at) == 0;
}

static bool put(const char *path, int tree) {
    char at[PATH_MAX + sizeof STAND];
    snprintf(at, sizeof at, STAND "%s", path);
    return move_mount(tree, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH) == 0;
}

static int by_path(const void *one, const void *other) {
    const struct shown_path *a = one, *b = other;
    return strcmp(a->path, b->path);
}

/* Takes the mounts first, while their names lead somewhere; STAND may be above any of them. */
static bool furnish(const struct shown_paths *paths) {
    int trees[MAX_PATHS];
    mode_t kinds[MAX_PATHS];
    for (unsigned i = 0; i < paths->count; i++) {
        struct stat status;
        if (lstat(paths->at[i].path, &status) != 0) return false;
        kinds[i] = status.st_mode;
        trees[i] = S_ISLNK(kinds[i]) ? -1 : detached(&paths->at[i], S_ISDIR(kinds[i]));
        if (trees[i] < 0 && !S_ISLNK(kinds[i])) return false;
    }
    if (mount("egpu-executor", STAND, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m") != 0)
        return false;
    for (unsigned i = 0; i < paths->count; i++) {
        const char *path = paths->at[i].path;
        bool below = covered(paths, i);
        if (below && !paths->at[i].writable) continue;
        bool good = S_ISLNK(kinds[i])
                        ? below || make_link(path)
                        : make_place(path, S_ISDIR(kinds[i]), below) && put(path, trees[i]);
        if (!good) return false;
    }
    for (unsigned i = 0; i < paths->count; i++)
        if (trees[i] >= 0) close(trees[i]);
    return true;
}

/* The old root goes, with everything that was mounted on it. */
static bool change_root(void) {
    return chdir(STAND) == 0 && syscall(SYS_pivot_root, ".", ".") == 0 &&
           umount2(".", MNT_DETACH) == 0 && chdir("/") == 0 &&
           mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) ==
               0;
}

bool view_enter(struct shown_paths *paths, bool with_user) {
    qsort(paths->at, paths->count, sizeof *paths->at, by_path);
    return (!with_user || user_namespace_enter()) && unshare(CLONE_NEWNS) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && furnish(paths) &&
           change_root();
}
