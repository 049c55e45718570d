/* egpu-enter: runs a command with its own view of a few paths. See main.c for the command line. */
#ifndef EGPU_ENTER_H
#define EGPU_ENTER_H

#include <stdbool.h>

enum {
    ENTER_FAILED = 125,    /* egpu-enter itself could not do what was asked; nothing was run */
    ENTER_NOT_RUN = 126,   /* the command was found but could not be executed */
    ENTER_NOT_FOUND = 127, /* there is no such command */
};

/* Prints one line, "egpu-enter: …", and ends the process with ENTER_FAILED. */
_Noreturn void enter_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* mounts.c: a private mount namespace (and a user namespace, when that is what it takes). */
bool enter_unshare(const char **why);    /* false: not possible here; *why says what was refused */
bool enter_try_mounts(const char **why); /* the same of what is mounted later: for a probe */
void enter_bind(const char *source, const char *target, bool read_only);
void enter_preload(char *const *libraries, int count);

enum enter_input {
    INPUT_NONE,     /* /dev/null */
    INPUT_PIPE,     /* what attached callers type */
    INPUT_TERMINAL, /* the same; and it is the command's controlling terminal, stdout and stderr */
};

/* supervise.c: returns in the child that goes on to exec; the caller's process has ended by
 * then. */
void enter_supervise(const char *directory, enum enter_input input);
void enter_kill_descendants(
    void); /* children, and theirs as they become ours, until there are none */

/* join.c: enter_attend returns in the child that goes on to exec; its parent ends as the child
 * does, and nothing that the child started outlives it. */
void enter_join(const char *process);
void enter_attend(bool terminal);

#endif
