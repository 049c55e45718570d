/* The slice: the two files beside this library, and the limits in force. Layouts and rules:
 * egpu_abi.h. */
#define _GNU_SOURCE
#include "interposer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <stdio.h>
#include <strings.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "parking/parking.h"

enum { SPINS = 200, LOCKED_SLEEP_NS = 20000 };
enum slice_state { SLICE_UNKNOWN, SLICE_OPEN, SLICE_REFUSED };

static egpu_lock lock;
static uint32_t state;
static const struct egpu_policy *page;
static struct egpu_usage *usage;
static struct egpu_policy_bank policy; /* the devices; their limits are read from `live_limits` */

struct limits live_limits[EGPU_MAX_DEVICES];
static const uint64_t nothing_announced;
const uint64_t *policy_announced = &nothing_announced;
uint64_t policy_seen;
static const struct egpu_policy_turn no_turns[EGPU_MAX_DEVICES];
const struct egpu_policy_turn *policy_turns = no_turns;
uint32_t policy_unmetered, policy_free_run;
uint64_t park_asked, park_hold_ns, room_bytes, room_until_ns;
/* a context was made on a device that the policy does not name: it gets nothing */
static uint32_t foreign_devices;

static uint32_t shut = GATE_SHUT;
uint32_t *slice_gate = &shut;

enum { MAX_ORDINALS = 64 };
static int8_t ordinals[MAX_ORDINALS]; /* 0: not asked yet; else device + 2 */

uint32_t context_epoch;
__thread struct recent_context recent_context __attribute__((tls_model("initial-exec")));

/* ---- small things that all parts use ---- */

void lock_wait(egpu_lock *lock) {
    int turn = 0;
    do {
        while (turn < SPINS && __atomic_load_n(&lock->word, __ATOMIC_RELAXED) != 0) turn++;
        if (turn++ >= SPINS) sleep_ns(LOCKED_SLEEP_NS); /* its holder lost the processor */
    } while (__atomic_exchange_n(&lock->word, 1, __ATOMIC_ACQUIRE) != 0);
}

uint64_t now_ns(void) { return clock_now_ns(); }

void sleep_ns(uint64_t duration_ns) {
    struct timespec duration = {(time_t)(duration_ns / 1000000000u),
                                (long)(duration_ns % 1000000000u)};
    nanosleep(&duration, NULL);
}

void turn_wake(const uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL); }

void turn_sleep(const uint32_t *word, uint32_t seen, uint64_t most_ns) {
    struct timespec most = {(time_t)(most_ns / 1000000000u), (long)(most_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &most);
}

void turn_spin(uint64_t duration_ns) {
    for (uint64_t until = now_ns() + duration_ns; now_ns() < until;) {
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
    }
}

/* ---- fork: a child finds the gate's page wiped ---- */

void fork_check(void) {
    uint32_t *gate = __atomic_load_n(&slice_gate, __ATOMIC_ACQUIRE), found = GATE_WIPED;
    if (__atomic_load_n(gate, __ATOMIC_ACQUIRE) == GATE_OPEN || gate == &shut) return;
    if (!__atomic_compare_exchange_n(gate, &found, GATE_FORKING, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(gate, __ATOMIC_ACQUIRE) != GATE_OPEN) sleep_ns(10000);
        return;
    }
    /* Other threads of the parent may have held any lock when it forked, and are not here to drop
     * it. */
    slice_forget();
    account_forget();
    table_forget();
    contexts_forget();
    compute_forget();
    gate_forget();
    managed_forget();
    park_forget();
    room_forget();
    asked_forget();
    __atomic_store_n(gate, GATE_OPEN, __ATOMIC_RELEASE);
}

void slice_pause(void) {
    uint32_t *gate = __atomic_load_n(&slice_gate, __ATOMIC_ACQUIRE);
    __atomic_store_n(gate, GATE_PAUSED, __ATOMIC_SEQ_CST);
}

void slice_resume(void) {
    uint32_t *gate = __atomic_load_n(&slice_gate, __ATOMIC_ACQUIRE);
    __atomic_store_n(gate, GATE_OPEN, __ATOMIC_RELEASE);
}

void slice_forget(void) {
    lock.word = 0;
    memset(ordinals, 0, sizeof ordinals);
    context_epoch++;
    recent_context.context = NULL;
    /* The maps are shared with the parent and stay good; a refusal stays one. */
}

static bool open_gate(void) {
    void *gate = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (gate == MAP_FAILED) return false;
    madvise(gate, 4096, MADV_WIPEONFORK);
    *(uint32_t *)gate = GATE_OPEN;
    __atomic_store_n(&slice_gate, gate, __ATOMIC_RELEASE);
    return true;
}

/* ---- finding the files ---- */

struct whereabouts {
    const void *inside;
    char directory[PATH_MAX];
};

static int find_self(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct whereabouts *at = data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const char *start = (const char *)info->dlpi_addr + header->p_vaddr;
        if (header->p_type != PT_LOAD || (const char *)at->inside < start ||
            (const char *)at->inside >= start + header->p_memsz)
            continue;
        const char *slash = strrchr(info->dlpi_name, '/');
        size_t length = slash == NULL ? 0 : (size_t)(slash - info->dlpi_name);
        if (length < sizeof at->directory) memcpy(at->directory, info->dlpi_name, length);
        return 1;
    }
    return 0;
}

