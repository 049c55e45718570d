/* The shared state of one simulated machine: a file in /dev/shm, little-endian, fixed layout.
 *
 *   0                     struct sim_header
 *   cards_offset          struct sim_card[SIM_MAX_RECORDS]: the cards, then the MIG instances of
 *                         each (mig.c)
 *   processes_offset      struct sim_process[SIM_MAX_PROCESSES]
 *   shared_offset         struct sim_shared[SIM_MAX_SHARED]: memory and events of several
 *                         processes
 *   card.chunk_offset     uint32 per 2 MiB chunk of the card's memory: 0 free, else its owner
 *                         (SIM_OWNER_*)
 *   card.memory_offset    the card's memory itself (sparse; a freed chunk is punched out)
 *
 * egpu_sim.machines writes headers and cards with `struct`; everything dynamic starts as
 * zeros. Locks are OFD locks on bytes far beyond the data: the table lock, one byte per live
 * process, and one per process for the caller of its checkpoint. So after SIGKILL no lock stays
 * held and no dead process looks alive.
 */
#ifndef EGPU_SIM_MACHINE_H
#define EGPU_SIM_MACHINE_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC "EGPUSIM1"
#define SIM_LAYOUT_VERSION 5u
#define SIM_MAX_CARDS 16
#define SIM_MAX_INSTANCES 7    /* per card: GPU instances, and compute instances */
#define SIM_MAX_MIG_PROFILES 8 /* of a card */
#define SIM_MEMORY_SLICES 8    /* per card in MIG mode, at most */
/* Device files of MIG: one for configuration, then one for each GPU instance of each card, followed
 * by those of its compute instances. */
#define SIM_CAPABILITY_CONFIG 1
#define SIM_CAPABILITY_FIRST 3
#define SIM_CAPABILITY_INSTANCES 15
#define SIM_CAPABILITY_FILES 9
#define SIM_MAX_RECORDS (SIM_MAX_CARDS * (1 + 2 * SIM_MAX_INSTANCES))
#define SIM_MAX_PROCESSES 1024
#define SIM_MAX_SHARED 1024
#define SIM_MAX_FAULTS 64
#define SIM_CHUNK_SHIFT 21
#define SIM_CHUNK_BYTES (UINT64_C(1) << SIM_CHUNK_SHIFT)
#define SIM_BUCKET_SHIFT 24 /* busy time per 2^24 ns (16.8 ms) */
#define SIM_BUCKETS 128     /* 2.1 s … */
#define SIM_HISTORY 120     /* … of which this much is past: time is charged up to 100 ms ahead */
#define SIM_LOCK_TABLE (INT64_C(1) << 60)
#define SIM_LOCK_PROCESS (SIM_LOCK_TABLE + 1)
#define SIM_LOCK_CHECKPOINT (SIM_LOCK_PROCESS + SIM_MAX_PROCESSES)

/* Owner of a chunk: slot + 1 of a process, or one of these. */
#define SIM_OWNER_SHARED UINT32_C(0x80000000) /* | index of the sim_shared */
#define SIM_OWNER_EVICTABLE \
    UINT32_C(0x40000000) /* | slot + 1: managed memory; others may take the chunk */

/* sim_header.flags */
#define SIM_FLAG_MANUAL_CLOCK 1u  /* time moves only when a process advances it */
#define SIM_FLAG_FIFO 2u          /* kernels run whole, in the order of arrival */
#define SIM_FLAG_SKIP_COMPILED 4u /* compiled kernels are taken, and compute nothing */
#define SIM_FLAG_ZERO_RESULTS 8u  /* … and write zeros, which read as success */

