/* The executor's parent: accepts connections, checks them, and starts a process for each session.
 * It never touches CUDA. */
#ifndef EGPU_EXECUTOR_PARENT_H
#define EGPU_EXECUTOR_PARENT_H

#include "executor/confinement/confinement.h"

extern struct options {
    const char *slice, *driver, *listen, *token_file, *lease;
    const char *cgroup;
    int listen_fd, tcp_port, grace, sessions, images;
    int roster; /* descriptor of a struct roster, or -1 */
    struct confinement confinement;
} options;

bool roster_open(void);
int listener_open(void); /* -1: see errno */
int serve(int listener); /* until SIGTERM or SIGINT; returns the exit status */

#endif
