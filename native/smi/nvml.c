/* NVML by dlopen, so the same program works with a real driver, a simulated one, or a remote
 * one. */
#include "smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvml nvml;

static const char *said(nvmlReturn_t result) {
    return nvml.nvmlErrorString ? nvml.nvmlErrorString(result) : "unknown error";
}

void nvml_begin(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "nvidia-smi: found no NVML (%s): this process has no GPU\n", dlerror());
        exit(EXIT_NO_LIBRARY);
    }
#define LOAD(name) *(void **)&nvml.name = dlsym(library, #name);
    NVML_FUNCTIONS(LOAD)
#undef LOAD
    nvmlReturn_t result = nvml.nvmlInit_v2 ? nvml.nvmlInit_v2() : NVML_ERROR_FUNCTION_NOT_FOUND;
    if (result != NVML_SUCCESS) {
        fprintf(stderr, "nvidia-smi: cannot initialise NVML: %s\n", said(result));
        exit(result == NVML_ERROR_DRIVER_NOT_LOADED ? EXIT_NO_DRIVER : EXIT_OTHER);
    }
}

static bool find_one(const char *which, nvmlDevice_t *card) {
    char *end;
    unsigned long index = strtoul(which, &end, 10);
    if (*which && !*end) return ASK(nvmlDeviceGetHandleByIndex_v2, (unsigned)index, card);
    return ASK(nvmlDeviceGetHandleByUUID, which, card) ||
           ASK(nvmlDeviceGetHandleByPciBusId_v2, which, card);
}

struct cards nvml_cards(const char *which) {
    struct cards cards = {.count = 0};
    unsigned count = 0;
    if (which) {
        if (!find_one(which, &cards.list[cards.count++])) {
            fprintf(stderr, "nvidia-smi: found no GPU %s; nvidia-smi -L lists the GPUs\n", which);
            exit(EXIT_NOT_FOUND);
        }
        return cards;
    }
    if (!ASK(nvmlDeviceGetCount_v2, &count)) count = 0;
    for (unsigned i = 0; i < count && i < CARDS; i++)
        if (ASK(nvmlDeviceGetHandleByIndex_v2, i, &cards.list[cards.count])) cards.count++;
    if (cards.count == 0) {
        fprintf(stderr, "No devices were found\n");
        exit(EXIT_NOT_FOUND);
    }
    return cards;
}

unsigned nvml_processes(nvmlDevice_t card, nvmlProcessInfo_t list[PROCESSES]) {
    unsigned count = PROCESSES;
    return ASK(nvmlDeviceGetComputeRunningProcesses_v3, card, &count, list) ? count : 0;
}
