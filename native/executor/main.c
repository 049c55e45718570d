/* egpu-executor's command line: the parent of sessions, or one session. */
#define _GNU_SOURCE
#include "executor/executor.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

#include "executor/images/store.h"
#include "executor/moves/mover.h"
#include "executor/parent.h"

static struct shown_paths shown;
struct options options = {.images = -1,
                          .listen_fd = -1,
                          .tcp_port = -1,
                          .moves_fd = -1,
                          .restore_fd = -1,
                          .grace = 30,
                          .sessions = 64,
                          .lease = "-",
                          .roster = -1,
                          .confinement = {.paths = &shown, .rules = -1, .joined = -1}};

/* Call it before anything is allocated. Sessions are our children, so they are in the group, too.
 */
static bool join_cgroup(const char *directory) {
    char procs[4200];
    snprintf(procs, sizeof procs, "%s/cgroup.procs", directory);
    int fd = open(procs, O_WRONLY | O_CLOEXEC);
    bool joined = fd >= 0 && write(fd, "0", 1) == 1;
    if (!joined) fprintf(stderr, "egpu-executor: cannot enter %s: %s\n", procs, strerror(errno));
    if (fd >= 0) close(fd);
    return joined;
}

static int usage(const char *what) {
    fprintf(
        stderr,
        "egpu-executor: %s\n"
        "usage: egpu-executor [--slice DIR] --driver LIBCUDA (--listen SOCKET | --listen-fd N | --listen-tcp PORT)\n"
        "                     [--token-file FILE] [--grace SECONDS] [--lease NAME] [--sessions MAX]\n"
        "                     [--cgroup DIR] [--user UID:GID] [--view] [--landlock]\n"
        "                     [--network[=DESCRIPTOR]] [--images DESCRIPTOR] [--show PATH]...\n"
        "                     [--device PATH]... [--movable] [--moves-fd N] [--restore-fd N]\n"
        "       egpu-executor --driver LIBCUDA [--user UID:GID] --probe\n",
        what);
    return 2;
}

struct given {
    int session; /* the session's end of its control socket, or -1 */
    bool probe;
};

static const struct option flags[] = {
    {"slice", required_argument, NULL, 's'},
    {"driver", required_argument, NULL, 'd'},
    {"listen", required_argument, NULL, 'l'},
    {"listen-fd", required_argument, NULL, 'f'},
    {"listen-tcp", required_argument, NULL, 'p'},
    {"token-file", required_argument, NULL, 't'},
    {"grace", required_argument, NULL, 'g'},
    {"lease", required_argument, NULL, 'n'},
    {"sessions", required_argument, NULL, 'm'},
    {"cgroup", required_argument, NULL, 'c'},
    {"user", required_argument, NULL, 'u'},
    {"view", no_argument, NULL, 'v'},
    {"landlock", no_argument, NULL, 'k'},
    {"show", required_argument, NULL, 'h'},
    {"device", required_argument, NULL, 'D'},
    {"probe", no_argument, NULL, 'P'},
    {"session", required_argument, NULL, 'S'},
    {"roster", required_argument, NULL, 'R'},
    {"rules", required_argument, NULL, 'L'},
    {"images", required_argument, NULL, 'i'},
    {"network", optional_argument, NULL, 'N'},
    {"movable", no_argument, NULL, 'M'},
    {"fixed", no_argument, NULL, 'F'},
    {"moves-fd", required_argument, NULL, 'o'},
    {"restore-fd", required_argument, NULL, 'r'},
    {NULL, 0, NULL, 0},
};

