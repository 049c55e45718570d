/* The two files of a slice, byte for byte.
 *
 * A slice directory holds {libegpu-interposer.so, policy, usage}. The files are split by trust:
 *
 *   policy  written by the node agent (or `egpu run`), mounted read-only into the container: what
 *           the container may use.
 *   usage   written by the container's own processes: their own account of their use. Readers from
 *           outside treat it as a claim, read it with read(2) rather than mmap (it can be truncated
 *           at any time), and trust nothing in it.
 *
 * All integers are little-endian; all offsets are fixed. `egpu.adapters.slices.pages` reads and
 * writes the same bytes with `struct`, and a test compares every offset. New fields only use spare
 * bytes; any other change is a new EGPU_ABI_VERSION.
 *
 * Policy page: how a change takes effect on live readers, and why nothing can hang
 * --------------------------------------------------------------------------------
 * The page holds two banks. `generation` selects the active one: bank[generation & 1]. The writer
 * (there is only one; it serialises itself) fills the *other* bank completely, with generation+1
 * and a checksum in it, and then stores generation+1 in the header. A reader loads the generation,
 * copies that bank, and accepts the copy if the bank has the same generation and a correct
 * checksum. A reader overtaken by two updates sees a wrong checksum or generation. It tries again
 * at most EGPU_POLICY_READ_ATTEMPTS times, and otherwise keeps its limits (at start-up, where it
 * has none, it refuses to work). No process waits for another, so a writer killed at any store
 * leaves the previous limits in force. Updates are made in place: a rename would leave mapped
 * readers behind. A slice's devices and their order never change while it lives; only their limits
 * do.
 *
 * Usage file: how bytes are reserved, and why a SIGKILL loses none
 * ----------------------------------------------------------------
 * A process takes one slot per device (joining: OFD write lock on the whole file, which the kernel
 * releases when its holder dies). Slots never move, and only their own process writes their
 * counters, one thread at a time. With M = memory_bytes of the device's totals (spill_bytes for
 * EGPU_MEMORY_SPILL), and the slot's byte counters monotonic:
 *
 *   reserve n:  sequence odd;  old = fetch_add(M, n);  reserved_bytes[class] += n;  sequence even;
 *               over when old + n > limit: release n
 *   release n:  sequence odd;  released_bytes[class] += n;  fetch_sub(M, n);  sequence even
 *
 * M is never below the bytes held: a process killed between two of these stores leaves M too high,
 * never too low. Dead processes (pid gone, or its start time differs) are reaped under the join
 * lock: what they reserved and did not release is subtracted from M. The remainder of a death
 * between two stores then shows as drift: at a moment when no live slot is between two stores (all
 * sequences even, and none moved while the slots were read twice), M minus the bytes of live slots
 * is exactly that remainder, and is subtracted. No process waits for a sequence: a survey that
 * meets an odd one gives up and is repeated at the next occasion.
 *
 * A checkpoint by the driver (cuCheckpointProcess…) takes all memory of a process off the cards.
 * The process that asked for it then stores the slot's bytes in parked_bytes, and subtracts them
 * from M. Before a restore, M grows again first. So M is never below the bytes on the cards here,
 * either: wherever the reserved and not released bytes of a slot stand above, parked_bytes are
 * taken off.
 *
 * Compute: shares, idle time and windows
 * --------------------------------------
 * The bucket of a device fills with core_ppm of the time that passes; in EGPU_MODE_SHARE with
 * grant_ppm if that is more: the agent adds what others leave idle, and takes it back. While the
 * card is contended the agent gives each container a window: in every window_period_us since
 * window_epoch_ns (CLOCK_MONOTONIC), window_length_us from window_start_us. Batches start inside
 * the window, so that a process measures only its own work.
 *
 * Latency: turns
 * --------------
 * A slice of EGPU_WORK_LATENCY asks for the card when it begins to work (egpu_usage.asks), and
 * wakes the arbiter (native/turns), which the agent runs. The arbiter answers in the turns of
 * policy pages: in that of the slice, until when its work may be queued; in those of the card's
 * EGPU_WORK_YIELDING slices, until when they start nothing. Each of these words is stored by
 * itself, outside the banks, and an old or torn set of them costs a launch some microseconds. No
 * slice reads what another wrote. The arbiter gives a slice no more turns than its core_ppm of 2 s.
 */
#ifndef EGPU_ABI_H
#define EGPU_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the pages are little-endian and are mapped directly"
#endif

#define EGPU_ABI_VERSION 2u
#define EGPU_MAX_DEVICES 16u
#define EGPU_PPM 1000000u

/* Device memory is counted in this unit: each allocation is rounded up to a multiple of it. */
#define EGPU_ALLOCATION_GRANULARITY 512u
#define EGPU_MEMORY_UNLIMITED UINT64_MAX