struct sim_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint32_t card_count;
    uint32_t max_processes;
    uint64_t cards_offset;
    uint64_t processes_offset;
    uint64_t file_bytes; /* without the exchange */
    uint64_t created_unix_ns;
    uint32_t cuda_version; /* 13000 = 13.0 */
    uint32_t flags;
    char driver_version[64];
    char node_name[256];
    uint64_t shared_offset;
    /* the machine's creator; without start and pid it stays until its directory is removed */
    uint64_t creator_start_ticks;
    uint64_t creator_pid_namespace;
    uint32_t creator_pid;
    uint32_t pad0;
    char directory[512]; /* its driver/machine leads here; empty: not known */
    uint8_t pad[1024 - 928];
    /* slot + 1 (or UINT32_MAX) of the process that changes the tables; survives its death */
    _Atomic uint32_t writer;
    uint32_t pad1;
    _Atomic uint64_t clock_ns;      /* manual clock: now */
    _Atomic uint32_t clock_changes; /* … number of changes; a futex */
    /* … threads that wait for it (may include killed ones) */
    _Atomic uint32_t clock_sleepers;
    uint8_t pad2[2048 - 1048];
    /* enum sim_process_state, contiguous: lists scan them */
    _Atomic uint8_t process_state[SIM_MAX_PROCESSES];
    uint8_t pad_end[4096 - 2048 - SIM_MAX_PROCESSES];
};

/* Busy nanoseconds per 16.8 ms bucket: high 32 bits the bucket's number, low 32 bits the
 * nanoseconds. */
struct sim_busy {
    _Atomic uint64_t total_ns;
    _Atomic uint64_t buckets[SIM_BUCKETS];
};

enum sim_fault_kind {
    SIM_FAULT_XID = 1,
    SIM_FAULT_ECC_CORRECTED = 2,
    SIM_FAULT_ECC_UNCORRECTED = 3
};

struct sim_fault {
    uint64_t time_unix_ns;
    uint32_t kind;
    uint32_t data; /* XID: its number */
};

/* A kind of GPU instance that a card supports. */
struct sim_mig_profile {
    uint32_t profile;          /* NVML_GPU_INSTANCE_PROFILE_* */
    uint32_t id;               /* the driver's number for it; may be 0 */
    uint32_t slices;           /* of compute; 0: no profile */
    uint32_t gigabytes;        /* in its name */
    uint32_t media_extensions; /* its name includes this */
    uint32_t memory_chunks;
    uint32_t sm_count;
    uint32_t size;      /* memory slices */
    uint32_t starts;    /* bit per memory slice where one may begin */
    uint32_t instances; /* maximum at a time */
    uint32_t copy_engines;
    uint32_t decoders;
    uint32_t jpegs;
    uint32_t ofas;
    uint32_t pad[2];
};

/* How long a process keeps the card, numbered as in `nvidia-smi compute-policy`:
 * sim_card.timeslice_ns, half of it, twice, eight times. */
enum sim_timeslice {
    SIM_TIMESLICE_DEFAULT = 0,
    SIM_TIMESLICE_SHORT = 1,
    SIM_TIMESLICE_MEDIUM = 2,
    SIM_TIMESLICE_LONG = 3
};

enum sim_instance_kind { SIM_INSTANCE_NONE = 0, SIM_INSTANCE_GPU = 1, SIM_INSTANCE_COMPUTE = 2 };

/* A card. A MIG instance is one too: it has a window of the card's memory and chunk table, and its
 * own time. */
