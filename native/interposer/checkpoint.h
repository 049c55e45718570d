/* The charge of a process of this slice that the driver checkpoints. One caller at a time. */
#ifndef EGPU_CHECKPOINT_H
#define EGPU_CHECKPOINT_H

#include "interposer.h"

#pragma GCC visibility push(hidden)

/* ---- account.c ---- */
/* Its memory has left the cards, and is not charged from now on. */
void account_checkpointed(int pid);
/* Its memory comes back. False: the limit does not hold it, and nothing is charged. */
bool account_restored(int pid);

#pragma GCC visibility pop

#endif