#define EGPU_POLICY_MAGIC "EGPUPOL1"
#define EGPU_POLICY_SIZE 8192u
#define EGPU_POLICY_READ_ATTEMPTS 64

#define EGPU_USAGE_MAGIC "EGPUUSG1"
#define EGPU_USAGE_SLOTS 1024u
#define EGPU_USAGE_HEADER_SIZE 4096u /* header and totals: all that a frequent reader needs */
#define EGPU_COVERAGE_WORDS 128u
#define EGPU_USAGE_SLOTS_OFFSET \
    (EGPU_USAGE_HEADER_SIZE + EGPU_MAX_DEVICES * EGPU_COVERAGE_WORDS * 8u)
#define EGPU_USAGE_SIZE (EGPU_USAGE_SLOTS_OFFSET + EGPU_USAGE_SLOTS * 256u)

enum egpu_mode {
    EGPU_MODE_UNLIMITED = 0, /* compute time is not limited (core_ppm is not read) */
    EGPU_MODE_CAP = 1,       /* at most core_ppm of the card */
    EGPU_MODE_SHARE = 2,     /* core_ppm is guaranteed; idle time may be used, by weight */
};

enum egpu_kind {
    EGPU_KIND_BATCH = 0,
    EGPU_KIND_LATENCY = 1, /* where it shares a card, it has turns */
};

enum egpu_work {
    EGPU_WORK_PLAIN = 0,
    EGPU_WORK_LATENCY = 1, /* it asks for turns */
    EGPU_WORK_YIELDING =
        2, /* a slice of EGPU_WORK_LATENCY shares the card: starts late, and stops */
};

enum egpu_memory_class {
    EGPU_MEMORY_DEVICE = 0,   /* cuMemAlloc, cuMemAllocPitch */
    EGPU_MEMORY_MANAGED = 1,  /* cuMemAllocManaged */
    EGPU_MEMORY_POOL = 2,     /* reserved by memory pools */
    EGPU_MEMORY_PHYSICAL = 3, /* cuMemCreate */
    EGPU_MEMORY_ARRAY = 4,    /* arrays and mipmapped arrays */
    EGPU_MEMORY_GRAPH = 5,    /* reserved by memory nodes of graphs */
    /* managed memory beyond memory_limit_bytes, if spill_limit_bytes allows it */
    EGPU_MEMORY_SPILL = 6,
    EGPU_MEMORY_MODULE = 7, /* contexts; loads: code, variables; heaps and local memory */
    EGPU_MEMORY_CLASSES = 8,
};

struct egpu_policy_device {
    /* "GPU-…" or "MIG-…", NUL-padded; the key, since ordinals and minors change */
    char uuid[48];
    uint32_t minor;    /* /dev/nvidia<minor>, for people */
    uint32_t mode;     /* enum egpu_mode */
    uint32_t core_ppm; /* 1..EGPU_PPM of the card's time */
    uint32_t weight;   /* 1..10000: division of idle time in EGPU_MODE_SHARE */
    /* the part of an event interval that is this container's own work; EGPU_PPM when alone */
    uint32_t contention_ppm;
    /* EGPU_MODE_SHARE: usable now, including others' idle time; 0: core_ppm */
    uint32_t grant_ppm;
    uint64_t memory_limit_bytes; /* EGPU_MEMORY_UNLIMITED: the whole card */
    uint64_t spill_limit_bytes;  /* beyond it, in managed memory; 0: no oversubscription */
    /* held by the container but counted nowhere (contexts, code), according to the agent */
    uint64_t overhead_bytes;
    uint64_t window_epoch_ns;
    uint32_t window_period_us; /* 0: no windows */
    uint32_t window_start_us;
    uint32_t window_length_us;
    uint32_t work; /* enum egpu_work: its part in turns now */
    uint32_t kind; /* enum egpu_kind; never changes */
    uint32_t spare1;
};

enum egpu_policy_flags {
    EGPU_POLICY_PARKABLE =
        1, /* memory may leave the card while the program is idle; never changes */
};

struct egpu_policy_bank {
    uint64_t generation;
    uint64_t checksum; /* FNV-1a 64 of the bank's bytes, with this field as zero */
    uint32_t device_count;
    uint32_t flags; /* enum egpu_policy_flags */
    /* Of a parkable slice. A new odd number asks every process to park once, a new even number to
     * wake; a process answers in its slot. Nothing is asked of processes that begin later. */
    uint64_t park_request;
    /* Of a parkable slice that shares room on its card with others: the bytes that it may have on
     * the card at the same time, until room_until_ns (CLOCK_MONOTONIC). After that nobody
     * arbitrates, and the driver alone decides. Both are 0 in a slice whose room is its own. */
    uint64_t room_bytes;
    uint64_t room_until_ns;
    /* Of the request: for how long calls may be held to park a busy program. 0: only an idle one
     * is parked. */
    uint64_t park_hold_ns;
    uint64_t spare[1];
    struct egpu_policy_device devices[EGPU_MAX_DEVICES];
};

