/* What a session shares with a client on its machine is handed over: the memory with the rings, the
 * connection whose end is the client's end, and the client's pinned memory. The client does not
 * notice. It goes on when the parent says that the session has ended where it was. */
#include "executor/session/session.h"

#include <stdio.h>
#include <unistd.h>

#include "executor/moves/moves.h"

void shared_put(struct moved_stream *to) {
    if (session.transport != &transport_shared) return;
    bulk_look(); /* all copies are done */
    moved_put_descriptor(to, PART_SHARED, NULL, 0, session.memory);
    moved_put_descriptor(to, PART_SHARED, NULL, 0, session.connection);
    for (const struct host_range *range = NULL; (range = host_next(range)) != NULL;) {
        CUresult gone = CUDA_SUCCESS;
        struct moved_host is = {range->address, range->bytes, range->context};
        handle_value(KIND_context, is.context, &gone);
        if (gone != CUDA_SUCCESS) is.context = 0; /* nothing is registered any more */
        moved_put_descriptor(to, PART_HOST, &is, sizeof is, range->kept);
    }
}

static int taken(struct moved_stream *from) {
    int descriptor = from->passed;
    from->passed = -1;
    return descriptor;
}

bool shared_take(struct moved_stream *from) {
    int descriptor = taken(from);
    if (descriptor < 0) return false;
    if (session.memory < 0) {
        session.memory = descriptor;
        return true;
    }
    if (session.connection < 0 && shared_adopt(session.memory, descriptor)) return true;
    close(descriptor);
    return false;
}

bool shared_take_host(struct moved_stream *from, const uint8_t *payload, size_t bytes, char *why) {
    struct moved_host is;
    int descriptor = taken(from);
    if (descriptor < 0) return false;
    if (bytes != sizeof is) {
        close(descriptor);
        return false;
    }
    memcpy(&is, payload, sizeof is);
    driver_enter(is.context);
    CUresult result =
        host_add((struct host_range){is.address, is.bytes, is.context, -1}, descriptor);
    if (result != CUDA_SUCCESS)
        snprintf(why, MOVES_WHY_BYTES, "the target cannot map pinned memory: error %d",
                 (int)result);
    return result == CUDA_SUCCESS;
}
