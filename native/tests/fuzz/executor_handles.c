/* handles.c, and how a fuzzer forgets what an input left in it. */
#include "../../executor/calls/handles.c"

void forget_handles(void);

void forget_handles(void) {
    for (int i = 0; i < 2; i++) {
        madvise(tables[i], WIRE_INDEXES * sizeof **tables, MADV_DONTNEED);
        used[i] = 1;
    }
    generation = 0;
    if (map_size > 1024) {
        free(map);
        map = calloc(1024, sizeof *map);
        if (map == NULL) abort();
    } else {
        memset(map, 0, map_size * sizeof *map);
    }
    map_size = 1024;
    map_used = 0;
}
