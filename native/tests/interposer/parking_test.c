/* Parking over a driver that fails at any of its calls: whatever fails, no byte is lost, no
 * physical memory is left behind, and the next attempt goes on where the last one stopped. */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../interposer/parking/parking.h"

enum {
    PIECES = 3,
    MOST_PIECES = 256,
    BYTES = 2 * PHYSICAL_PAGE,
    ROOM = 4 * BYTES,
    MOST_CALLS = 64
};

/* ---- a driver: physical memory is a block, an address is reserved memory of nobody's ---- */

static long calls_left = -1; /* until one fails; negative: none does */
static CUresult failure;
static size_t used, room = ROOM;
static struct mapping {
    CUdeviceptr address;
    unsigned char *block;
} mappings[MOST_PIECES + 1];

#define MAY_FAIL() \
    if (calls_left >= 0 && calls_left-- == 0) return failure

static struct mapping *mapping_at(CUdeviceptr address) {
    for (int i = 0; i <= MOST_PIECES; i++)
        if (mappings[i].address == address) return &mappings[i];
    return NULL;
}

static CUresult reserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags) {
    static CUdeviceptr next = PHYSICAL_PAGE;
    (void)alignment, (void)hint, (void)flags;
    MAY_FAIL();
    *out = next;
    next += size;
    return CUDA_SUCCESS;
}
static CUresult address_free(CUdeviceptr address, size_t size) {
    (void)size;
    assert(mapping_at(address) == NULL);
    return CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle *out, size_t size,
                       const CUmemAllocationProp *properties, unsigned long long flags) {
    (void)properties, (void)flags;
    MAY_FAIL();
    if (used + size > room) return CUDA_ERROR_OUT_OF_MEMORY;
    used += size;
    *out = (CUmemGenericAllocationHandle)(uintptr_t)calloc(1, size);
    return CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle handle) {
    used -= BYTES;
    free((void *)(uintptr_t)handle);
    return CUDA_SUCCESS;
}
static CUresult map(CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    (void)size, (void)offset, (void)flags;
    MAY_FAIL();
    assert(mapping_at(address) == NULL);
    struct mapping *free_one = mapping_at(0);
    *free_one = (struct mapping){address, (unsigned char *)(uintptr_t)handle};
    return CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr address, size_t size) {
    (void)size;
    struct mapping *found = mapping_at(address);
    assert(found != NULL);
    MAY_FAIL();
    *found = (struct mapping){0};
    return CUDA_SUCCESS;
}
static CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *list,
                           size_t count) {
    (void)address, (void)size, (void)list, (void)count;
    MAY_FAIL();
    return CUDA_SUCCESS;
}
static CUresult granularity(size_t *out, const CUmemAllocationProp *properties,
                            CUmemAllocationGranularity_flags flags) {
    (void)properties, (void)flags;
    *out = PHYSICAL_PAGE;
    return CUDA_SUCCESS;
}
static CUresult attribute(int *out, CUdevice_attribute which, CUdevice ordinal) {
    (void)which, (void)ordinal;
    *out = 1;
    return CUDA_SUCCESS;
}
static void take_time(size_t bytes);
static CUresult down(void *to, CUdeviceptr from, size_t bytes) {
    MAY_FAIL();
    take_time(bytes);
    memcpy(to, mapping_at(from)->block, bytes);
    return CUDA_SUCCESS;
}
static CUresult up(CUdeviceptr to, const void *from, size_t bytes) {
    MAY_FAIL();
    take_time(bytes);
    memcpy(mapping_at(to)->block, from, bytes);
    return CUDA_SUCCESS;
}
static CUresult synchronize(void) {
    MAY_FAIL();
    return CUDA_SUCCESS;
}
static CUresult push(CUcontext context) {
    (void)context;
    MAY_FAIL();
    return CUDA_SUCCESS;
}
static CUresult pop(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }
static CUresult current_device(CUdevice *out) { return *out = 0, CUDA_SUCCESS; }

/* ---- what the rest of the interposer would be ---- */