const char *slice_path(const char *name, char *out, unsigned size) {
    /* written once, under the lock or before threads can see it open */
    static struct whereabouts at;
    if (at.directory[0] == 0) {
        at.inside = &state;
        dl_iterate_phdr(find_self, &at);
    }
    return (unsigned)snprintf(out, size, "%s/%s", at.directory, name) < size ? out : NULL;
}

static void *map_file(const char *name, size_t size, bool writable, const char **why) {
    char path[PATH_MAX];
    *why = strerror(ENAMETOOLONG);
    if (slice_path(name, path, sizeof path) == NULL) return NULL;
    int file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    *why = strerror(errno);
    if (file < 0) return NULL;
    void *map = MAP_FAILED;
    *why = "wrong size";
    if (lseek(file, 0, SEEK_END) == (off_t)size) {
        map = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
        *why = strerror(errno);
    }
    close(file);
    return map == MAP_FAILED ? NULL : map;
}

/* ---- limits ---- */

/* Copies the active bank; false when no consistent one is found in bounded time. */
static bool snapshot(struct egpu_policy_bank *out) {
    for (int attempt = 0; attempt < EGPU_POLICY_READ_ATTEMPTS; attempt++) {
        uint64_t active = __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE);
        memcpy(out, &page->banks[active & 1], sizeof *out);
        if (out->generation == active && out->device_count <= EGPU_MAX_DEVICES &&
            out->checksum == egpu_policy_checksum(out))
            return true;
    }
    return false;
}

#define SET(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

static void take_limits(const struct egpu_policy_bank *bank) {
    uint32_t unmetered = 0;
    for (unsigned i = 0; i < bank->device_count; i++) {
        const struct egpu_policy_device *device = &bank->devices[i];
        struct limits *live = &live_limits[i];
        uint64_t memory = device->memory_limit_bytes, overhead = device->overhead_bytes;
        if (memory == EGPU_MEMORY_UNLIMITED) overhead = 0;
        if (overhead > memory) overhead = memory;
        SET(live->memory_bytes, memory - overhead);
        SET(live->overhead_bytes, overhead);
        /* Overhead that leaves nothing: over its limit, it gets nothing beyond it either. */
        SET(live->spill_bytes, overhead != 0 && overhead == memory ? 0 : device->spill_limit_bytes);
        SET(live->mode, device->mode);
        SET(live->core_ppm, device->core_ppm);
        SET(live->grant_ppm, device->mode == EGPU_MODE_SHARE && device->grant_ppm > device->core_ppm
                                 ? device->grant_ppm
                                 : device->core_ppm);
        SET(live->contention_ppm, device->contention_ppm);
        SET(live->window_epoch_ns, device->window_epoch_ns);
        SET(live->window_start_us, device->window_start_us);
        SET(live->window_length_us, device->window_length_us);
        SET(live->window_period_us, device->window_period_us);
        SET(live->work, device->work);
        /* In `share` time is metered even when all of it may be used: it has to be known when
         * others ask for theirs. */
        if (device->mode == EGPU_MODE_UNLIMITED ||
            (device->mode == EGPU_MODE_CAP && device->core_ppm >= EGPU_PPM))
            unmetered |= 1u << i;
    }
    SET(room_bytes, bank->room_bytes);
    SET(room_until_ns, bank->room_until_ns);
    SET(park_hold_ns, bank->park_hold_ns); /* before the request that it is of */
    __atomic_store_n(&park_asked, bank->park_request, __ATOMIC_RELEASE);
    SET(policy_unmetered, unmetered);
    SET(policy_free_run, unmetered == (1u << bank->device_count) - 1 && !foreign_devices);
    __atomic_store_n(&policy_seen, bank->generation, __ATOMIC_RELEASE);
}

void policy_refresh(void) {
    struct egpu_policy_bank bank;
    lock_take(&lock);
    uint64_t announced = __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE);
    bool usable = snapshot(&bank) && bank.device_count == policy.device_count;
    for (unsigned i = 0; usable && i < bank.device_count; i++)
        usable = memcmp(bank.devices[i].uuid, policy.devices[i].uuid,
                        sizeof policy.devices[i].uuid) == 0;
    if (usable)
        take_limits(&bank);
    else
        __atomic_store_n(&policy_seen, announced,
                         __ATOMIC_RELEASE); /* keep the limits; look again at the next change */
    lock_drop(&lock);
}

