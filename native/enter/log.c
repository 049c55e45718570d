/* See log.h. If a log cannot be written (a full disk), only lines are lost: the command goes on. */
#include "log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LAST_READS = 4096 }; /* of a pipe that an unknown process still writes to */

static void write_line(const struct log_stream *stream, size_t length, char tag) {
    struct timespec now;
    struct tm utc;
    char head[64];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t size = strftime(head, sizeof head, "%Y-%m-%dT%H:%M:%S", &utc);
    size += (size_t)snprintf(head + size, sizeof head - size, ".%09ldZ %s %c ", now.tv_nsec,
                             stream->channel == ATTACH_STDERR ? "stderr" : "stdout", tag);
    struct iovec parts[] = {{head, size}, {(char *)stream->line, length}, {(char *)"\n", 1}};
    if (writev(stream->file, parts, 3) < 0) return;
}

static void write_whole_lines(struct log_stream *stream) {
    char *end;
    while ((end = memchr(stream->line, '\n', stream->length)) != NULL) {
        size_t length = (size_t)(end - stream->line);
        write_line(stream, length, 'F');
        stream->length -= length + 1;
        memmove(stream->line, end + 1, stream->length);
    }
    if (stream->length < LOG_LINE) return;
    write_line(stream, stream->length, 'P');
    stream->length = 0;
}

bool log_take(struct log_stream *stream) {
    char *text = stream->line + stream->length;
    ssize_t size = read(stream->pipe, text, LOG_LINE - stream->length);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) stream->pipe = -1;
    if (size <= 0) return false;
    attach_say(stream->attached, stream->channel, text, (size_t)size);
    stream->length += (size_t)size;
    write_whole_lines(stream);
    return true;
}

void log_tell_before(const struct log_stream *stream, struct attach_caller *caller) {
    struct stat status;
    struct attach_before before = {0};
    if (fstat(stream->file, &status) == 0) before.log_bytes = (uint64_t)status.st_size;
    attach_tell_before(caller, before, stream->line, stream->length);
}

void log_finish(struct log_stream *stream) {
    for (int reads = 0; reads < LAST_READS && log_take(stream); reads++) continue;
    if (stream->length > 0) write_line(stream, stream->length, 'F');
    stream->length = 0;
}
