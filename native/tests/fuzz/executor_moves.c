/* What a session keeps for a move, and its memory; and how a fuzzer forgets them. */
#include "../../executor/moves/kept.c"
#include "../../executor/moves/mappings.c"
#undef lock
#define lock arena_lock
#include "../../executor/moves/arena.c"
#undef lock

void forget_moves(void);

void forget_moves(void) {
    kept_drop(of_session);
    of_session = NULL;
    atomic_store(&overflowed, false);
    atomic_store(&bytes, 0);
    atomic_store(&frames, 0);
    while (mapping_count != 0) free(mappings[--mapping_count]);
    allocation_count = stranger_count = unwanted_count = 0;
    range_base = range_bytes = numbers = mapping_bytes = 0;
}
