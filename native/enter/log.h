/* What a command says, with times: the lines of the CRI's log files, as container runtimes write
 * them for kubelets.
 *
 *   2026-11-23T08:15:30.123456789Z stdout F text
 *
 * F ends a line; P is a part of one that is longer than LOG_LINE. A last line without an end is F,
 * too. */
#ifndef EGPU_ENTER_LOG_H
#define EGPU_ENTER_LOG_H

#include "attach.h"

#include <stdbool.h>
#include <stddef.h>

enum { LOG_LINE = ATTACH_SAID };

struct log_stream {
    enum attach_channel channel; /* stdout or stderr */
    struct attached *attached;   /* who sees the text at once */
    int file;                    /* where lines go */
    int pipe;                    /* where the text comes from, never waited for; -1 after its end */
    size_t length;
    char line[LOG_LINE];
};

/* Takes what the pipe has now, a buffer at the most, and writes the lines that are whole. False
 * where it has nothing. */
bool log_take(struct log_stream *stream);
/* Takes all that the pipe still has, and writes what waits for its line's end. */
void log_finish(struct log_stream *stream);

#endif
