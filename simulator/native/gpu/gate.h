/* The gate before the driver's calls. A locked process's new calls wait; calls that began before
 * are let through to their end. The compiler makes the functions of the C ABI pass it
 * (-finstrument-functions, see CMakeLists.txt), so no call can be forgotten. Only the outermost
 * function of a thread counts. */
#ifndef EGPU_SIM_GATE_H
#define EGPU_SIM_GATE_H

#include <stdbool.h>

/* For functions of the C ABI that do not touch the card, and so never wait. */
#define UNGATED __attribute__((no_instrument_function))

void gate_close(void);
void gate_open(void);
bool gate_quiet(void);      /* no call is inside */
void gate_after_fork(void); /* in the child: the parent's calls are not its own */

#endif
