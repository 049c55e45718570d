/* The two files of a slice, as the interposer reads them: a policy page that is damaged or torn,
 * and a usage file in which a tenant's process wrote what it liked. Whatever is in them, nothing
 * leads outside, nothing waits for ever, and no answer is more than the limit.
 *
 * Input: steps of {what u8, length u8, where u16, bytes}: 0: the bytes are written into the policy
 * page at `where`; 1: the same, and the banks' checksums are made right; 2: into the usage file, at
 * 8 * `where`; 3: the page's generation moves by one. The others ask for something.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int open_part(const char *path, int flags);
#define open open_part
#define write(fd, line, bytes) ((ssize_t)(bytes)) /* why a slice is unusable */
#include "../../interposer/slice.c"
#undef open
#undef write

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void forget_account(void); /* slice_account.c */

/* ---- the two files ---- */

static int parts[2] = {-1, -1};

int open_part(const char *path, int flags) {
    char through[32];
    const char *slash = strrchr(path, '/');
    if (strncmp(path, "/proc/", 6) == 0) return open(path, flags);
    snprintf(through, sizeof through, "/proc/self/fd/%d", parts[strcmp(slash, "/usage") == 0]);
    return open(through, flags);
}

/* ---- what the rest of the interposer would be ---- */

void *real_functions[REAL_COUNT];
static int one_card(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
static int one_context(CUcontext *context) { return *context = (CUcontext)16, CUDA_SUCCESS; }
static int one_uuid(CUuuid *uuid, CUdevice device) {
    return memset(uuid, device, sizeof *uuid), CUDA_SUCCESS;
}
static int all_memory(size_t *left, size_t *total) {
    return *left = *total = SIZE_MAX, CUDA_SUCCESS;
}
static int its_name(nvmlDevice_t device, char *uuid, unsigned room) {
    (void)device;
    snprintf(uuid, room, "GPU-00000000-0000-0000-0000-000000000000");
    return NVML_SUCCESS;
}
static int nothing(void) { return NVML_SUCCESS; }
void *real_function_slow(enum real_id id) {
    switch (id) {
    case REAL_cuCtxGetDevice: return (void *)one_card;
    case REAL_cuCtxGetCurrent: return (void *)one_context;
    case REAL_cuDeviceGetUuid_v2: return (void *)one_uuid;
    case REAL_cuMemGetInfo_v2: return (void *)all_memory;
    case REAL_nvmlDeviceGetUUID: return (void *)its_name;
    default: return (void *)nothing;
    }
}
uint32_t gate_is_on;
void gate_forget(void) {}
void managed_forget(void) {}
void park_forget(void) {}
void room_forget(void) {}
void asked_forget(void) {}
void table_forget(void) {}
void contexts_forget(void) {}
void compute_forget(void) {}
void compute_collect(void) {}

/* ---- one input ---- */

static struct egpu_policy *policy_file;
static struct egpu_usage *usage_file;

static void make_right(void) {
    for (int i = 0; i < 2; i++)
        policy_file->banks[i].checksum = egpu_policy_checksum(&policy_file->banks[i]);
}

static void begin_files(void) {
    memset(policy_file, 0, sizeof *policy_file);
    memcpy(policy_file->magic, EGPU_POLICY_MAGIC, 8);
    policy_file->abi_version = EGPU_ABI_VERSION;
    policy_file->size = EGPU_POLICY_SIZE;
    policy_file->generation = 2;
    for (unsigned bank = 0; bank < 2; bank++) {
        policy_file->banks[bank].generation = 2 + bank;
        policy_file->banks[bank].device_count = 2;
        for (unsigned i = 0; i < 2; i++) {
            struct egpu_policy_device *device = &policy_file->banks[bank].devices[i];
            snprintf(device->uuid, sizeof device->uuid, "GPU-0%u000000-0000-0000-0000-000000000000",
                     i);
            device->mode = EGPU_MODE_CAP + i;
            device->core_ppm = 250000 << bank;
            device->grant_ppm = 300000;
            device->memory_limit_bytes = 1 << 20;
            device->window_period_us = bank * 1000;
            device->window_length_us = 300;
        }
    }
    make_right();
    if (ftruncate(parts[1], 0) != 0 || ftruncate(parts[1], sizeof *usage_file) != 0) abort();
    memcpy(usage_file->magic, EGPU_USAGE_MAGIC, 8);
    usage_file->abi_version = EGPU_ABI_VERSION;
    usage_file->size = EGPU_USAGE_SIZE;
    usage_file->slot_count = EGPU_USAGE_SLOTS;
    usage_file->device_capacity = EGPU_MAX_DEVICES;
}

static void set_up(void) {
    parts[0] = memfd_create("policy", 0), parts[1] = memfd_create("usage", 0);
    if (ftruncate(parts[0], sizeof *policy_file) != 0 ||
        ftruncate(parts[1], sizeof *usage_file) != 0)
        abort();
    policy_file = mmap(NULL, sizeof *policy_file, PROT_READ | PROT_WRITE, MAP_SHARED, parts[0], 0);
    usage_file = mmap(NULL, sizeof *usage_file, PROT_READ | PROT_WRITE, MAP_SHARED, parts[1], 0);
    if (policy_file == MAP_FAILED || usage_file == MAP_FAILED) abort();
    if (freopen("/dev/null", "w", stdout) == NULL) abort();
}

static void forget(void) {
    if (page != NULL) munmap((void *)(uintptr_t)page, sizeof *page);
    if (usage != NULL) munmap(usage, sizeof *usage);
    if (slice_gate != &shut) munmap(slice_gate, 4096);
    page = NULL;
    usage = NULL;
    slice_gate = &shut;
    state = SLICE_UNKNOWN;
    policy_announced = &nothing_announced;
    policy_seen = policy_unmetered = policy_free_run = foreign_devices = 0;
    memset(live_limits, 0, sizeof live_limits);
    memset(&policy, 0, sizeof policy);
    slice_forget();
    forget_account();
}

static void ask(uint8_t what, uint16_t where, const uint8_t *bytes, size_t length) {
    if (!slice_open()) return;
    unsigned devices = slice_device_count();
    if (devices > EGPU_MAX_DEVICES) abort();
    int device = devices == 0 ? DEVICE_NONE : where % (int)devices;
    uint64_t words[4] = {0};
    memcpy(words, bytes, length < sizeof words ? length : sizeof words);
    unsigned count = where % 5;
    size_t free_bytes, total_bytes;
    nvmlMemory_t memory = {.total = UINT64_MAX};
    nvmlUtilization_t utilisation = {.gpu = 50, .memory = 50};
    nvmlProcessInfo_t processes[4];
    nvmlProcessUtilizationSample_t samples[4];
    switch (what % 8) {
    case 4:
        if (account_reserve(device, words[0] % EGPU_MEMORY_CLASSES, words[1]))
            account_release(device, words[0] % EGPU_MEMORY_CLASSES, words[2]);
        break;
    case 5:
        if (account_used(device) > memory_limit(device)) abort();
        if (cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS && free_bytes > total_bytes)
            abort();
        break;
    case 6:
        if (device < 0) break;
        bucket_debit(device, (int64_t)words[0]);
        bucket_wait_ns(device, words[1]);
        window_wait_ns(device, words[1], &words[3]);
        coverage_add(device, words[1], words[2]);
        rate_ppm(&slice_usage()->devices[device].rate, words[0], words[1]);
        break;
    default:
        policy_look();
        nvmlDeviceGetMemoryInfo(NULL, &memory);
        if (memory.used > memory.total) abort();
        nvmlDeviceGetUtilizationRates(NULL, &utilisation);
        if (utilisation.gpu > 100 || utilisation.memory > 100) abort();
        nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, count == 0 ? NULL : processes);
        count = where % 5;
        nvmlDeviceGetProcessUtilization(NULL, count == 0 ? NULL : samples, &count, 0);
        device_used((CUdevice)words[0]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (policy_file == NULL) set_up();
    begin_files();
    while (size >= 4) {
        uint8_t what = data[0] % 8, length = data[1];
        uint16_t where;
        memcpy(&where, data + 2, 2);
        data += 4, size -= 4;
        size_t count = length < size ? length : size;
        if (what < 2) {
            size_t at = where % sizeof *policy_file, room = sizeof *policy_file - at;
            memcpy((uint8_t *)policy_file + at, data, count < room ? count : room);
            if (what == 1) make_right();
        } else if (what == 2) {
            size_t at = (size_t)where * 8 % sizeof *usage_file, room = sizeof *usage_file - at;
            memcpy((uint8_t *)usage_file + at, data, count < room ? count : room);
        } else if (what == 3) {
            policy_file->generation++;
        } else {
            ask(what, where, data, count);
        }
        data += count, size -= count;
    }
    forget();
    return 0;
}
