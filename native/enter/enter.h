/* egpu-enter: runs a command with its own view of a few paths. See main.c for the command line. */
#ifndef EGPU_ENTER_H
#define EGPU_ENTER_H

#include <stdbool.h>

enum {
    ENTER_FAILED = 125,    /* egpu-enter itself failed; nothing was run */
    ENTER_NOT_RUN = 126,   /* the command was found but could not be executed */
    ENTER_NOT_FOUND = 127, /* no such command */
};

/* Print one line, "egpu-enter: …", and end the process with ENTER_FAILED. */
_Noreturn void enter_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* mounts.c: a private mount namespace (with a user namespace if one is needed). */
bool enter_unshare(const char **why);    /* false: not possible here; *why names the refused step */
bool enter_try_mounts(const char **why); /* the same for later mounts: for a probe */
struct enter_bind {
    const char *source, *target; /* source: as it is before any of the mounts */
    bool read_only;
    int tree; /* the source, held open; `whole`: as a mount of its own */
    bool whole;
};
void enter_mount(struct enter_bind *binds, int count);
void enter_preload(char *const *libraries, int count);

enum enter_input {
    INPUT_NONE,     /* /dev/null */
    INPUT_PIPE,     /* input of attached callers */
    INPUT_TERMINAL, /* the same; and the command's controlling terminal, stdout and stderr */
};

/* supervise.c. Prepare before the mounts, which may cover the directory, /dev and all others.
 * enter_supervise returns in the child, which then execs; by then the caller's process has ended.
 */
void enter_prepare_supervisor(const char *directory, enum enter_input input);
void enter_supervise(void);
void enter_kill_descendants(void); /* children, and theirs as we inherit them, until none is left */

/* join.c: enter_attend returns in the child, which then execs. Its parent ends like the child, and
 * nothing that the child started outlives the parent. */
void enter_join(const char *process);
void enter_attend(bool terminal);

#endif
