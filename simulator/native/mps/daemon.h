/* The control daemon, which here is also its server. */
#ifndef EGPU_MPS_DAEMON_H
#define EGPU_MPS_DAEMON_H

#include "protocol.h"

#include <sys/types.h>

#define MAX_CLIENTS 48     /* per server, as on Volta and newer */
#define MAX_CONNECTIONS 64 /* including those that send commands */
#define MAX_PROGRAMS 60    /* … so that programs leave some of them */

struct connection {
    int fd;
    pid_t pid;
    bool privileged; /* it may send commands */
    bool client;
};

/* Limits of clients. */
struct limits {
    float percentage;
    uint64_t bytes[MPS_MAX_DEVICES];
};

struct control {
    int listener;   /* of programs */
    int privileged; /* of commands */
    struct connection connections[MAX_CONNECTIONS];
    int count;
    struct limits defaults; /* of the next server */
    bool serving;           /* from the first client on, or since start_server */
    struct limits server;
    int fault;            /* CUresult of the client that ended; 0: none since all have ended */
    bool quitting;        /* no one may join any more */
    uint64_t deadline_ns; /* … and after this clients are not waited for */
};

void control_init(struct control *control, int listener, int privileged);
/* Run until quit. */
void control_run(struct control *control);
int control_clients(const struct control *control);
void control_start_server(struct control *control);
/* One line for the log. */
void control_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Run `command` (commands.c); its output is in `answer`. */
void control_command(struct control *control, char *command, struct mps_message *answer);

#endif
