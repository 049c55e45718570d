/* calls.c, host.c and images.c, and how a fuzzer forgets what an input left in them. */
#define _GNU_SOURCE
#include "../../executor/calls/calls.c"
#include "../../executor/calls/host.c"
#include "../../executor/images/images.c"

void forget_calls(void);
void forget_graphs(void);

void forget_calls(void) {
    forget_graphs();
    memset(primaries, 0, sizeof primaries);
    for (unsigned i = 0; i < IMAGES && image_bytes != 0; i++) image_forget(&images[i]);
    for (unsigned i = 0; i < HOST_MAPS && host_bytes != 0; i++) {
        if (host_maps[i].bytes == 0) continue;
        munmap((void *)(uintptr_t)host_maps[i].address, host_maps[i].bytes);
        host_bytes -= host_maps[i].bytes;
        if (host_maps[i].kept >= 0) close(host_maps[i].kept);
        host_maps[i].bytes = 0;
    }
    host_kept = 0;
}