void *real_functions[REAL_COUNT] = {
    [REAL_cuMemAddressReserve] = (void *)reserve,
    [REAL_cuMemAddressFree] = (void *)address_free,
    [REAL_cuMemCreate] = (void *)create,
    [REAL_cuMemRelease] = (void *)release,
    [REAL_cuMemMap] = (void *)map,
    [REAL_cuMemUnmap] = (void *)unmap,
    [REAL_cuMemSetAccess] = (void *)set_access,
    [REAL_cuMemcpyDtoH_v2] = (void *)down,
    [REAL_cuMemcpyHtoD_v2] = (void *)up,
    [REAL_cuCtxSynchronize] = (void *)synchronize,
    [REAL_cuCtxPushCurrent_v2] = (void *)push,
    [REAL_cuCtxPopCurrent_v2] = (void *)pop,
    [REAL_cuCtxGetDevice] = (void *)current_device,
    [REAL_cuDeviceGetAttribute] = (void *)attribute,
    [REAL_cuMemGetAllocationGranularity] = (void *)granularity,
};
void *real_function_slow(enum real_id id) { return abort(), real_functions[id]; }
uint32_t gate_is_on = 1, gate_state, capturing;
uint64_t room_bytes, room_until_ns, policy_seen;
static uint64_t announced;
const uint64_t *policy_announced = &announced;
void policy_refresh(void) { policy_seen = announced; }
static struct egpu_usage usage;
struct egpu_usage *slice_usage(void) { return &usage; }
void account_reap(int device) { (void)device; }
#define charged usage.devices[0].memory_bytes
#define slot usage.slots[0]
static uint64_t clock_ns;
static void (*meanwhile)(void); /* while somebody sleeps */
static double link;             /* bytes per nanosecond; 0: copies take no time */
static void take_time(size_t bytes) {
    if (link != 0) clock_ns += (uint64_t)((double)bytes / link);
}
uint64_t now_ns(void) { return clock_ns; }
void sleep_ns(uint64_t duration_ns) {
    clock_ns += duration_ns;
    if (meanwhile != NULL) meanwhile();
}
void lock_wait(egpu_lock *lock) { (void)lock, abort(); /* there is one thread */ }
struct egpu_usage_slot *slot_of(int device) {
    slot.state = EGPU_SLOT_LIVE;
    return (void)device, &slot;
}
bool memory_reserve(int device, enum egpu_memory_class class, uint64_t bytes) {
    (void)device, (void)class;
    charged += bytes;
    if (!room_is_shared() || room_admit(bytes)) return true;
    charged -= bytes;
    return false;
}
void account_release(int device, enum egpu_memory_class class, uint64_t bytes) {
    (void)device, (void)class;
    charged -= bytes;
}
void account_force(int device, enum egpu_memory_class class, uint64_t bytes) {
    (void)device, (void)class;
    charged += bytes;
}
void asked_listen(void) {}
bool gate_can_close(void) { return true; }
bool gate_step_out(void) { return true; }
bool gate_step_in(void) { return gate_state != GATE_PARKED || park_wake() == CUDA_SUCCESS; }
bool gate_is_trying(void) { return gate_state == GATE_TRIES || gate_state == GATE_HOLDS; }
bool gate_try(uint64_t hold) { return gate_state = hold != 0 ? GATE_HOLDS : GATE_TRIES, true; }
bool gate_hold(void) { return gate_state = GATE_MOVES, true; }
void gate_release(enum gate_state state) { gate_state = state; }

/* ---- the tests ---- */

static CUdeviceptr pieces[PIECES];

static void set_up(void) {
    uint64_t bytes;
    calls_left = -1;
    for (int i = 0; i < PIECES; i++) {
        assert(managed_alloc(&pieces[i], BYTES, (CUcontext)1, 0, &bytes) == CUDA_SUCCESS);
        memset(mapping_at(pieces[i])->block, 0x11 * (i + 1), BYTES);
    }
}

static void check_and_free(void) {
    for (int i = 0; i < PIECES; i++) {
        const unsigned char *block = mapping_at(pieces[i])->block;
        for (size_t at = 0; at < BYTES; at++) assert(block[at] == 0x11 * (i + 1));
        CUresult result;
        assert(managed_free(pieces[i], &result) && result == CUDA_SUCCESS);
        account_release(0, EGPU_MEMORY_DEVICE, BYTES);
    }
    assert(used == 0 && charged == 0 && gate_state == GATE_LETS_IN);
    assert(slot.parked_bytes == 0);
}

/* True: call `at` was made, so it failed. */
static bool fails_at(long at, bool parking) {
    set_up();
    if (!parking) assert(park_try(UINT64_MAX, false) == EGPU_PARK_DONE);
    calls_left = at;
    if (parking)
        park_try(UINT64_MAX, true);
    else
        park_wake();
    bool reached = calls_left < 0;
    calls_left = -1;
    assert(charged == PIECES * BYTES);
    assert(used + slot.parked_bytes == PIECES * BYTES || gate_state == GATE_LETS_IN);
    assert(gate_state == (slot.parked_bytes != 0 ? GATE_PARKED : GATE_LETS_IN));
    assert(park_wake() == CUDA_SUCCESS);
    check_and_free();
    return reached;
}

static void whatever_fails(bool parking) {
    long at = 0;
    while (fails_at(at, parking)) assert(++at < MOST_CALLS);
    assert(at > PIECES);
    printf("%s: each of %ld calls failed\n", parking ? "park" : "wake", at);
}

