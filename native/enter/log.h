/* What a command says, with times: the lines of the CRI's log files, as container runtimes write
 * them for kubelets.
 *
 *   2026-11-23T08:15:30.123456789Z stdout F text
 *
 * F ends a line; P is a part of one that is longer than LOG_LINE. A last line without an end is F,
 * too. */
#ifndef EGPU_ENTER_LOG_H
#define EGPU_ENTER_LOG_H

#include <stddef.h>
#include <sys/types.h>

enum { LOG_LINE = 16384 };

struct log_stream {
    const char *name; /* stdout or stderr */
    int file, pipe;   /* where lines go; where the text comes from, never waited for */
    size_t length;
    char line[LOG_LINE];
};

/* Takes what the pipe has now, a buffer at the most, and writes the lines that are whole. As read
 * does: 0 at the end of the text, -1 with nothing there. */
ssize_t log_take(struct log_stream *stream);
/* Takes all that the pipe still has, and writes what waits for its line's end. */
void log_finish(struct log_stream *stream);

#endif
