/* graphs.c and rooms.c, and how a fuzzer forgets what an input left in them. */
#include "../../executor/graphs/graphs.c"
#include "../../executor/graphs/rooms.c"

void forget_graphs(void);

void forget_graphs(void) {
    begun = false;
    rooms_made = room_bytes = 0;
}
