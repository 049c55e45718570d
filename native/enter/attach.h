/* Callers of a command that runs: they see what it says from when they come, and type for it.
 *
 * They connect to DIRECTORY/attach, a socket of packets (SOCK_SEQPACKET). The first byte of a
 * packet is its channel, numbered as in Kubernetes' remote command protocol:
 *
 *   1, 2   to the caller: what the command wrote to stdout or stderr; to its terminal, 1
 *   0      from the caller: for the command's standard input
 *   4      from the caller: rows and columns of its terminal, two uint16_t
 *   255    from the caller: its standard input ends here; a terminal's does not
 *
 * Nothing is lost between them: while a caller leaves what was said, the command is not heard, and
 * while the command leaves what was typed, the callers are not. */
#ifndef EGPU_ENTER_ATTACH_H
#define EGPU_ENTER_ATTACH_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    ATTACH_CALLERS = 4, /* more wait until one goes */
    ATTACH_POLLED = 2 + ATTACH_CALLERS,
    ATTACH_SAID = 16384, /* bytes of a packet to a caller, and from one, beside the channel */
    ATTACH_TYPED = 4096,
};

enum attach_channel {
    ATTACH_STDIN = 0,
    ATTACH_STDOUT = 1,
    ATTACH_STDERR = 2,
    ATTACH_RESIZE = 4,
    ATTACH_CLOSE = 255,
};

struct attach_caller {
    int socket;    /* -1: nobody */
    size_t length; /* of the packet that it has not taken yet; 0 where it has all */
    char packet[1 + ATTACH_SAID];
};

struct attached {
    int listener;
    int input; /* never waited for: a pipe's end or the terminal; -1 where nothing is read (any
                  more) */
    bool terminal;
    size_t typed; /* what the command has not read yet */
    char typing[ATTACH_TYPED];
    struct attach_caller callers[ATTACH_CALLERS];
};

/* Listens in the directory that is open there, for callers of this user alone. */
bool attach_open(struct attached *attached, int directory);
/* What to wait for, and what to do when something of it came. */
void attach_poll(const struct attached *attached, struct pollfd polled[ATTACH_POLLED]);
void attach_serve(struct attached *attached, const struct pollfd polled[ATTACH_POLLED]);
/* Whether a caller has not taken what was said: then no more is to be said. */
bool attach_behind(const struct attached *attached);
/* Gives all callers at most ATTACH_SAID bytes. One that is behind is waited for a moment, then
 * left. */
void attach_say(struct attached *attached, enum attach_channel channel, const char *text,
                size_t length);
/* Waits a moment for those who have not taken all, for the last time. */
void attach_finish(struct attached *attached);

#endif