/* ---- opening ---- */

static const char *open_files(const char **file) {
    const char *why;
    *file = "policy";
    page = map_file("policy", sizeof *page, false, &why);
    if (page == NULL) return why;
    if (memcmp(page->magic, EGPU_POLICY_MAGIC, 8) != 0 || page->abi_version != EGPU_ABI_VERSION)
        return "not a policy page of this version";
    if (!snapshot(&policy)) return "no consistent limits in it";
    *file = "usage";
    usage = map_file("usage", sizeof *usage, true, &why);
    if (usage == NULL) return why;
    if (memcmp(usage->magic, EGPU_USAGE_MAGIC, 8) != 0 || usage->abi_version != EGPU_ABI_VERSION)
        return "not a usage file of this version";
    return NULL;
}

bool slice_open_slow(void) {
    fork_check();
    uint32_t now = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (now != SLICE_UNKNOWN) return now == SLICE_OPEN;
    lock_take(&lock);
    if (state == SLICE_UNKNOWN) {
        const char *file, *why = open_files(&file);
        if (why == NULL) {
            take_limits(&policy);
            policy_announced = &page->generation;
            policy_turns = page->turns;
            /* Mappings of ours are for one card: peers have no access to them. */
            SET(gate_is_on, (policy.flags & EGPU_POLICY_PARKABLE) != 0 && policy.device_count == 1);
            if (!open_gate()) why = strerror(errno);
        }
        if (why != NULL) {
            /* Without limits the only safe answer is no: the whole card would be the
             * alternative. */
            char path[PATH_MAX], line[PATH_MAX + 256];
            const char *name = slice_path(file, path, sizeof path);
            int length =
                snprintf(line, sizeof line, "egpu: this process may not use the GPU: %s: %s\n",
                         name != NULL ? name : file, why);
            if (length > 0 && write(2, line, (size_t)length) < 0) errno = 0;
        }
        __atomic_store_n(&state, why == NULL ? SLICE_OPEN : SLICE_REFUSED, __ATOMIC_RELEASE);
    }
    lock_drop(&lock);
    return state == SLICE_OPEN;
}

struct egpu_usage *slice_usage(void) { return usage; }
unsigned slice_device_count(void) { return policy.device_count; }

/* ---- which device is which: by UUID, because ordinals move with CUDA_VISIBLE_DEVICES ---- */

int slice_device_by_uuid(const char *text) {
    const char *wanted = strchr(text, '-'); /* "GPU-" and "MIG-" name the same bytes */
    for (unsigned i = 0; wanted != NULL && i < policy.device_count; i++) {
        const char *known = strchr(policy.devices[i].uuid, '-');
        if (known != NULL && strncasecmp(known, wanted, 37) == 0) return (int)i;
    }
    return DEVICE_NONE;
}

const char *slice_device_uuid(int device) { return policy.devices[device].uuid; }

int device_of_ordinal(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= MAX_ORDINALS) return DEVICE_NONE;
    int8_t known = __atomic_load_n(&ordinals[ordinal], __ATOMIC_RELAXED);
    if (known != 0) return known - 2;
    CUuuid uuid;
    CUresult (*ask)(CUuuid *, CUdevice) =
        REAL(cuDeviceGetUuid_v2) != NULL ? REAL(cuDeviceGetUuid_v2) : REAL(cuDeviceGetUuid);
    if (ask == NULL || ask(&uuid, ordinal) != CUDA_SUCCESS) return DEVICE_NONE;
    const unsigned char *b = (const unsigned char *)uuid.bytes;
    char text[48];
    snprintf(text, sizeof text,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
    int device = slice_device_by_uuid(text);
    __atomic_store_n(&ordinals[ordinal], (int8_t)(device + 2), __ATOMIC_RELAXED);
    return device;
}

void device_contexts_changed(void) { __atomic_fetch_add(&context_epoch, 1, __ATOMIC_RELEASE); }

void device_used(CUdevice ordinal) {
    if (device_of_ordinal(ordinal) >= 0) return;
    lock_take(&lock);
    foreign_devices = 1;
    SET(policy_free_run, 0);
    lock_drop(&lock);
}

int device_current_slow(CUcontext context) {
    CUdevice ordinal;
    uint32_t epoch = __atomic_load_n(&context_epoch, __ATOMIC_ACQUIRE);
    if (REAL(cuCtxGetDevice) == NULL || REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS)
        return DEVICE_NONE;
    recent_context = (struct recent_context){context, device_of_ordinal(ordinal), epoch};
    return recent_context.device;
}

EXPORT CUresult cuInit(unsigned flags) {
    if (REAL(cuInit) == NULL) return CUDA_ERROR_NOT_FOUND;
    return slice_open() ? REAL(cuInit)(flags) : REFUSED;
}
