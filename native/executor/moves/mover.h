/* The parents' part of a move: mover.c at the source, restored.c at the target. */
#ifndef EGPU_EXECUTOR_MOVER_H
#define EGPU_EXECUTOR_MOVER_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* What the source says first; as many clients follow. The target answers with a struct
 * moves_report when it is ready for the sessions, and with another when it has them. */
#define MOVED_MAGIC "EGPUMOVE"
struct moved_head {
    char magic[8];
    uint32_t version, sessions;
};
struct moved_client {
    uint8_t id[16];
    uint32_t client, zero;
};

#define MOVER_POLLS 4
void mover_poll(struct pollfd ready[MOVER_POLLS]);
/* True: all sessions have left, and the parent is over. */
bool mover_serve(const struct pollfd ready[MOVER_POLLS]);
bool mover_stands(void);      /* no client is let in: where its session is has not been decided */
bool mover_restore(int from); /* false, with a line on stderr: this executor is of no use */
int restored_from(void);      /* the source, until it has ended; or -1 */
void restored_begin(void);    /* it has, or says that its sessions have */

#endif