/* Return false for an unknown flag. */
static bool parse(int argc, char **argv, struct given *given) {
    for (int flag; (flag = getopt_long(argc, argv, "", flags, NULL)) != -1;) switch (flag) {
        case 's': options.slice = optarg; break;
        case 'd': options.driver = optarg; break;
        case 'l': options.listen = optarg; break;
        case 'f': options.listen_fd = atoi(optarg); break;
        case 'p': options.tcp_port = atoi(optarg); break;
        case 't': options.token_file = optarg; break;
        case 'g': options.grace = atoi(optarg); break;
        case 'n': options.lease = optarg; break;
        case 'm': options.sessions = atoi(optarg); break;
        case 'c': options.cgroup = optarg; break;
        case 'u': options.confinement.user = optarg; break;
        case 'v': options.confinement.view = true; break;
        case 'k': options.confinement.landlock = true; break;
        case 'h': paths_add(&shown, optarg, false); break;
        case 'D': paths_add(&shown, optarg, true); break;
        case 'P': given->probe = true; break;
        case 'S': given->session = atoi(optarg); break;
        case 'R': options.roster = atoi(optarg); break;
        case 'L': options.confinement.rules = atoi(optarg); break;
        case 'i': options.images = atoi(optarg); break;
        case 'M': options.movable = true; break;
        case 'F': options.movable = false; break;
        case 'o': options.moves_fd = atoi(optarg); break;
        case 'r': options.restore_fd = atoi(optarg); break;
        case 'N':
            options.confinement.network = true;
            options.confinement.joined = optarg != NULL && *optarg ? atoi(optarg) : -1;
            break;
        default: return false;
        }
    return true;
}

/* The slice's directory must have all of its files. */
static bool check_slice(void) {
    static char resolved[4096];
    if (options.slice == NULL) {
        fprintf(stderr, "egpu-executor: no --slice: this lease has no limits\n");
        return true;
    }
    if (realpath(options.slice, resolved) == NULL) {
        perror(options.slice);
        return false;
    }
    options.slice = resolved;
    static const char *const parts[] = {"libegpu-interposer.so", "policy", "usage"};
    for (int i = 0; i < 3; i++) {
        char part[4200];
        snprintf(part, sizeof part, "%s/%s", options.slice, parts[i]);
        if (access(part, R_OK) != 0) {
            perror(part);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    struct given given = {.session = -1};
    if (!parse(argc, argv, &given)) return usage("unknown flag");
    if (options.driver == NULL) return usage("--driver is missing");
    if (given.session >= 0) {
        struct settings settings = {options.driver,
                                    options.lease,
                                    options.grace,
                                    options.roster,
                                    options.confinement.rules,
                                    options.images,
                                    options.confinement.network,
                                    options.movable};
        return session_run(&settings, given.session);
    }
    if (given.probe) {
        paths_add_usual(&shown, options.driver, NULL);
        return confinement_probe(&options.confinement);
    }
    if ((options.listen != NULL) + (options.listen_fd >= 0) + (options.tcp_port >= 0) != 1)
        return usage("exactly one of --listen, --listen-fd, --listen-tcp is needed");
    if (options.sessions < 1 || options.sessions > MAX_SESSIONS || options.grace < 0)
        return usage("--sessions is 1 to 256, --grace at least 0");
    if (options.restore_fd >= 0 && !options.movable) return usage("--restore-fd needs --movable");
    if (options.cgroup != NULL && !join_cgroup(options.cgroup)) return 6;
    /* Sessions inherit none of our descriptors: they could drop the lock on our user, for example.
     */
    close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
    if (!check_slice()) return 3;
    if (options.images >= 0 && !store_start(options.images)) {
        perror("egpu-executor: images are not kept: no keeper");
        return 6;
    }
    if (options.token_file != NULL && access(options.token_file, R_OK) != 0) {
        perror(options.token_file);
        return 3;
    }
    if (!roster_open()) {
        perror("egpu-executor: no memory for the list of sessions");
        return 4;
    }
    int listener = listener_open();
    if (listener < 0) {
        perror("egpu-executor: cannot listen");
        return 4;
    }
    paths_add_usual(&shown, options.driver, options.slice);
    if (!confinement_enter(&options.confinement)) return 6;
    if (options.restore_fd >= 0 && !mover_restore(options.restore_fd)) return 7;
    return serve(listener);
}
