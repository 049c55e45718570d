/* Stops a session between two calls. The thread that serves holds the gate while it carries frames
 * out, and has left it while it waits for more; so whoever has closed it knows that no call runs.
 * Calls in threads of their own, the work of the card and functions of the program are waited for.
 *
 * A function of the program that runs, a stream that captures, an image of which parts have come
 * and a variable whose address the client uses need further calls to come to their end: then the
 * gate is opened for a while.
 */
#define _GNU_SOURCE
#include "executor/session/session.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "executor/moves/moves.h"

#define STOP_MS 30000 /* the client only waits meanwhile */
#define AGAIN_US 2000
#define LOOK_US 100
#define MISSED_MS 20

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static _Atomic bool wanted;
static bool closed; /* changed under the gate, by the control thread alone */

/* An end that came between the look and the wait is seen a little later. */
static void wait_until_open(void) {
    while (closed || atomic_load(&wanted)) {
        int64_t ms = clock_now_ms() + MISSED_MS;
        struct timespec until = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
        pthread_cond_clockwait(&opened, &gate, CLOCK_MONOTONIC, &until);
    }
}

void gate_enter(void) {
    if (!moves_on) return;
    pthread_mutex_lock(&gate);
    wait_until_open();
}

void gate_look(void) {
    if (moves_on && atomic_load_explicit(&wanted, memory_order_relaxed)) wait_until_open();
}

void gate_leave(void) {
    if (moves_on) pthread_mutex_unlock(&gate);
}

/* False: a call runs until after the deadline. */
static bool close_until(int64_t deadline) {
    struct timespec until = {.tv_sec = deadline / 1000, .tv_nsec = deadline % 1000 * 1000000};
    atomic_store(&wanted, true);
    if (pthread_mutex_clocklock(&gate, CLOCK_MONOTONIC, &until) != 0) return false;
    closed = true;
    pthread_mutex_unlock(&gate);
    return true;
}

/* It does not wait for a call: while one runs the gate is not closed, and otherwise it is held for
 * moments only. */
void gate_open(void) {
    if (closed) {
        pthread_mutex_lock(&gate);
        closed = false;
        pthread_mutex_unlock(&gate);
    }
    atomic_store(&wanted, false);
    pthread_cond_broadcast(&opened);
}

bool gate_pause(int64_t ms) {
    if (close_until(clock_now_ms() + ms)) return true;
    gate_open();
    return false;
}

/* ---- the work ---- */

enum work { WORK_DONE, WORK_GOES_ON, WORK_NEEDS_CALLS, WORK_FAILED };

struct looked {
    enum work work;
    CUresult error;
    uint64_t contexts[64];
    unsigned context_count;
};

static void found(struct looked *looked, CUresult result) {
    if (result == CUDA_SUCCESS || looked->work == WORK_FAILED) return;
    if (result == CUDA_ERROR_NOT_READY && looked->work == WORK_DONE) looked->work = WORK_GOES_ON;
    if (result == CUDA_ERROR_NOT_READY) return;
    looked->work = WORK_FAILED;
    looked->error = result;
}

static bool see_capture(const struct handle_seen *seen, void *data) {
    struct looked *looked = data;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (wire_kind_of(seen->id) == KIND_context) {
        if (looked->context_count == sizeof looked->contexts / sizeof *looked->contexts)
            found(looked, CUDA_ERROR_NOT_SUPPORTED); /* more than are waited for */
        else
            looked->contexts[looked->context_count++] = seen->id;
    }
    if (wire_kind_of(seen->id) != KIND_stream) return true;
    driver_enter(seen->parent);
    if (DRIVER(cuStreamIsCapturing, CUstream, CUstreamCaptureStatus *)(
            (CUstream)(uintptr_t)seen->value, &status) == CUDA_SUCCESS &&
        status != CU_STREAM_CAPTURE_STATUS_NONE)
        looked->work = WORK_NEEDS_CALLS;
    return looked->work != WORK_NEEDS_CALLS;
}

static bool see_stream(const struct handle_seen *seen, void *data) {
    struct looked *looked = data;
    if (wire_kind_of(seen->id) != KIND_stream) return true;
    driver_enter(seen->parent);
    found(looked, DRIVER(cuStreamQuery, CUstream)((CUstream)(uintptr_t)seen->value));
    return looked->work != WORK_FAILED;
}

/* Only with the gate closed: contexts and streams stay what they are. */
static struct looked look(void) {
    struct looked looked = {.work = session_waits() ? WORK_GOES_ON : WORK_DONE};
    handles_each(see_capture, &looked);
    if (callbacks_run() || images_are_coming() || variables_are_used())
        looked.work = WORK_NEEDS_CALLS;
    if (looked.work == WORK_DONE) handles_each(see_stream, &looked);
    for (unsigned i = 0; i < looked.context_count && looked.work == WORK_DONE; i++) {
        driver_enter(looked.contexts[i]);
        found(&looked, DRIVER(cuStreamQuery, CUstream)(CU_STREAM_LEGACY));
    }
    for (unsigned i = 0; i < looked.context_count && looked.work == WORK_DONE; i++) {
        driver_enter(looked.contexts[i]);
        found(&looked, DRIVER(cuCtxSynchronize, void)()); /* what has no stream of ours, too */
    }
    driver_leave();
    return looked;
}

bool gate_close(char *why) {
    int64_t deadline = clock_now_ms() + STOP_MS;
    struct looked looked = {.work = WORK_GOES_ON};
    while (clock_now_ms() < deadline) {
        if (!close_until(deadline)) break;
        while ((looked = look()).work == WORK_GOES_ON && clock_now_ms() < deadline) usleep(LOOK_US);
        if (looked.work == WORK_DONE) return true;
        gate_open();
        if (looked.work == WORK_FAILED) {
            snprintf(why, MOVES_WHY_BYTES, "the card reports error %d", (int)looked.error);
            return false;
        }
        usleep(AGAIN_US);
    }
    gate_open();
    snprintf(why, MOVES_WHY_BYTES,
             looked.work == WORK_NEEDS_CALLS
                 ? "a stream captures, an image or a variable is in use, "
                   "or a function of the program runs, all the time"
                 : "the work on the card does not end within %d s",
             STOP_MS / 1000);
    return false;
}
