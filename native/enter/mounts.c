/* Private mounts. All sources are opened before the first mount, so a mount may cover any path.
 *
 * A missing directory below a writable bind is made in what is bound, as container runtimes do.
 * No other mount point is made on the host's file systems: a tmpfs replaces its nearest existing
 * ancestor and shows that ancestor's entries, each bound over. */
#define _GNU_SOURCE
#include "enter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/file.h"

#define PRELOAD "/etc/ld.so.preload"

enum { MAX_MADE = 256 };

/* File systems of directories that are private already. */
static dev_t made[MAX_MADE];
static int made_count;

static bool write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t size = (ssize_t)strlen(text);
    bool whole = write(file, text, (size_t)size) == size;
    int error = errno;
    close(file);
    errno = error;
    return whole;
}

static bool user_namespace(const char **why) {
    uid_t user = geteuid();
    gid_t group = getegid();
    char map[64];
    *why = "unshare(CLONE_NEWUSER | CLONE_NEWNS)";
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    *why = "writing the identity maps";
    if (!write_text("/proc/self/setgroups", "deny") && errno != ENOENT) return false;
    snprintf(map, sizeof map, "%u %u 1\n", user, user);
    if (!write_text("/proc/self/uid_map", map)) return false;
    snprintf(map, sizeof map, "%u %u 1\n", group, group);
    return write_text("/proc/self/gid_map", map);
}

/* Open the source, to be mounted elsewhere: making the target may cover or drop the way to it. It
 * becomes a mount of its own; before Linux 5.2 and in gVisor, which do not support that, `whole`
 * becomes false and it is only held open. -1: errno. */
static int take_tree(const char *source, bool *whole) {
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, source,
                            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    *whole = tree >= 0;
    return tree >= 0 || errno != ENOSYS ? tree : open(source, O_PATH | O_CLOEXEC);
}

static bool mount_tree(int tree, bool whole, const char *target) {
    char held[64];
    if (whole)
        return syscall(SYS_move_mount, tree, "", AT_FDCWD, target,
                       MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_SYMLINKS) == 0;
    snprintf(held, sizeof held, "/proc/self/fd/%d", tree);
    return mount(held, target, NULL, MS_BIND | MS_REC, NULL) == 0;
}

bool enter_unshare(const char **why) {
    *why = "unshare(CLONE_NEWNS)";
    /* Without CAP_SYS_ADMIN (also as root in a plain container) a user namespace is needed. */
    if (unshare(CLONE_NEWNS) != 0 && !user_namespace(why)) return false;
    *why = "making the mounts private";
    /* slave: later mounts of the host still arrive, ours do not propagate back */
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) return false;
    *why = "";
    return true;
}

bool enter_try_mounts(const char **why) {
    *why = "mounting a tmpfs";
    if (mount("tmpfs", "/proc/self/fdinfo", "tmpfs", 0, "size=4k") != 0) return false;
    *why = "binding an open file";
    bool whole;
    int tree = take_tree("/proc/self/fdinfo", &whole);
    if (tree < 0 || !mount_tree(tree, whole, "/proc/self/fdinfo")) return false;
    *why = "";
    return true;
}

static void join_path(char *out, const char *directory, const char *name) {
    const char *slash = directory[strlen(directory) - 1] == '/' ? "" : "/";
    if (snprintf(out, PATH_MAX, "%s%s%s", directory, slash, name) >= PATH_MAX)
        enter_fail("path too long: %s/%s", directory, name);
}

static void make_node(const char *path, mode_t mode) {
    int made = S_ISDIR(mode) ? mkdir(path, 0755) : mknod(path, S_IFREG | 0644, 0);
    if (made != 0 && errno != EEXIST) enter_fail("cannot make %s: %s", path, strerror(errno));
}

/* Return an entry's kind, as in st_mode; 0: it was removed since it was listed. */
static mode_t kind_of(int directory, const struct dirent *entry) {
    struct stat status;
    if (entry->d_type != DT_UNKNOWN) return DTTOIF(entry->d_type);
    return fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0
               ? status.st_mode & S_IFMT
               : 0;
}

/* Show `entry` of the directory `original`, which is the current directory, under the same name in
 * `copy`. A directory can have hundreds: each is mounted by its bare name, the shortest path. */
