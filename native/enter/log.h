/* A command's output with times: the lines of the CRI's log files, as container runtimes write them
 * for kubelets.
 *
 *   2026-11-23T08:15:30.123456789Z stdout F text
 *
 * F ends a line; P is a part of a line longer than LOG_LINE. A last line without an end is F
 * too. */
#ifndef EGPU_ENTER_LOG_H
#define EGPU_ENTER_LOG_H

#include "attach.h"

#include <stdbool.h>
#include <stddef.h>

enum { LOG_LINE = ATTACH_SAID };

struct log_stream {
    enum attach_channel channel; /* stdout or stderr */
    struct attached *attached;   /* sees the text at once */
    int file;                    /* destination of the lines */
    int pipe;                    /* source of the text, never waited for; -1 after its end */
    size_t length;
    char line[LOG_LINE];
};

/* Take what the pipe has now, at most a buffer, and write the complete lines. False: it has
 * nothing. */
bool log_take(struct log_stream *stream);
/* Tell a new caller what the stream gave before. */
void log_tell_before(const struct log_stream *stream, struct attach_caller *caller);
/* Take everything left in the pipe, and write incomplete lines too. */
void log_finish(struct log_stream *stream);

#endif
