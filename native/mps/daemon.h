/* The control daemon, which here is its server, too. */
#ifndef EGPU_MPS_DAEMON_H
#define EGPU_MPS_DAEMON_H

#include "protocol.h"

#include <sys/types.h>

#define MAX_CLIENTS 48     /* of one server, as on Volta and newer */
#define MAX_CONNECTIONS 64 /* those who give commands among them */

struct connection {
    int fd;
    pid_t pid;
    bool client;
};

/* What clients are held to. */
struct limits {
    float percentage;
    uint64_t bytes[MPS_MAX_DEVICES];
};

struct control {
    int listener;
    struct connection connections[MAX_CONNECTIONS];
    int count;
    struct limits defaults; /* of the next server */
    bool serving;           /* from the first client on, or since it was told to */
    struct limits server;
    int fault;            /* CUresult that a client ended with; 0: none since all were gone */
    bool quitting;        /* nobody comes in any more */
    uint64_t deadline_ns; /* … and then the clients are not waited for */
};

void control_init(struct control *control, int listener);
/* Until somebody says quit. */
void control_run(struct control *control);
int control_clients(const struct control *control);
void control_start_server(struct control *control);
/* One line for the log. */
void control_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Carries out `command` (commands.c); what is said to it is left in `answer`. */
void control_command(struct control *control, char *command, struct mps_message *answer);

#endif
