/* The driver that it is linked with. The first call of FUNCTION goes on, when it has done its work,
 * only after a neighbour has started: it makes the file MEETING/begun, and waits for
 * MEETING/started. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOKS = 12000, LOOK_US = 10000 };

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

/* What is at this offset in the driver. Not by dlsym, which an interposer answers. */
static void *real(uintptr_t offset) {
    struct link_map *map;
    if (dlinfo(dlopen(DRIVER, RTLD_NOW | RTLD_NOLOAD), RTLD_DI_LINKMAP, &map) != 0) abort();
    return (void *)(map->l_addr + offset);
}

int FUNCTION(void *made, void *of) {
    static atomic_bool met;
    int result = ((int (*)(void *, void *))real(FUNCTION_AT))(made, of);
    if (atomic_exchange(&met, 1)) return result;
    close(open(MEETING "/begun", O_CREAT | O_WRONLY, 0600));
    for (int look = 0; access(MEETING "/started", F_OK) != 0; look++) {
        if (look == LOOKS) abort();
        usleep(LOOK_US);
    }
    return result;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
    int (*ask)(const char *, void **, int, uint64_t, int *) = real(ASK_AT);
    int result = ask(name, found, version, flags, status);
    if (result == 0 && strcmp(name, TEXT(FUNCTION)) == 0) *found = (void *)FUNCTION;
    return result;
}
