/* A checkpoint of the contents of all memory that this process has on the cards. No call may run
 * meanwhile. */
#ifndef EGPU_SIM_SAVED_H
#define EGPU_SIM_SAVED_H

#include "machine.h"

/* Return the bytes of the cards that this process has, or had before the checkpoint. */
uint64_t saved_bytes(void);
/* Copy the contents to the host, and give the chunks back. Return 0 or an errno: nothing was given
 * back. */
int saved_leave(void);
/* Take chunks again, on the card that `moved` says. Return 0 or an errno: nothing was taken. */
int saved_return(struct sim_card *(*moved)(struct sim_card *));
/* Copy the contents back. Return 0 or an errno. */
int saved_fill(void);

#endif
