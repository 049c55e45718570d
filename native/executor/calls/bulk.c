/* Copies to the card from the bulk area, which the GPU reads while the session goes on. A slot that
 * it reads is held: the client sees so in the control page, and leaves it alone until the copy is
 * done. One slot is never held, so that a stream that waits keeps nobody else from copying.
 */
#define _GNU_SOURCE
#include "executor/executor.h"

#include <pthread.h>
#include <stdatomic.h>

#include "ring.h"

static uint8_t *area;
static _Atomic uint32_t *shown; /* to the client: a bit for each slot that is held */
static _Atomic bool pinned;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUevent behind[SHARED_BULK_SLOTS]; /* the copy that reads the slot; NULL: none does */
static _Atomic unsigned held;             /* and those that are about to be */

void bulk_open(uint8_t *bulk, _Atomic uint32_t *control) {
    area = bulk;
    shown = control;
}

void bulk_context_ended(void) {
    atomic_store(&pinned, false);
} /* it may have been pinned in that */

/* Calls of ours are no part of what the client captures, and break none of its captures. */
static CUstreamCaptureMode exchange_capture(CUstreamCaptureMode mode) {
    DRIVER(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode *)(&mode);
    return mode;
}

/* Once, for all contexts: from other memory the driver copies itself, and waits. Where it cannot be
 * pinned that is what happens, and nothing else is different. */
static void pin(void) {
    if (atomic_exchange(&pinned, true)) return;
    CUstreamCaptureMode mode = exchange_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    DRIVER(cuMemHostRegister_v2, void *, size_t, unsigned)(area, SHARED_BULK_BYTES,
                                                           CU_MEMHOSTREGISTER_PORTABLE);
    exchange_capture(mode);
}

/* Under the lock. */
static void give_back(unsigned slot) {
    DRIVER(cuEventDestroy_v2, CUevent)(behind[slot]);
    behind[slot] = NULL;
    atomic_fetch_sub(&held, 1);
    atomic_fetch_and_explicit(shown, ~(1u << slot), memory_order_release);
}

bool bulk_look(void) {
    if (atomic_load(&held) == 0) return false;
    CUstreamCaptureMode mode = exchange_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    pthread_mutex_lock(&lock);
    for (unsigned slot = 0; slot < SHARED_BULK_SLOTS; slot++)
        if (behind[slot] != NULL && DRIVER(cuEventQuery, CUevent)(behind[slot]) !=
                                        CUDA_ERROR_NOT_READY) /* done, or never to be */
            give_back(slot);
    pthread_mutex_unlock(&lock);
    exchange_capture(mode);
    return atomic_load(&held) != 0;
}

bool bulk_take(void) {
    bulk_look();
    if (atomic_fetch_add(&held, 1) < SHARED_BULK_HELD) return true;
    atomic_fetch_sub(&held, 1);
    return false;
}

static bool hold(const uint8_t *from, CUstream stream) {
    unsigned slot = (unsigned)((size_t)(from - area) / SHARED_BULK_SLOT);
    CUevent event;
    if (DRIVER(cuEventCreate, CUevent *, unsigned)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    if (DRIVER(cuEventRecord, CUevent, CUstream)(event, stream) != CUDA_SUCCESS) {
        DRIVER(cuEventDestroy_v2, CUevent)(event);
        return false;
    }
    pthread_mutex_lock(&lock);
    if (behind[slot] != NULL) give_back(slot); /* a client that does not wait harms itself */
    behind[slot] = event;
    atomic_fetch_or_explicit(shown, 1u << slot, memory_order_release);
    pthread_mutex_unlock(&lock);
    return true;
}

CUresult bulk_copy(CUdeviceptr to, const uint8_t *from, size_t bytes, CUstream stream, bool taken) {
    pin();
    CUresult result = DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t,
                             CUstream)(to, from, bytes, stream);
    if (result == CUDA_SUCCESS && taken && hold(from, stream)) return result;
    if (taken) atomic_fetch_sub(&held, 1);
    return result == CUDA_SUCCESS ? DRIVER(cuStreamSynchronize, CUstream)(stream) : result;
}