static void clone_entry(int original, const struct dirent *entry, const char *copy, int covered,
                        const char *covered_name) {
    char held[64], target[PATH_MAX];
    const char *source = entry->d_name;
    mode_t kind = kind_of(original, entry);
    if (kind == 0) return;
    join_path(target, copy, entry->d_name);
    if (S_ISLNK(kind)) {
        char leads[PATH_MAX];
        ssize_t length = readlinkat(original, entry->d_name, leads, sizeof leads - 1);
        if (length < 0) return;
        leads[length] = 0;
        if (symlink(leads, target) != 0) enter_fail("cannot make %s: %s", target, strerror(errno));
        return;
    }
    make_node(target, kind);
    if (covered_name != NULL && strcmp(source, covered_name) == 0) {
        snprintf(held, sizeof held, "/proc/self/fd/%d", covered);
        source = held;
    }
    if (mount(source, target, NULL, MS_BIND | MS_REC, NULL) != 0 && errno != ENOENT)
        enter_fail("cannot show %s at %s: %s", entry->d_name, target, strerror(errno));
}

static void mount_tmpfs(const char *path, mode_t mode) {
    char options[64];
    snprintf(options, sizeof options, "mode=%o", mode & 07777);
    if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0)
        enter_fail("cannot mount a tmpfs at %s: %s", path, strerror(errno));
    struct stat status;
    if (made_count < MAX_MADE && stat(path, &status) == 0) made[made_count++] = status.st_dev;
}

static void clone_entries(int original, const char *copy, const char *except, int covered,
                          const char *covered_name) {
    int listing = openat(original, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = listing < 0 ? NULL : fdopendir(listing);
    if (directory == NULL || fchdir(original) != 0)
        enter_fail("cannot list the original directory of %s: %s", copy, strerror(errno));
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (except != NULL && strcmp(entry->d_name, except) == 0) continue;
        clone_entry(original, entry, copy, covered, covered_name);
    }
    closedir(directory);
}

/* The root cannot be covered by a mount on "/": build a new one elsewhere and change roots. */
static void clone_root(void) {
    static const char *const places[] = {"/mnt", "/tmp", "/run", "/var", "/opt", "/home"};
    const char *place = NULL;
    struct stat status;
    for (size_t i = 0; i < sizeof places / sizeof *places && place == NULL; i++)
        if (lstat(places[i], &status) == 0 && S_ISDIR(status.st_mode)) place = places[i];
    if (place == NULL) enter_fail("found no directory to build a new root on");
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC),
        covered = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || covered < 0) enter_fail("cannot open / and %s: %s", place, strerror(errno));
    mount_tmpfs(place, 0755);
    clone_entries(root, place, NULL, covered, place + 1);
    if (chdir(place) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 ||
        umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
        enter_fail("cannot change to the new root: %s", strerror(errno));
    close(root);
    close(covered);
}

/* Make `directory` private: new names in it are not visible to the host. */
static void clone_directory(const char *directory, const char *except) {
    struct stat status;
    if (strcmp(directory, "/") == 0) {
        clone_root();
        return;
    }
    int original = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (original < 0 || fstat(original, &status) != 0)
        enter_fail("cannot open %s: %s", directory, strerror(errno));
    mount_tmpfs(directory, status.st_mode);
    /* not permitted in a user namespace that maps one user: the owner stays the only user there */
    if (chown(directory, status.st_uid, status.st_gid) != 0 && errno != EPERM && errno != EINVAL)
        enter_fail("cannot set the owner of %s: %s", directory, strerror(errno));
    clone_entries(original, directory, except, -1, NULL);
    close(original);
}

