/* The parent's part of a move: mover.c. */
#ifndef EGPU_EXECUTOR_MOVER_H
#define EGPU_EXECUTOR_MOVER_H

#include <poll.h>
#include <stdbool.h>

#define MOVER_POLLS 3
void mover_poll(struct pollfd ready[MOVER_POLLS]);
/* True: all sessions have left, and the parent is over. */
bool mover_serve(const struct pollfd ready[MOVER_POLLS]);
bool mover_stands(void);      /* no client is let in: where its session is has not been decided */
bool mover_restore(int from); /* false, with a line on stderr: this executor is of no use */

#endif
