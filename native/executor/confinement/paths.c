/* Which paths an executor sees. One list, from which the view is mounted and Landlock's rules are
 * made. */
#define _GNU_SOURCE
#include "executor/confinement/confinement.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The driver loads parts of itself when a program first needs them, and looks at the machine: so
 * the directories, not the files that are known today; likewise the toolkit's libraries. All of it
 * can be read by any user anyway. */
static const char *const usual[] = {
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/cuda/lib64",
    "/etc/ld.so.cache",
    "/etc/nvidia",
    "/usr/share/nvidia",
    "/proc",
    "/sys/devices",
    "/sys/bus",
    "/sys/class",
    "/sys/module",
    "/sys/kernel/mm",
};
static const char *const usual_devices[] = {"/dev/null", "/dev/zero", "/dev/random",
                                            "/dev/urandom"};

static bool known(struct shown_paths *paths, const char *path, bool writable) {
    for (unsigned i = 0; i < paths->count; i++)
        if (strcmp(paths->at[i].path, path) == 0) {
            paths->at[i].writable |= writable;
            return true;
        }
    return false;
}

/* Where a link leads, as an absolute path. */
static bool link_target(const char *path, char target[PATH_MAX]) {
    char said[PATH_MAX];
    ssize_t length = readlink(path, said, sizeof said - 1);
    if (length <= 0) return false;
    said[length] = 0;
    const char *slash = strrchr(path, '/');
    int wrote = said[0] == '/'
                    ? snprintf(target, PATH_MAX, "%s", said)
                    : snprintf(target, PATH_MAX, "%.*s/%s", (int)(slash - path), path, said);
    return wrote > 0 && wrote < PATH_MAX;
}

void paths_add(struct shown_paths *paths, const char *path, bool writable) {
    struct stat status;
    char target[PATH_MAX];
    if (path[0] != '/' || lstat(path, &status) != 0 || known(paths, path, writable)) return;
    if (paths->count == MAX_PATHS) {
        fprintf(stderr, "egpu-executor: more than %d paths to be shown\n", MAX_PATHS);
        exit(6);
    }
    paths->at[paths->count++] = (struct shown_path){strdup(path), writable};
    if (S_ISLNK(status.st_mode) && link_target(path, target)) paths_add(paths, target, writable);
}

/* The directory that something is in, by its real name. */
static bool directory_of(const char *path, char directory[PATH_MAX]) {
    char named[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return false;
    snprintf(named, sizeof named, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return realpath(named, directory) != NULL;
}

/* What a driver is made of: its libraries and those over it, and a simulated one's cards. */
static bool is_drivers(const char *name) {
    return strncmp(name, "libcu", 5) == 0 || strncmp(name, "libnv", 5) == 0 ||
           strncmp(name, "libnccl", 7) == 0 || strcmp(name, "dev") == 0;
}

/* A driver's directory may be made of links (a simulated machine's is), and may be the system's. */
static void add_directory(struct shown_paths *paths, const char *directory) {
    paths_add(paths, directory, false);
    DIR *listing = opendir(directory);
    if (listing == NULL) return;
    for (const struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char name[PATH_MAX], target[PATH_MAX], beside[PATH_MAX];
        int wrote = snprintf(name, sizeof name, "%s/%s", directory, entry->d_name);
        if (!is_drivers(entry->d_name) || wrote < 0 || wrote >= PATH_MAX ||
            !link_target(name, target))
            continue;
        /* links within the directory lead to what is shown already */
        if (directory_of(target, beside) && strcmp(beside, directory) != 0)
            paths_add(paths, target, false);
    }
    closedir(listing);
}

static void add_library_path(struct shown_paths *paths) {
    const char *said = getenv("LD_LIBRARY_PATH");
    char *copy = strdup(said == NULL ? "" : said), *rest = NULL;
    for (char *one = strtok_r(copy, ":", &rest); one != NULL; one = strtok_r(NULL, ":", &rest))
        paths_add(paths, one, false);
    free(copy);
}

void paths_add_usual(struct shown_paths *paths, const char *driver, const char *slice) {
    char path[PATH_MAX + 32], directory[PATH_MAX];
    for (unsigned i = 0; i < sizeof usual / sizeof *usual; i++) paths_add(paths, usual[i], false);
    for (unsigned i = 0; i < sizeof usual_devices / sizeof *usual_devices; i++)
        paths_add(paths, usual_devices[i], true);
    if (realpath("/proc/self/exe", path) != NULL) paths_add(paths, path, false);
    if (directory_of(driver, directory)) add_directory(paths, directory);
    add_library_path(paths);
    /* Of the slice no more than the interposer needs: its record is the daemon's. */
    static const char *const parts[] = {"libegpu-interposer.so", "policy", "usage"};
    for (int i = 0; slice != NULL && i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", slice, parts[i]);
        paths_add(paths, path, strcmp(parts[i], "usage") == 0);
    }
}
