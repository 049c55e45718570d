/* The driver that it is linked with. It writes down when a primary context is made and destroyed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_int references;

static int (*real(const char *symbol))(void) {
    return (int (*)(void))dlsym(dlopen(DRIVER, RTLD_NOW | RTLD_NOLOAD), symbol);
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    int (*retain)(void **, int) = (int (*)(void **, int))real("cuDevicePrimaryCtxRetain");
    int result = retain(context, device);
    if (result == 0 && atomic_fetch_add(&references, 1) == 0) fprintf(stderr, "context made\n");
    return result;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    int (*release)(int) = (int (*)(int))real("cuDevicePrimaryCtxRelease_v2");
    if (atomic_fetch_sub(&references, 1) == 1) fprintf(stderr, "context destroyed\n");
    return release(device);
}
