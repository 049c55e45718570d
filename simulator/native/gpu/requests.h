/* Requests of one process of the machine for the restore thread of another. */
#ifndef EGPU_SIM_REQUESTS_H
#define EGPU_SIM_REQUESTS_H

#include "machine.h"

struct sim_checkpoint *requests_of(struct machine *machine, int slot);

/* Return the slot of a live process by its pid in this pid namespace; -1: none. */
int requests_find(struct machine *machine, int pid);

/* Have a request carried out, and wait for its result. Return 0, ESRCH (the process has ended), or
 * an errno. */
int requests_ask(struct machine *machine, int slot, const struct sim_checkpoint *request,
                 uint32_t *result);

/* For the restore thread: wait for a request of another thread or process, and answer it. */
void requests_await(struct sim_checkpoint *desk);
void requests_answer(struct sim_checkpoint *desk, uint32_t result);

#endif
