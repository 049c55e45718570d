/* What kernels have printed, as the executor has it: it becomes this program's before the call
 * returns whose reply said so. */
#include "client.h"

#include <stdio.h>

#define MOST_PIECES 256 /* of what one reply has announced; an executor keeps less */

/* One thread after the other, so that it stays in the order in which it was printed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char piece[WIRE_MAX_PRINTED];

static bool fetch(struct link *link) {
    struct call call;
    call_start(&call, OP_PRINTED);
    call.link = link;
    call.into = piece;
    call.into_bytes = call.asked_bytes = sizeof piece;
    if (call_begin(&call, 0, CALL_WAITS) != CUDA_SUCCESS) return false;
    bool came = call_ask(&call) == CUDA_SUCCESS;
    if (came) fwrite(piece, 1, call.into_got, stdout);
    return came;
}

void printed_show(struct link *link) {
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MOST_PIECES && atomic_exchange(&link->printed, false); i++)
        if (!fetch(link)) break;
    fflush(stdout);
    pthread_mutex_unlock(&lock);
}