struct sim_card {
    uint8_t uuid[16];
    char name[96];
    uint32_t index;
    uint32_t minor;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id; /* device << 16 | vendor, as NVML reports it */
    uint32_t pci_subsystem_id;
    int32_t numa_node;
    uint64_t memory_bytes; /* usable by programs */
    uint64_t memory_offset;
    uint64_t chunk_offset;
    uint32_t chunk_count;
    uint32_t context_chunks; /* chunks that each context costs */
    uint32_t cc_major;
    uint32_t cc_minor;
    uint32_t sm_count;
    uint32_t cores_per_sm; /* fp32 lanes; used for a kernel's derived duration */
    uint32_t max_threads_per_sm;
    uint32_t max_blocks_per_sm;
    uint32_t shared_per_block;
    uint32_t shared_per_block_optin;
    uint32_t shared_per_sm;
    uint32_t l2_bytes;
    uint32_t sm_clock_mhz; /* boost */
    uint32_t memory_clock_mhz;
    uint32_t memory_bus_bits;
    uint32_t fp64_ratio; /* fp32 rate : fp64 rate */
    uint32_t async_engines;
    uint32_t power_idle_mw;
    uint32_t power_limit_mw;
    uint32_t power_min_mw;
    uint32_t temperature_idle_c;
    uint32_t temperature_slowdown_c;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint32_t ecc; /* 1: on, 0: off, 2: the card has none */
    uint32_t mig_capable;
    uint32_t brand;                    /* nvmlBrandType_t */
    uint32_t architecture;             /* nvmlDeviceArchitecture_t */
    uint32_t nvlink_version;           /* 0: no links */
    uint32_t nvlink_count;             /* total links */
    uint32_t nvlink_to[SIM_MAX_CARDS]; /* links to the card of that index */
    float tflops_fp32;
    float tflops_fp16;
    uint64_t memory_bandwidth; /* bytes per second */
    uint64_t pcie_bandwidth;   /* bytes per second and direction */
    uint64_t timeslice_ns;     /* a kernel yields the card to other processes after this time */
    uint64_t driver_bytes;     /* of the card's memory: kept by the driver, beyond memory_bytes */
    struct sim_mig_profile mig_profiles[SIM_MAX_MIG_PROFILES];
    uint8_t pad[1024 - 392 - SIM_MAX_MIG_PROFILES * sizeof(struct sim_mig_profile)];
    /* dynamic */
    _Atomic uint64_t busy_until_ns; /* CLOCK_MONOTONIC; the card's time is taken up to here */
    _Atomic uint32_t used_chunks;   /* derived from the chunk table, recounted after a death */
    _Atomic uint32_t timeslice;     /* enum sim_timeslice */
    struct sim_busy busy;
    _Atomic uint64_t slice; /* the slice's owner and start: see arbiter.c */
    _Atomic uint32_t lost;  /* it has fallen off the bus */
    _Atomic uint32_t mig_enabled;
    /* faults reported so far; the newest are in `faults` */
    _Atomic uint64_t fault_count;
    struct sim_fault faults[SIM_MAX_FAULTS]; /* number n is at n % SIM_MAX_FAULTS */
    _Atomic uint64_t ecc_corrected, ecc_uncorrected;
    uint32_t utilization_window_ms;
    _Atomic uint32_t mig_pending; /* the last request */
    /* for instances */
    /* enum sim_instance_kind; written last, so a death leaves no partial record */
    _Atomic uint32_t instance;
    uint32_t board; /* index of its card */
    /* compute instance: index of its GPU instance, which has the memory */
    uint32_t memory_record;
    uint32_t instance_id;
    /* GPU instance: index in mig_profiles; compute instance: its GPU instance's */
    uint32_t mig_profile;
    uint32_t first_slice; /* of memory, or of its GPU instance's compute slices */
    uint32_t slice_count;
    _Atomic uint32_t compute_mode; /* nvmlComputeMode_t */
    uint8_t pad_end[4096 - 2152 - SIM_MAX_FAULTS * sizeof(struct sim_fault)];
};

/* One process's use of one card. */
struct sim_usage {
    _Atomic uint32_t contexts;
    _Atomic uint32_t chunks;   /* derived, like used_chunks */
    _Atomic uint32_t runnable; /* streams with a kernel that runs or waits for the card */
    uint32_t server;           /* pid of its MPS server for the card; 0: none */
    struct sim_busy busy;
};

enum sim_checkpoint_step { SIM_STEP_LOCK, SIM_STEP_SAVE, SIM_STEP_RESTORE, SIM_STEP_UNLOCK };

