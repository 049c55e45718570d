/* What holds an executor, parent and sessions alike, before anybody may connect. Each of these
 * fails rather than hold less than it was asked for; `confinement_probe` says what can be asked for
 * here. */
#ifndef EGPU_EXECUTOR_CONFINEMENT_H
#define EGPU_EXECUTOR_CONFINEMENT_H

#include <stdbool.h>
#include <sys/types.h>

/* ---- paths.c: what an executor may see, and the little that it may write ---- */

#define MAX_PATHS 128

struct shown_path {
    char *path;
    bool writable;
};
struct shown_paths {
    struct shown_path at[MAX_PATHS];
    unsigned count;
};

/* Adds a path if it exists; what a link leads to is added as well. Ends us beyond MAX_PATHS. */
void paths_add(struct shown_paths *paths, const char *path, bool writable);
/* What every executor needs: this program, the system's libraries, the driver's own directory with
 * what its links lead to, LD_LIBRARY_PATH, what the kernel says of devices. `slice` may be NULL. */
void paths_add_usual(struct shown_paths *paths, const char *driver, const char *slice);

/* ---- view.c: a mount namespace with these paths and nothing else ---- */

/* `with_user`: in a user namespace of its own, for who has no privileges. False: errno. */
bool view_enter(struct shown_paths *paths, bool with_user);
bool user_namespace_enter(void); /* who we are, and nobody else, in it too */

/* ---- landlock.c: the kernel's own list of what may be opened ---- */

int landlock_abi(void); /* 0: this kernel has none */
/* A ruleset that lets these paths be read, or written where they say so; -1: errno. */
/* With a network of one's own, sockets are not its affair. */
int landlock_rules(const struct shown_paths *paths, bool network);
/* A ruleset that lets files of this directory be read, made, written and removed, and no other. */
int landlock_directory(int directory);
/* For this thread and all that it starts. False: errno. */
bool landlock_enter(int rules);

/* ---- network.c ---- */

/* The one of this descriptor, or (-1) one of our own, with nobody else in it; `with_user`: in a
 * user namespace of its own. False: errno. */
bool network_enter(int joined, bool with_user);

/* ---- confinement.c ---- */

struct confinement {
    const char *user;             /* UID:GID; NULL: who we are */
    bool view, landlock, network; /* asked for */
    int joined;                   /* descriptor of a network that there is, or -1 */
    struct shown_paths *paths;    /* of both */
    int rules;                    /* out: of Landlock, for the sessions; -1: none */
};
/* Enters all of it: no way back. False: it has said why on standard error. */
bool confinement_enter(struct confinement *asked);
/* Less of it, for who stays outside: no privileges, and nobody may look at us. False: errno. */
bool confinement_give_up(void);
/* Prints as JSON what can be asked for: {"view": "" or why not, "landlock": ABI or 0}. */
int confinement_probe(struct confinement *asked);

#endif
