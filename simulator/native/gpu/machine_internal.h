/* Shared by the files of the shared machine: machine.c, shared.c, mig.c, limits.c, arbiter.c. */
#ifndef EGPU_SIM_MACHINE_INTERNAL_H
#define EGPU_SIM_MACHINE_INTERNAL_H

#include "machine.h"

void machine_table_lock(struct machine *machine);
void machine_table_unlock(struct machine *machine);
/* One byte of the machine's file. Return 0 or an errno. */
int machine_ofd_lock(int fd, int command, short type, int64_t at);

/* With the table locked: */
_Atomic uint32_t *machine_chunk_table(struct machine *machine, const struct sim_card *card);
void machine_recount(struct machine *machine);
void machine_punch(struct machine *machine, const struct sim_card *card, uint32_t first,
                   uint32_t count);
/* Return what a process uses of a card, or of an instance that it runs on; NULL: it does not run on
 * that instance. */
struct sim_usage *machine_usage(struct machine *machine, int slot, const struct sim_card *card);
/* Iterate over the records that count memory: cards, and GPU instances in place of cards in MIG
 * mode. NULL: the end. */
struct sim_card *machine_next_memory(struct machine *machine, const struct sim_card *after);
void machine_reap_locked(struct machine *machine);
/* Return this process's group; 0: none. */
uint64_t machine_own_group(const struct machine *machine);

/* Return the process charged for a chunk with this owner; -1: none. */
int machine_charged_slot(struct machine *machine, uint32_t owner);
void machine_bury_shared(struct machine *machine, int slot);

#endif
