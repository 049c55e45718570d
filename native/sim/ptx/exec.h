/* One launch while it runs: threads are run in turn, each until it ends, waits for others or has
 * used its time slice. */
#ifndef EGPU_PTX_EXEC_H
#define EGPU_PTX_EXEC_H

#include "internal.h"

enum {
    WARP_SIZE = 32,
    MAX_THREADS = 1024,
    BARRIERS = 16,
    TEXTURE_CACHE = 8,         /* a power of two */
    RANGE_CACHE = 32,          /* a power of two; memory instructions take turns at the places */
    SLICE_INSTRUCTIONS = 8192, /* a spinning thread lets the others run after so many */
};

enum thread_state {
    THREAD_READY,
    THREAD_AT_BARRIER,
    THREAD_AT_CLUSTER,
    THREAD_AT_WARP, /* at an instruction that its warp carries out together */
    THREAD_EXITED,
    THREAD_FAILED,
};

struct frame {
    const struct function *function;
    const struct ins *call; /* in the caller; NULL at the bottom */
    union slot *registers;
    uint32_t local_base;
};

/* Asynchronous copies, in the order they were begun: done when they are waited for and not before,
 * so that whoever does not wait finds what was there. */
struct copy {
    const void *from;
    void *to;
    uint32_t bytes, zeros; /* to copy, to clear behind */
    uint32_t group;
};
struct copies {
    struct copy *items;
    uint32_t first, count, room; /* what is pending starts at first */
    uint32_t group;              /* groups committed so far */
};

/* What a live thread needs; windows are handed from thread to thread as they end, which keeps them
 * in the cache. */
struct window {
    struct window *next;
    union slot *slots;
    uint8_t *local;
    struct frame *frames;
    struct copies copies;
};

struct thread {
    enum thread_state state;
    uint32_t index; /* in the block */
    uint32_t depth;
    uint32_t barrier;  /* which, when at one */
    uint32_t arrivals; /* at the cluster's barrier */
    const struct ins *pc;
    struct window *window; /* NULL before the first instruction */
    uint64_t clock;        /* instructions executed */
};

struct exec {
    const egpu_ptx_kernel *kernel;
    const egpu_ptx_launch *launch;
    union slot **templates; /* per function: its constants with this launch's addresses */
    uint8_t *shared;
    uint64_t shared_bytes;
    uint32_t block[3];   /* %ctaid of the block that runs */
    uint32_t cluster[3]; /* blocks of one */
    uint32_t rank;       /* in its cluster */
    uint8_t **shared_of; /* by rank */
    uint64_t fuel;       /* instructions left */
    egpu_ptx_stats stats;
    egpu_ptx_status status;
    egpu_ptx_fault fault;
    uint32_t failed_thread; /* of a block: whose instruction the fault was */
    egpu_ptx_range ranges[RANGE_CACHE];
    struct {
        uint64_t object;
        bool surface;
        const egpu_ptx_texture *texture; /* NULL: an empty place */
    } textures[TEXTURE_CACHE];

    /* of the thread that runs */
    uint8_t *local;
    uint32_t local_base;
};

/* Run until it ends, waits, or its slice is over (then it is still READY). Failures are in
 * x->status and x->fault. */
enum thread_state exec_thread(struct exec *x, struct thread *thread);

/* Carry out what whole groups of a warp's threads wait at. True if any thread may go on, or x has
 * failed. `forced`: release partial groups. */
bool warp_resolve(struct exec *x, struct thread *threads, uint32_t count, bool forced);

/* Device memory and the block's shared memory, or NULL with the failure in x. */
void *global_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write);
void *shared_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write);
void *refuse(struct exec *x, egpu_ptx_status status, uint64_t address, uint32_t length, bool write);

/* sample.c and surface.c: one instruction and the words behind it; false is a failure. */
const egpu_ptx_texture *texture_of(struct exec *x, uint64_t object, bool surface);
bool texture_read(struct exec *x, union slot *R, const struct ins *at);
bool texture_gather(struct exec *x, union slot *R, const struct ins *at);
bool texture_query(struct exec *x, union slot *R, const struct ins *at);
bool surface_access(struct exec *x, union slot *R, const struct ins *at);

/* pending.c: as above. Copies of a thread, and barriers in shared memory. */
bool copy_begin(struct exec *x, struct thread *t, const union slot *R, const struct ins *at);
void copy_wait(struct thread *t, uint32_t pending_groups);
void copy_wait_all(struct thread *t);
bool mbarrier(struct exec *x, union slot *R, const struct ins *at);

/* Memory of any space, by a generic address; likewise. */
void *generic_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write);

/* print.c: of the call sites of vprintf and __assertfail. False is a failure, and so is a failed
 * assertion; *cost: characters, which count as instructions. */
bool print_call(struct exec *x, struct thread *t, const struct ins *at, uint64_t *cost);
void assert_call(struct exec *x, struct thread *t, const struct ins *at);

/* matrix.c: a whole warp, each of its threads at such an instruction. */
void matrix_multiply(struct thread *lanes);
bool matrix_move(struct exec *x, struct thread *lanes); /* false is a failure */
void fragment_multiply(struct thread *lanes);
bool fragment_move(struct exec *x, struct thread *lanes);
bool warpgroup_multiply(struct exec *x, struct thread *lanes); /* warpgroup.c: one warp's part */
/* The operands in words: the slot of one; an element in a slot, and a sum. */
uint16_t operand_slot(const struct ins *words, unsigned i);
double matrix_element(enum element type, const union slot *s, unsigned i);
double matrix_sum_value(const union slot *s, enum sum type, unsigned i);
void matrix_sum_store(union slot *s, enum sum type, unsigned i, double v, bool saturate);

/* a special register */
uint64_t special_value(const struct exec *x, uint32_t thread, unsigned which);
uint64_t globaltimer(const egpu_ptx_launch *launch);

static inline union slot *thread_registers(const struct thread *t) {
    return t->window->frames[t->depth].registers;
}

#endif
