/* Other ways to do what an unsupported function does. */
#include "not_supported.h"

#include <string.h>

#define TEXTURES "use texture objects (cuTexObjectCreate)"
#define SURFACES "use surface objects (cuSurfObjectCreate)"
#define LAUNCHES "use cuLaunchKernel"
#define EVENTS "use events (cuEventRecord, cuStreamWaitEvent)"
#define GRAPHICS "copy through memory instead of sharing it with graphics or video"
#define MANAGED "use cudaMalloc, or cudaMallocHost for memory that host and card both see"

/* By the beginning of the name, longer ones first where two fit. */
static const struct {
    const char *begins, *remedy;
} remedies[] = {
    {"cuTexRef", TEXTURES},
    {"cuModuleGetTexRef", TEXTURES},
    {"cuParamSetTexRef", TEXTURES},
    {"cuSurfRef", SURFACES},
    {"cuModuleGetSurfRef", SURFACES},
    {"cuParamSet", LAUNCHES},
    {"cuFuncSetBlockShape", LAUNCHES},
    {"cuFuncSetSharedSize", LAUNCHES},
    {"cuLaunchGrid", LAUNCHES},
    {"cuLaunchCooperativeKernelMultiDevice", "use cuLaunchCooperativeKernel on each device"},
    {"cuStreamWaitValue", EVENTS},
    {"cuStreamWriteValue", EVENTS},
    {"cuStreamBatchMemOp", EVENTS},
    {"cuGraphAddBatchMemOpNode", EVENTS},
    {"cuGL", GRAPHICS},
    {"cuGraphics", GRAPHICS},
    {"cuEGL", GRAPHICS},
    {"cuEventCreateFromEGL", GRAPHICS},
    {"cuVDPAU", GRAPHICS},
    {"cuMemAllocManaged", MANAGED},
    {"cuLibraryGetManaged", MANAGED},
    {"cuMemMapArrayAsync", "use arrays with memory of their own (cuArrayCreate)"},
    {"linking of ", "link before the program runs (nvcc -dlink, nvJitLink)"},
    {"cuIpc", "copy through host memory"},
};

const char *egpu_driver_remedy(const char *what) {
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
        if (strncmp(what, remedies[i].begins, strlen(remedies[i].begins)) == 0)
            return remedies[i].remedy;
    return NULL;
}