/* Requests for a process's restore thread, one at a time (checkpoint.c). */
struct sim_checkpoint {
    _Atomic uint32_t state;          /* CUprocessState */
    _Atomic uint32_t asked;          /* number of the newest request; a futex */
    _Atomic uint32_t answered;       /* … and of the newest answer; a futex */
    _Atomic uint32_t restore_thread; /* in the process's pid namespace; 0: not ready */
    uint32_t step;                   /* enum sim_checkpoint_step */
    uint32_t timeout_ms;             /* SIM_STEP_LOCK; 0: none */
    uint32_t result;                 /* CUresult of the newest answer */
    uint32_t pair_count;             /* SIM_STEP_RESTORE */
    struct sim_gpu_pair {
        uint8_t from[16], to[16]; /* UUIDs */
    } pairs[SIM_MAX_CARDS];
};

enum sim_process_state { SIM_PROCESS_FREE = 0, SIM_PROCESS_LIVE = 1 };

struct sim_process {
    uint32_t instance;      /* index of its compute instance; 0: on cards */
    uint32_t pid;           /* in its own pid namespace */
    uint64_t start_ticks;   /* field 22 of /proc/pid/stat */
    uint64_t pid_namespace; /* inode */
    uint64_t group;         /* inode of its control group; 0: none */
    char name[96];
    /* the last one: of its instance (CUDA shows one at most) */
    struct sim_usage cards[SIM_MAX_CARDS + 1];
    struct sim_checkpoint checkpoint;
};

/* Memory or an event that several processes hold. */
enum sim_shared_kind { SIM_SHARED_FREE = 0, SIM_SHARED_MEMORY = 1, SIM_SHARED_EVENT = 2 };

struct sim_shared {
    _Atomic uint32_t kind;
    uint32_t generation; /* of this entry: references to older ones are refused */
    uint32_t card;
    uint32_t creator; /* slot; charged for the memory while it holds it */
    _Atomic uint64_t recorded, done, timestamp_ns; /* events */
    _Atomic uint32_t recorder; /* slot + 1 of the last recorder; if it dies, its event is over */
    uint32_t event_flags;
    _Atomic uint64_t holders[SIM_MAX_PROCESSES / 64];
};

static_assert(sizeof(struct sim_shared) == 176, "sim_shared");
static_assert(offsetof(struct sim_header, shared_offset) == 384, "sim_header.shared_offset");
static_assert(offsetof(struct sim_header, directory) == 416, "sim_header.directory");
static_assert(offsetof(struct sim_header, clock_ns) == 1032, "sim_header.clock_ns");
static_assert(sizeof(struct sim_header) == 4096, "sim_header");
static_assert(offsetof(struct sim_header, driver_version) == 64, "sim_header.driver_version");
static_assert(offsetof(struct sim_header, writer) == 1024, "sim_header.writer");
static_assert(offsetof(struct sim_header, process_state) == 2048, "sim_header.process_state");
static_assert(sizeof(struct sim_busy) == 1032, "sim_busy");
static_assert(offsetof(struct sim_card, memory_bytes) == 144, "sim_card.memory_bytes");
static_assert(offsetof(struct sim_card, nvlink_to) == 288, "sim_card.nvlink_to");
static_assert(offsetof(struct sim_card, memory_bandwidth) == 360, "sim_card.memory_bandwidth");
static_assert(sizeof(struct sim_mig_profile) == 64, "sim_mig_profile");
static_assert(offsetof(struct sim_card, mig_profiles) == 392, "sim_card.mig_profiles");
static_assert(offsetof(struct sim_card, instance) == 3144, "sim_card.instance");
static_assert(offsetof(struct sim_card, busy_until_ns) == 1024, "sim_card.busy_until_ns");
static_assert(sizeof(struct sim_card) == 4096, "sim_card");
static_assert(offsetof(struct sim_card, slice) == 2072, "sim_card.slice");
static_assert(offsetof(struct sim_card, fault_count) == 2088, "sim_card.fault_count");
static_assert(offsetof(struct sim_card, utilization_window_ms) == 2096 + 64 * 16 + 16,
              "sim_card.utilization_window_ms");
static_assert(sizeof(struct sim_usage) == 1048, "sim_usage");
static_assert(sizeof(struct sim_checkpoint) == 544, "sim_checkpoint");
static_assert(sizeof(struct sim_process) == 128 + 17 * 1048 + 544, "sim_process");

#endif
