/* The gate of a session that is stopped, and a call that does not end. */
#define _GNU_SOURCE
#include <unistd.h>

#include "../../executor/moves/gate.c"
#include "../check.h"

#define CALL_SECONDS 20 /* a test that waits for the call is ended before */

bool moves_on = true;
bool session_waits(void) { return false; }
bool callbacks_run(void) { return false; }
bool images_are_coming(void) { return false; }
bool variables_are_used(void) { return false; }
void driver_enter(uint64_t context) { (void)context; }
void driver_leave(void) {}
driver_pointer driver_function(egpu_driver_id id) {
    (void)id;
    return NULL;
}
bool handles_each(bool (*see)(const struct handle_seen *, void *), void *data) {
    (void)see, (void)data;
    return true;
}

static _Atomic bool calls, ends;
static _Atomic unsigned looked;

static void *serve(void *unused) {
    (void)unused;
    gate_enter();
    atomic_store(&calls, true);
    while (!atomic_load(&ends)) usleep(1000);
    while (atomic_load(&ends)) {
        gate_look();
        atomic_fetch_add(&looked, 1);
        usleep(100);
    }
    gate_leave();
    return NULL;
}

static void await_looks(void) {
    unsigned before = atomic_load(&looked);
    while (atomic_load(&looked) < before + 3) usleep(1000);
}

int main(void) {
    pthread_t server;
    char why[MOVES_WHY_BYTES];
    alarm(CALL_SECONDS);
    pthread_create(&server, NULL, serve, NULL);
    while (!atomic_load(&calls)) usleep(1000);
    CHECK(!gate_pause(20)); /* and does not wait for the call to say so */
    gate_open();            /* neither does an order to go on */
    atomic_store(&ends, true);
    await_looks(); /* nothing keeps the thread that serves */
    for (unsigned i = 0; i < 100; i++) {
        CHECK(gate_pause(10000));
        unsigned before = atomic_load(&looked);
        usleep(2000);
        CHECK(atomic_load(&looked) <= before + 1);
        gate_open();
        await_looks();
    }
    for (unsigned i = 0; i < 100; i++) {
        gate_pause(0); /* the thread may wait by then, or not yet */
        gate_open();
        await_looks();
    }
    CHECK(gate_close(why));
    gate_open();
    await_looks();
    atomic_store(&ends, false);
    pthread_join(server, NULL);
    return 0;
}
