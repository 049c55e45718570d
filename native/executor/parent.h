/* The executor's parent: accepts connections, checks them, and starts a process for each session.
 * It never touches CUDA. */
#ifndef EGPU_EXECUTOR_PARENT_H
#define EGPU_EXECUTOR_PARENT_H

#include "executor/confinement/confinement.h"
#include "executor/executor.h"

extern struct options {
    const char *slice, *driver, *listen, *token_file, *lease;
    const char *cgroup;
    int listen_fd, tcp_port, grace, sessions, images;
    int moves_fd, restore_fd; /* or -1 */
    bool movable;
    int roster; /* descriptor of a struct roster, or -1 */
    struct confinement confinement;
} options;

struct session {
    pid_t pid; /* 0: free */
    int control;
    uint8_t id[16];
};
extern struct session sessions[MAX_SESSIONS];
struct session *session_find(const uint8_t id[16]);
/* Starts a child by exec, so that its address space has nothing of ours. NULL: there is no room. */
struct session *session_start(const uint8_t id[16], uint32_t client);
uint32_t session_client(const struct session *session); /* as it calls itself */

bool roster_open(void);
int listener_open(void); /* -1: see errno */
int serve(int listener); /* until SIGTERM or SIGINT; returns the exit status */

#endif