static bool is_below(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* Return whether a mount point may be made in this directory: it is private already, or a directory
 * is made in the last of the binds over it, which is writable. A file would stay there for all to
 * see: in the host's /dev, a device that is none. */
static bool may_make(const char *directory, mode_t mode, const struct enter_bind *done, int count) {
    char target[PATH_MAX];
    struct stat status;
    for (int i = 0; stat(directory, &status) == 0 && i < made_count; i++)
        if (made[i] == status.st_dev) return true;
    while (S_ISDIR(mode) && count-- > 0)
        if (realpath(done[count].target, target) != NULL && is_below(directory, target))
            return !done[count].read_only && access(directory, W_OK) == 0;
    return false;
}

/* Make what is missing of a path, below its first `there` bytes. */
static void make_path(const char *path, size_t there, mode_t mode) {
    char prefix[PATH_MAX];
    for (const char *end = path + there + 1; (end = strchr(end, '/')) != NULL; end++) {
        memcpy(prefix, path, (size_t)(end - path));
        prefix[end - path] = 0;
        make_node(prefix, S_IFDIR);
    }
    make_node(path, mode);
}

/* `done`: the binds that are mounted already. */
static void make_mount_point(const char *path, mode_t mode, const struct enter_bind *done,
                             int count) {
    char ancestor[PATH_MAX], real[PATH_MAX];
    struct stat status;
    if (realpath(path, real) != NULL && (strcmp(real, "/") == 0 || strcmp(real, "/proc") == 0))
        enter_fail("cannot mount at %s: a command needs / and /proc; choose another path", path);
    if (stat(path, &status) == 0) {
        if (S_ISDIR(status.st_mode) != S_ISDIR(mode))
            enter_fail("%s is %sa directory, but what to show there is%s", path,
                       S_ISDIR(status.st_mode) ? "" : "not ", S_ISDIR(mode) ? "" : " not");
        return;
    }
    join_path(ancestor, path, "");
    ancestor[strlen(path)] = 0;
    do {
        char *slash = strrchr(ancestor, '/');
        slash[slash == ancestor ? 1 : 0] = 0;
    } while (stat(ancestor, &status) != 0 && ancestor[1] != 0);
    if (!S_ISDIR(status.st_mode))
        enter_fail("cannot make %s: %s is not a directory", path, ancestor);
    if (realpath(ancestor, real) == NULL)
        enter_fail("cannot resolve %s: %s", ancestor, strerror(errno));
    if (!may_make(real, mode, done, count)) clone_directory(real, NULL);
    make_path(path, strlen(ancestor), mode);
}

static void remount_read_only(const char *path) {
    struct statvfs status;
    unsigned long flags = 0;
    /* Flags that a user namespace may not drop must be repeated. */
    if (statvfs(path, &status) == 0) {
        if (status.f_flag & ST_NOSUID) flags |= MS_NOSUID;
        if (status.f_flag & ST_NODEV) flags |= MS_NODEV;
        if (status.f_flag & ST_NOEXEC) flags |= MS_NOEXEC;
        if (status.f_flag & ST_NOATIME) flags |= MS_NOATIME;
        if (status.f_flag & ST_NODIRATIME) flags |= MS_NODIRATIME;
        if (status.f_flag & ST_RELATIME) flags |= MS_RELATIME;
    }
    if (mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL) != 0)
        enter_fail("cannot make %s read-only: %s", path, strerror(errno));
}

static int depth(const char *path) {
    int names = 0;
    for (; *path != 0; path++) names += path[0] == '/' && path[1] != '/' && path[1] != 0;
    return names;
}

/* Insert each bind after the last that is no deeper: parents come before what is mounted in them,
 * and of two at one path the later covers the earlier. */
static void sort_by_depth(struct enter_bind *binds, int count) {
    for (int i = 1; i < count; i++) {
        struct enter_bind moved = binds[i];
        int place = i;
        for (; place > 0 && depth(binds[place - 1].target) > depth(moved.target); place--)
            binds[place] = binds[place - 1];
        binds[place] = moved;
    }
}

void enter_mount(struct enter_bind *binds, int count) {
    struct stat status;
    for (int i = 0; i < count; i++) {
        binds[i].tree = take_tree(binds[i].source, &binds[i].whole);
        if (binds[i].tree < 0) enter_fail("cannot open %s: %s", binds[i].source, strerror(errno));
    }
    sort_by_depth(binds, count);
    for (int i = 0; i < count; i++) {
        const struct enter_bind *bind = &binds[i];
        if (fstat(bind->tree, &status) != 0)
            enter_fail("cannot look at %s: %s", bind->source, strerror(errno));
        make_mount_point(bind->target, status.st_mode, binds, i);
        if (!mount_tree(bind->tree, bind->whole, bind->target))
            enter_fail("cannot bind %s to %s: %s", bind->source, bind->target, strerror(errno));
        close(bind->tree);
        if (bind->read_only) remount_read_only(bind->target);
    }
}

void enter_preload(char *const *libraries, int count) {
    char listed[65536] = "";
    ssize_t size = file_read(PRELOAD, listed, sizeof listed);
    if (size < 0 && errno != ENOENT) enter_fail("cannot read " PRELOAD ": %s", strerror(errno));
    if (size == (ssize_t)sizeof listed - 1) enter_fail(PRELOAD " is too long");
    char real[PATH_MAX];
    if (realpath("/etc", real) == NULL) enter_fail("cannot resolve /etc: %s", strerror(errno));
    clone_directory(real, "ld.so.preload");

    FILE *file = fopen(PRELOAD, "wex");
    if (file == NULL) enter_fail("cannot make " PRELOAD ": %s", strerror(errno));
    fputs(listed, file);
    if (listed[0] != 0 && listed[strlen(listed) - 1] != '\n') fputc('\n', file);
    for (int i = 0; i < count; i++) fprintf(file, "%s\n", libraries[i]);
    if (fchmod(fileno(file), 0644) != 0 || fclose(file) != 0)
        enter_fail("cannot write " PRELOAD ": %s", strerror(errno));
    if (mount(PRELOAD, PRELOAD, NULL, MS_BIND, NULL) != 0)
        enter_fail("cannot fix " PRELOAD " in place: %s", strerror(errno));
    remount_read_only(PRELOAD);
}