/* The arbiter's word on one device. All times are CLOCK_MONOTONIC. */
struct egpu_policy_turn {
    /* EGPU_WORK_LATENCY: work may be queued until then; EGPU_WORK_YIELDING: nothing starts before
     */
    uint64_t until_ns;
    uint64_t since_ns; /* when that turn was asked for */
    uint64_t from_ns;  /* when the work of others, launched before it, should be over */
    /* EGPU_WORK_YIELDING: all time until until_ns in which it had to wait; EGPU_WORK_LATENCY: 0 in
     * a turn that no other slice waits for */
    uint64_t held_ns;
    uint32_t serial; /* changes with every turn, and when one ends early: a futex */
    uint32_t spare;
};

struct egpu_policy {
    char magic[8];
    uint32_t abi_version;
    uint32_t size;       /* EGPU_POLICY_SIZE */
    uint64_t generation; /* from 1; the active bank is banks[generation & 1] */
    uint64_t spare[5];
    struct egpu_policy_bank banks[2];
    struct egpu_policy_turn turns[EGPU_MAX_DEVICES]; /* same order as the devices */
    uint8_t padding[EGPU_POLICY_SIZE - 64 - 2 * 2112 - EGPU_MAX_DEVICES * 40];
};

/* GPU time as a rate: the amount since a moment at most a quarter of a second ago, while a process
 * counts or reads; and the rate found then, in ppm of the device's time. */
struct egpu_usage_rate {
    uint64_t since_ns; /* CLOCK_MONOTONIC */
    uint64_t since_gpu_ns;
    uint64_t last_ppm;
};

/* Totals of the container on one device. First line: memory; second line: compute. */
struct egpu_usage_device {
    uint64_t memory_bytes; /* M above: the one word for every reservation */
    uint64_t peak_bytes;   /* highest memory_bytes of a granted reservation */
    uint64_t refusals;     /* allocations refused over the limit */
    uint64_t reaped_bytes; /* returned on behalf of dead processes */
    uint64_t spill_bytes;  /* like memory_bytes, for EGPU_MEMORY_SPILL */
    /* CLOCK_MONOTONIC, only maintained in windows and in EGPU_WORK_YIELDING: the expected end on
     * the device of everything that the slice's processes have launched */
    uint64_t queued_until_ns;
    /* what the last context took on this device; the next one is expected to take as much */
    uint64_t context_bytes;
    /* CLOCK_MONOTONIC: when a process last looked in vain for room on the card (room_bytes) */
    uint64_t room_asked_ns;
    int64_t bucket_ns;       /* usable GPU time; negative: debt */
    uint64_t bucket_time_ns; /* CLOCK_MONOTONIC of the last refill */
    uint64_t gpu_ns;         /* GPU time charged, of all processes so far */
    uint64_t throttled_ns;   /* time for which launches were delayed */
    uint64_t launches;
    struct egpu_usage_rate rate;
};

/* How a process answered the last request to park or to wake. */
enum egpu_park_answer {
    EGPU_PARK_NOT_ASKED = 0,
    EGPU_PARK_DONE = 1,
    EGPU_PARK_WOKEN = 2,
    EGPU_PARK_BUSY = 3,           /* calls or kernels run */
    EGPU_PARK_CAPTURING = 4,      /* a stream is being captured */
    EGPU_PARK_PINNED = 5,         /* memory can be reached past the driver */
    EGPU_PARK_NO_HOST_MEMORY = 6, /* no room for the copy */
    EGPU_PARK_NOTHING = 7,        /* no memory that could leave */
    EGPU_PARK_NOT_POSSIBLE = 8,   /* this kernel has no membarrier, or too many threads */
    EGPU_PARK_FAILED = 9,         /* the driver refused; what left is parked */
    EGPU_PARK_NO_ROOM = 10,       /* to wake: the card is full */
};

enum egpu_slot_state {
    EGPU_SLOT_FREE = 0,
    EGPU_SLOT_LIVE = 1,
};

