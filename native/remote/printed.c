/* Output of kernels, fetched from the executor. It is on this program's standard output before the
 * call whose reply announced it returns. */
#include "client.h"

#include <stdio.h>

#define MOST_PIECES 256 /* per announcement; an executor keeps less */

/* One thread at a time, so the output stays in order. */
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
