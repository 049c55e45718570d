/* Functions of the client that the driver's streams call: the client is told and answers. */
#define _GNU_SOURCE
#include "executor/session/session.h"

struct callback {
    uint64_t number;
    struct wire_callback said;
    bool done;
    struct callback *next;
};

/* Under session.out_lock. */
static struct callback *callbacks;
static uint64_t next_callback = 1;
static pthread_cond_t callback_done = PTHREAD_COND_INITIALIZER;

static void tell(const struct callback *callback) {
    struct wire_header header = {
        .op = WIRE_CALLBACK, .len = sizeof callback->said, .seq = callback->number};
    session.transport->emit(&header, &callback->said, sizeof callback->said, NULL, 0);
}

void session_callback(uint64_t id, CUresult status) {
    struct callback callback = {.said = {id, (uint32_t)status, 0}};
    pthread_mutex_lock(&session.out_lock);
    callback.number = next_callback++;
    callback.next = callbacks;
    callbacks = &callback;
    tell(&callback);
    session.transport->flush();
    while (!callback.done) pthread_cond_wait(&callback_done, &session.out_lock);
    pthread_mutex_unlock(&session.out_lock);
}

void callback_ended(uint64_t number) {
    pthread_mutex_lock(&session.out_lock);
    for (struct callback **at = &callbacks; *at != NULL; at = &(*at)->next)
        if ((*at)->number == number) {
            (*at)->done = true;
            *at = (*at)->next;
            break;
        }
    pthread_cond_broadcast(&callback_done);
    pthread_mutex_unlock(&session.out_lock);
}

void callbacks_again(void) {
    for (const struct callback *callback = callbacks; callback != NULL; callback = callback->next)
        tell(callback);
}

bool callbacks_run(void) {
    pthread_mutex_lock(&session.out_lock);
    bool run = callbacks != NULL;
    pthread_mutex_unlock(&session.out_lock);
    return run;
}

uint64_t callbacks_number(void) { return next_callback; }
void callbacks_continue(uint64_t next) { next_callback = next; }
