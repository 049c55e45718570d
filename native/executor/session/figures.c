/* What a session did: one line in the log at its end, with EGPU_REMOTE_VERBOSE=1. */
#define _GNU_SOURCE
#include "executor/session/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Calls come in the thread that serves; replies leave in any. */
static uint64_t calls, bytes_in, functions;
static _Atomic uint64_t bytes_out, images;

void figures_call(const struct wire_header *header) {
    calls++;
    bytes_in += sizeof *header + header->len;
    functions += header->op == OP_FUNCTION_INFO;
}

void figures_image(void) { atomic_fetch_add(&images, 1); }

void figures_reply(const struct reply *reply) {
    size_t bytes = sizeof(struct wire_header) + sizeof reply->head + reply->bytes;
    atomic_fetch_add_explicit(&bytes_out, bytes, memory_order_relaxed);
}

void figures_tell(const char *lease) {
    const char *verbose = getenv("EGPU_REMOTE_VERBOSE");
    if (verbose == NULL || strcmp(verbose, "1") != 0) return;
    fprintf(stderr,
            "egpu-executor: lease %s: a session ends after %" PRIu64 " calls: %" PRIu64
            " bytes in, %" PRIu64 " bytes out, %" PRIu64 " images, %" PRIu64 " kernels\n",
            lease, calls, bytes_in, atomic_load(&bytes_out), atomic_load(&images), functions);
}
