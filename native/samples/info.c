/* The devices as a program sees them, through CUDA and through NVML. */
#include "sample.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct nvml_device_object *nvml_device;
struct nvml_memory {
    unsigned long long total, free, used;
};

static struct {
    int (*init)(void);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, nvml_device *device);
    int (*uuid)(nvml_device device, char *uuid, unsigned length);
    int (*memory)(nvml_device device, struct nvml_memory *memory);
} nvml;

static bool nvml_load(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return false;
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.count = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&nvml.by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml.uuid = dlsym(library, "nvmlDeviceGetUUID");
    *(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    return nvml.init && nvml.count && nvml.by_index && nvml.uuid && nvml.memory && nvml.init() == 0;
}

static bool nvml_memory_of(const char *uuid, struct nvml_memory *memory) {
    unsigned count = 0;
    if (nvml.count(&count) != 0) return false;
    for (unsigned i = 0; i < count; i++) {
        nvml_device device;
        char text[96] = "";
        if (nvml.by_index(i, &device) == 0 && nvml.uuid(device, text, sizeof text) == 0 &&
            strcmp(text, uuid) == 0)
            return nvml.memory(device, memory) == 0;
    }
    return false;
}

static void print_device(int ordinal, bool with_nvml) {
    cu_device device;
    cu_context context;
    cu_uuid id;
    char name[128], uuid[48] = "GPU-";
    size_t device_total, available, total;
    CUDA(device_get, &device, ordinal);
    CUDA(device_name, name, sizeof name, device);
    CUDA(device_uuid, &id, device);
    CUDA(device_total_memory, &device_total, device);
    CUDA(context_retain, &context, device);
    CUDA(context_use, context);
    CUDA(memory_info, &available, &total);
    char *end = uuid + 4;
    for (int i = 0; i < 16; i++)
        end +=
            sprintf(end, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id.bytes[i]);
    struct nvml_memory m = {0};
    bool known = with_nvml && nvml_memory_of(uuid, &m);
    if (sample_json) {
        printf("%s{\"ordinal\": %d, \"name\": ", ordinal ? ", " : "", ordinal);
        sample_json_string(name);
        printf(
            ", \"uuid\": \"%s\", \"total\": %zu, \"memory_info_total\": %zu, \"memory_info_free\": %zu, ",
            uuid, device_total, total, available);
        if (known)
            printf("\"nvml_total\": %llu, \"nvml_free\": %llu, \"nvml_used\": %llu}", m.total,
                   m.free, m.used);
        else
            printf("\"nvml_total\": null, \"nvml_free\": null, \"nvml_used\": null}");
        return;
    }
    printf("info: GPU %d: %s (%s): cuDeviceTotalMem %zu, cuMemGetInfo %zu free of %zu, ", ordinal,
           name, uuid, device_total, available, total);
    if (known)
        printf("NVML %llu free, %llu used of %llu\n", m.free, m.used, m.total);
    else
        printf("NVML does not show it\n");
}

int main(int argc, char **argv) {
    const struct flag flags[] = {{0}};
    sample_begin(argc, argv, "info", "Shows the GPUs that this process can see.", flags, false);
    int count, version;
    CUDA(device_count, &count);
    CUDA(driver_version, &version);
    bool with_nvml = nvml_load();
    if (sample_json)
        printf(
            "{\"sample\": \"info\", \"ok\": true, \"driver_version\": %d, \"nvml\": %s, \"devices\": [",
            version, with_nvml ? "true" : "false");
    else
        printf("info: %d device%s, CUDA %d.%d%s\n", count, count == 1 ? "" : "s", version / 1000,
               version % 1000 / 10, with_nvml ? "" : ", no NVML");
    for (int i = 0; i < count; i++) print_device(i, with_nvml);
    if (sample_json) printf("]}\n");
    return 0;
}