static void waits_for_room(void) {
    set_up();
    assert(park_try(UINT64_MAX, false) == EGPU_PARK_DONE && used == 0);
    assert(gate_state == GATE_PARKED);
    room = 2 * BYTES; /* not for all three: then for none */
    uint64_t began = clock_ns;
    assert(park_wake() == CUDA_ERROR_OUT_OF_MEMORY);
    assert(used == 0 && slot.parked_bytes == PIECES * BYTES && gate_state == GATE_PARKED);
    assert(clock_ns - began >= 100000000000u && clock_ns - began < 200000000000u);
    room = ROOM;
    assert(park_wake() == CUDA_SUCCESS);
    check_and_free();
}

/* ---- an arbiter ---- */

enum { HOLD_NS = 1000000000 };

static void give(uint64_t bytes) { room_bytes = bytes, room_until_ns = clock_ns + HOLD_NS; }
static void keep(void) { give(room_bytes); }
static void give_all_late(void) { give(clock_ns < 300 * (uint64_t)HOLD_NS ? room_bytes : ROOM); }
static void make_space(void) {
    keep();
    room = ROOM;
}
static void park_first(void) {
    give(ROOM);
    meanwhile = keep;
    assert(park_try(UINT64_MAX, true) == EGPU_PARK_DONE);
}

static void waits_for_its_turn(void) {
    set_up();
    assert(park_try(UINT64_MAX, false) == EGPU_PARK_DONE);
    give(PIECES * BYTES - 1);
    /* longer than it would wait for the driver */
    meanwhile = give_all_late;
    assert(park_wake() == CUDA_SUCCESS && clock_ns > 300 * (uint64_t)HOLD_NS);
    assert(usage.devices[0].room_asked_ns != 0);
    /* nobody keeps it from it any more */
    assert(park_try(UINT64_MAX, false) == EGPU_PARK_DONE);
    give(0);
    meanwhile = NULL;
    uint64_t began = clock_ns;
    assert(park_wake() == CUDA_SUCCESS && clock_ns - began < 2 * (uint64_t)HOLD_NS);
    check_and_free();
    room_until_ns = 0;
}

static void an_allocation_waits(void) {
    CUdeviceptr more;
    uint64_t bytes;
    set_up();
    /* for the arbiter; and the rest is parked while it waits */
    give(PIECES * BYTES);
    meanwhile = park_first;
    assert(managed_alloc(&more, BYTES, (CUcontext)1, 0, &bytes) == CUDA_SUCCESS);
    assert(slot.parked_bytes == 0 && used == ROOM); /* it woke on its way */
    CUresult result;
    assert(managed_free(more, &result));
    account_release(0, EGPU_MEMORY_DEVICE, BYTES);

    /* for the card, where others are leaving */
    room = PIECES * BYTES;
    give(ROOM);
    meanwhile = make_space;
    assert(managed_alloc(&more, BYTES, (CUcontext)1, 0, &bytes) == CUDA_SUCCESS);
    assert(managed_free(more, &result) && result == CUDA_SUCCESS);
    account_release(0, EGPU_MEMORY_DEVICE, BYTES);

    /* the card stays full: it is an error in the end, and nothing is left of it */
    room = PIECES * BYTES;
    meanwhile = keep;
    assert(managed_alloc(&more, BYTES, (CUcontext)1, 0, &bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    assert(charged == PIECES * BYTES && slot.parked_bytes == 0 && used == PIECES * BYTES);
    room = ROOM;
    check_and_free();
    room_until_ns = 0;
    meanwhile = NULL;
}

/* Prints how long a park and a wake of so many bytes take over a link of so many GB/s. */
static void print_times(uint64_t bytes, double gigabytes) {
    CUdeviceptr pointer;
    uint64_t count = bytes / BYTES, charged_bytes;
    assert(count <= MOST_PIECES);
    room = bytes;
    for (uint64_t i = 0; i < count; i++)
        assert(managed_alloc(&pointer, BYTES, (CUcontext)1, 0, &charged_bytes) == CUDA_SUCCESS);
    link = gigabytes;
    uint64_t began = clock_ns;
    assert(park_try(UINT64_MAX, false) == EGPU_PARK_DONE && used == 0);
    uint64_t parked = clock_ns;
    assert(park_wake() == CUDA_SUCCESS && used == count * BYTES);
    printf("%.6f %.6f\n", (double)(parked - began) / 1e9, (double)(clock_ns - parked) / 1e9);
}

int main(int argc, char **argv) {
    if (argc == 3) return print_times(strtoull(argv[1], NULL, 10), strtod(argv[2], NULL)), 0;
    failure = CUDA_ERROR_UNKNOWN;
    whatever_fails(true);
    whatever_fails(false);
    waits_for_room();
    puts("a wake without room takes none");
    waits_for_its_turn();
    puts("a wake waits for its turn as long as the arbiter lives");
    an_allocation_waits();
    puts("an allocation waits for its turn and for the card");
    return 0;
}