/* One process on one device. Four lines: identity, time, bytes reserved, bytes released. */
struct egpu_usage_slot {
    uint32_t state;         /* enum egpu_slot_state; written under the join lock */
    uint32_t device;        /* index into the totals */
    uint32_t pid;           /* in the process's own pid namespace */
    uint32_t park_answer;   /* enum egpu_park_answer */
    uint64_t start_time;    /* field 22 of /proc/<pid>/stat, clock ticks since boot */
    uint64_t pid_namespace; /* inode of /proc/<pid>/ns/pid */
    /* CLOCK_MONOTONIC of the last sign of life; in a parkable slice, of the last call */
    uint64_t heartbeat_ns;
    /* In a parkable slice: charged, and not on the card (parked, or waits for room); written by the
     * process. In any other: neither charged nor on the card (checkpointed by the driver); written
     * under the join lock, by the process that asked for the checkpoint. */
    uint64_t parked_bytes;
    uint32_t parks, wakes; /* since the process began */
    uint64_t wake_wait_ns; /* time that calls waited for their memory */

    uint64_t sequence;      /* odd: between two stores */
    uint64_t park_answered; /* the park_request that park_answer is of */
    uint64_t gpu_ns;
    uint64_t throttled_ns;
    uint64_t launches;
    struct egpu_usage_rate rate;

    uint64_t reserved_bytes[EGPU_MEMORY_CLASSES]; /* total reserved, by class */
    uint64_t released_bytes[EGPU_MEMORY_CLASSES]; /* total released, by class */
};

/* When the container kept the device busy, so overlapping work (streams, processes) is charged
 * once. A ring over CLOCK_MONOTONIC: 48 bits of EGPU_COVERAGE_GRAIN_NS per word, and above them 16
 * bits with the number of the round. */
#define EGPU_COVERAGE_GRAIN_NS 16384u
struct egpu_usage_coverage {
    uint64_t words[EGPU_COVERAGE_WORDS];
};

/* What a slice wants of one device now. */
struct egpu_usage_ask {
    uint32_t serial;   /* of EGPU_WORK_LATENCY: changes with every request; a futex */
    uint32_t spare_us; /* a turn that ends earlier than until_ns by more than this is of no use */
    uint64_t
        until_ns; /* until when it needs the card, if nothing else ran there; past: it is done */
    uint64_t wanted_ns; /* when a process last tried to launch */
};

struct egpu_usage {
    char magic[8];
    uint32_t abi_version;
    uint32_t size; /* EGPU_USAGE_SIZE */
    uint32_t slot_count;
    uint32_t device_capacity;
    uint64_t spare[5];
    struct egpu_usage_device devices[EGPU_MAX_DEVICES]; /* same order as the policy's devices */
    struct egpu_usage_ask asks[EGPU_MAX_DEVICES];
    uint8_t padding[EGPU_USAGE_HEADER_SIZE - 64 - EGPU_MAX_DEVICES * (128 + 24)];
    struct egpu_usage_coverage coverage[EGPU_MAX_DEVICES];
    struct egpu_usage_slot slots[EGPU_USAGE_SLOTS];
};

static_assert(sizeof(struct egpu_policy_device) == 128, "policy device");
static_assert(sizeof(struct egpu_policy_bank) == 2112, "policy bank");
static_assert(offsetof(struct egpu_policy, banks) == 64, "policy header");
static_assert(sizeof(struct egpu_policy) == EGPU_POLICY_SIZE, "policy page");
static_assert(sizeof(struct egpu_policy_turn) == 40, "policy turn");
static_assert(sizeof(struct egpu_usage_ask) == 24, "usage ask");
static_assert(offsetof(struct egpu_policy_device, memory_limit_bytes) == 72, "policy memory limit");
static_assert(sizeof(struct egpu_usage_device) == 128, "usage totals");
static_assert(offsetof(struct egpu_usage_device, bucket_ns) == 64,
              "compute totals on their own line");
static_assert(sizeof(struct egpu_usage_slot) == 256, "usage slot");
static_assert(offsetof(struct egpu_usage_slot, sequence) == 64, "slot time line");
static_assert(offsetof(struct egpu_usage_slot, reserved_bytes) == 128, "slot reserved line");
static_assert(offsetof(struct egpu_usage_slot, released_bytes) == 192, "slot released line");
static_assert(offsetof(struct egpu_policy_device, window_epoch_ns) == 96, "policy windows");
static_assert(offsetof(struct egpu_usage, coverage) == EGPU_USAGE_HEADER_SIZE, "usage header");
static_assert(offsetof(struct egpu_usage, slots) == EGPU_USAGE_SLOTS_OFFSET, "usage slots");
static_assert(sizeof(struct egpu_usage) == EGPU_USAGE_SIZE, "usage file");

/* Return the checksum of a bank; `bank` is not changed. */
static inline uint64_t egpu_policy_checksum(const struct egpu_policy_bank *bank) {
    const unsigned char *bytes = (const unsigned char *)bank;
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < sizeof *bank; i++) {
        size_t field = offsetof(struct egpu_policy_bank, checksum);
        unsigned char byte = i >= field && i < field + 8 ? 0 : bytes[i];
        hash = (hash ^ byte) * 1099511628211ull;
    }
    return hash;
}

#endif
