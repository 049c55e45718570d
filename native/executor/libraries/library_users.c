/* Objects that one thread may end while others are in calls with them, which is what aborting a
 * communicator is for: whoever waits with one is told, and it is ended once nobody has it. */
#include "executor/libraries/libraries.h"

#include <pthread.h>
#include <unistd.h>

#include "common/clock.h"

struct used {
    struct used *next;
    void *object;
    unsigned users;
    bool ending;
};
static struct used *all; /* that are in calls, or about to be ended */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock. */
static struct used **place_of(void *object) {
    struct used **at = &all;
    while (*at != NULL && (*at)->object != object) at = &(*at)->next;
    return at;
}

static void forget(struct used **at) {
    struct used *one = *at;
    *at = one->next;
    free(one);
}

/* An entry for an object that is still one of the client's, and that nobody ends; or NULL. */
static struct used *found(unsigned kind, void *object) {
    struct used **at = place_of(object);
    if (*at != NULL) return (*at)->ending ? NULL : *at;
    if (!handle_is_bound(kind, (uint64_t)(uintptr_t)object)) return NULL;
    struct used *one = calloc(1, sizeof *one);
    if (one != NULL) one->object = object;
    return *at = one;
}

bool library_enter(unsigned kind, void *object) {
    pthread_mutex_lock(&lock);
    struct used *one = found(kind, object);
    if (one != NULL) one->users++;
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

void library_leave(void *object) {
    pthread_mutex_lock(&lock);
    struct used **at = place_of(object);
    if (--(*at)->users == 0 && !(*at)->ending) forget(at);
    pthread_mutex_unlock(&lock);
}

bool library_ending(void *object) {
    pthread_mutex_lock(&lock);
    struct used *one = *place_of(object);
    bool ending = one != NULL && one->ending;
    pthread_mutex_unlock(&lock);
    return ending;
}

bool library_end_begin(unsigned kind, void *object) {
    int64_t until = clock_now_ms() + LIBRARY_SETTLE_SECONDS * INT64_C(1000);
    pthread_mutex_lock(&lock);
    struct used *one = found(kind, object);
    if (one != NULL) one->ending = true;
    while (one != NULL && one->users != 0 && clock_now_ms() < until) {
        pthread_mutex_unlock(&lock);
        usleep(LIBRARY_LOOK_US);
        pthread_mutex_lock(&lock);
    }
    bool alone = one != NULL && one->users == 0;
    if (one != NULL && !alone) one->ending = false; /* somebody is in the library for good */
    pthread_mutex_unlock(&lock);
    return alone;
}

void library_end_done(void *object) {
    pthread_mutex_lock(&lock);
    forget(place_of(object));
    pthread_mutex_unlock(&lock);
}
