/* When events were recorded. An event that was recorded before a move is recorded nowhere at the
 * target; how long ago it was is carried instead, and answers cuEventElapsedTime until the program
 * records the event again.
 */
#include "executor/session/session.h"

#include "executor/moves/moves.h"

#define TIMES (1u << 16)

/* The serving thread and, while that is stopped, the move's. */
static struct moved_time *times;
static uint32_t time_count, time_room;

/* Recorded when the session was rebuilt, in each context that has one of them. */
static struct {
    uint64_t context;
    CUevent event;
} bases[64];
static unsigned base_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* waits beside look, too */

static CUresult elapsed(CUevent start, CUevent end, float *ms) {
    if (driver_function(EGPU_FN_cuEventElapsedTime_v2))
        return DRIVER(cuEventElapsedTime_v2, float *, CUevent, CUevent)(ms, start, end);
    return DRIVER(cuEventElapsedTime, float *, CUevent, CUevent)(ms, start, end);
}

static struct moved_time *find(uint64_t event) {
    for (uint32_t i = 0; i < time_count; i++)
        if (times[i].event == event) return &times[i];
    return NULL;
}

static CUevent base_of(uint64_t context) {
    for (unsigned i = 0; i < base_count; i++)
        if (bases[i].context == context) return bases[i].event;
    return NULL;
}

bool times_of(uint64_t event, CUevent value, CUevent now, double *before_ms) {
    const struct moved_time *past = find(event);
    float ms;
    CUevent since = past == NULL ? value : base_of(past->context);
    if (since == NULL || elapsed(since, now, &ms) != CUDA_SUCCESS) return false;
    *before_ms = ms + (past == NULL ? 0 : past->before_ms);
    return true;
}

bool times_add(const struct moved_time *time) {
    if (base_of(time->context) == NULL) {
        CUevent base;
        if (base_count == sizeof bases / sizeof *bases) return false;
        driver_enter(time->context);
        if (DRIVER(cuEventCreate, CUevent *, unsigned)(&base, 0) != CUDA_SUCCESS) return false;
        bases[base_count].context = time->context;
        bases[base_count++].event = base;
        if (DRIVER(cuEventRecord, CUevent, CUstream)(base, NULL) != CUDA_SUCCESS) return false;
    }
    if (time_count == time_room) {
        uint32_t room = time_room != 0 ? 2 * time_room : 64;
        struct moved_time *grown = room > TIMES ? NULL : realloc(times, room * sizeof *times);
        if (grown == NULL) return false;
        times = grown;
        time_room = room;
    }
    times[time_count++] = *time;
    return true;
}

/* Between two events of which one at least was recorded before. */
static CUresult between(const struct moved_time *start, const struct moved_time *end,
                        CUevent start_value, CUevent end_value, float *ms) {
    float since = 0;
    CUresult result = CUDA_SUCCESS;
    if (start != NULL && end != NULL) {
        *ms = (float)(start->before_ms - end->before_ms);
    } else if (start != NULL) {
        result = elapsed(base_of(start->context), end_value, &since);
        *ms = (float)(start->before_ms + since);
    } else {
        result = elapsed(base_of(end->context), start_value, &since);
        *ms = (float)-(end->before_ms + since);
    }
    return result;
}

static bool answer_elapsed(struct task *task, CUresult *result) {
    uint64_t words[3]; /* the pointers that are not NULL, and both events */
    float ms = 0;
    if (task->header.len != sizeof words) return false;
    memcpy(words, task->in.at, sizeof words);
    const struct moved_time *start = find(words[1]), *end = find(words[2]);
    if ((start == NULL && end == NULL) || (words[0] & 1) == 0) return false;
    CUresult bad = CUDA_SUCCESS;
    CUevent start_value = (CUevent)(uintptr_t)handle_value(KIND_event, words[1], &bad);
    CUevent end_value = (CUevent)(uintptr_t)handle_value(KIND_event, words[2], &bad);
    if (bad != CUDA_SUCCESS) return false;
    *result = between(start, end, start_value, end_value, &ms);
    if (*result == CUDA_SUCCESS) put_bytes(&task->out, &ms, sizeof ms);
    return true;
}

static void recorded_again(uint64_t event) {
    struct moved_time *past = find(event);
    if (past != NULL) *past = times[--time_count];
}

bool times_answer(struct task *task, CUresult *result) {
    if (time_count == 0) return false;
    bool answered = false;
    uint64_t words[2] = {0};
    memcpy(words, task->in.at, task->in.left < sizeof words ? task->in.left : sizeof words);
    pthread_mutex_lock(&lock);
    switch (task->header.op) {
    case OP_cuEventElapsedTime:
    case OP_cuEventElapsedTime_v2:
        driver_enter(task->context);
        answered = answer_elapsed(task, result);
        break;
    case OP_cuEventRecord:
    case OP_cuEventRecordWithFlags: recorded_again(words[0]); break;
    case OP_cuCtxRecordEvent: recorded_again(words[1]); break;
    default: break;
    }
    pthread_mutex_unlock(&lock);
    return answered;
}
