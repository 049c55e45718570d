/* Callers of a running command: from the moment they attach they see its output, and type for it.
 *
 * They connect to DIRECTORY/attach, a socket of packets (SOCK_SEQPACKET). The first byte of a
 * packet is its channel, numbered as in Kubernetes' remote command protocol:
 *
 *   5      to the caller, first, for stdout and then for stderr: output from before it attached.
 *          struct attach_before, then the stream's line that has no end yet. A caller that gets
 *          none came too late: all output is in the log
 *   1, 2   to the caller: the command's stdout or stderr; a terminal's output is on 1
 *   0      from the caller: for the command's standard input
 *   4      from the caller: rows and columns of its terminal, two uint16_t
 *   255    from the caller: the end of its standard input; a terminal's does not end
 *
 * Nothing is lost between them. While a caller does not read output, the command's output is not
 * read, and while the command does not read its input, the callers' input is not. */
#ifndef EGPU_ENTER_ATTACH_H
#define EGPU_ENTER_ATTACH_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ATTACH_CALLERS = 4, /* more wait until one leaves */
    ATTACH_POLLED = 2 + ATTACH_CALLERS,
    ATTACH_SAID = 16384, /* bytes of a packet to and from a caller, without the channel */
    ATTACH_TYPED = 4096,
};

enum attach_channel {
    ATTACH_STDIN = 0,
    ATTACH_STDOUT = 1,
    ATTACH_STDERR = 2,
    ATTACH_RESIZE = 4,
    ATTACH_BEFORE = 5,
    ATTACH_CLOSE = 255,
};

struct attach_before {
    uint64_t log_bytes; /* length of the log, with all lines that ended before */
};

struct attach_caller {
    int socket;    /* -1: free */
    size_t length; /* of the packet that it has not taken yet; 0: none */
    char packet[1 + ATTACH_SAID];
};

struct attached {
    int listener;
    int input; /* never waited for: a pipe's end or the terminal; -1 where nothing is read (any
                  more) */
    bool terminal;
    size_t typed; /* input that the command has not read yet */
    char typing[ATTACH_TYPED];
    struct attach_caller callers[ATTACH_CALLERS];
};

/* Listen in this open directory, for callers of this user only. */
bool attach_open(struct attached *attached, int directory);
/* Events to wait for, and the handling of those that came. Return the caller that has just
 * attached, or NULL. */
void attach_poll(const struct attached *attached, struct pollfd polled[ATTACH_POLLED]);
struct attach_caller *attach_serve(struct attached *attached,
                                   const struct pollfd polled[ATTACH_POLLED]);
/* Tell a new caller about the output from before. */
void attach_tell_before(struct attach_caller *caller, struct attach_before before, const char *line,
                        size_t length);
/* Return whether a caller has not taken all output: then send no more. */
bool attach_behind(const struct attached *attached);
/* Give all callers at most ATTACH_SAID bytes. Wait shortly for one that is behind, then disconnect
 * it. */
void attach_say(struct attached *attached, enum attach_channel channel, const char *text,
                size_t length);
/* Wait shortly, for the last time, for callers that have not taken all. */
void attach_finish(struct attached *attached);

#endif
