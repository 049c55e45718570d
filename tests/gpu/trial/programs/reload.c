/* Opens the driver, asks it for a function, closes it, and opens it again, elsewhere if it was
 * unmapped. */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    unsigned long total = 0;
    int initialised = -1, asked = -1, moved = 0;
    void *first = NULL;
    for (int i = 0; i < 3; i++) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == NULL) return printf("{\"ok\": false, \"error\": \"%s\"}\n", dlerror()), 1;
        void *version = dlsym(
            library,
            "cuDriverGetVersion"); /* nobody stands in for this one: the driver's own address */
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
        int (*memory)(unsigned long *, int) =
            (int (*)(unsigned long *, int))dlsym(library, "cuDeviceTotalMem_v2");
        moved |= i > 0 && version != first;
        first = version;
        if (i == 2) {
            initialised = init(0);
            asked = memory(&total, 0);
        }
        dlclose(library);
        mmap(NULL, 64 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    printf("{\"ok\": %s, \"moved\": %d, \"init\": %d, \"asked\": %d, \"total\": %lu}\n",
           initialised == 0 && asked == 0 ? "true" : "false", moved, initialised, asked, total);
    return 0;
}
