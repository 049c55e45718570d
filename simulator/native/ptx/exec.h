/* One running launch: threads run in turn, each until it ends, waits for others or has used its
 * time slice. */
#ifndef EGPU_PTX_EXEC_H
#define EGPU_PTX_EXEC_H

#include "internal.h"

enum {
    WARP_SIZE = 32,
    MAX_THREADS = 1024,
    BARRIERS = 16,
    TEXTURE_CACHE = 8,         /* a power of two */
    RANGE_CACHE = 32,          /* a power of two; memory instructions take its places in turn */
    SLICE_INSTRUCTIONS = 8192, /* a spinning thread lets others run after this many */
    /* … where whole blocks wait for each other by spinning */
    COOPERATIVE_SLICE_INSTRUCTIONS = 512,
};

enum thread_state {
    THREAD_READY,
    THREAD_AT_BARRIER,
    THREAD_AT_CLUSTER,
    THREAD_AT_WARP, /* at an instruction that its warp executes together */
    THREAD_EXITED,
    THREAD_FAILED,
};

struct frame {
    const struct function *function;
    const struct ins *call; /* in the caller; NULL at the bottom */
    union slot *registers;
    uint32_t local_base;
};

/* Asynchronous copies, in the order of their start. They are done when they are waited for and not
 * earlier: a thread that does not wait finds the old contents. */
struct copy {
    const void *from;
    void *to;
    uint32_t bytes, zeros; /* to copy, then to clear */
    uint32_t group;
};
struct copies {
    struct copy *items;
    uint32_t first, count, room; /* pending ones start at `first` */
    uint32_t group;              /* groups committed so far */
};

/* The memory that a live thread needs. Windows pass from thread to thread as they end, which keeps
 * them in the cache. */
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
    uint32_t barrier;  /* its number while at a barrier */
    uint32_t arrivals; /* arrivals at the cluster's barrier */
    const struct ins *pc;
    struct window *window; /* NULL before the first instruction */
    uint64_t clock;        /* instructions executed */
};

struct exec {
    const egpu_ptx_kernel *kernel;
    const egpu_ptx_launch *launch;
    union slot **templates; /* per function: its constants with this launch's addresses */
    uint8_t *shared;
    uint64_t shared_bytes, reserved_at; /* with the system's part, which starts there */
    uint32_t slice;                     /* instructions of one turn */
    uint32_t block[3];                  /* %ctaid of the running block */
    uint32_t cluster[3];                /* blocks of one */
    uint32_t rank;                      /* in its cluster */
    uint8_t **shared_of;                /* by rank */
    uint64_t fuel;                      /* instructions left */
    egpu_ptx_stats stats;
    egpu_ptx_status status;
    egpu_ptx_fault fault;
    uint32_t failed_thread; /* in the block: the thread with the fault */
    egpu_ptx_range ranges[RANGE_CACHE];
    struct {
        uint64_t object;
        bool surface;
        const egpu_ptx_texture *texture; /* NULL: an empty place */
    } textures[TEXTURE_CACHE];

    /* of the running thread */
    uint8_t *local;
    uint32_t local_base;
};

/* Run until the thread ends, waits, or its slice is over (then it stays READY). Errors are in
 * x->status and x->fault. */
enum thread_state exec_thread(struct exec *x, struct thread *thread);

/* Execute the instructions for which whole groups of a warp's threads wait. Return whether any
 * thread may continue, or x has failed. `forced`: release partial groups. */
bool warp_resolve(struct exec *x, struct thread *threads, uint32_t count, bool forced);

/* Return device memory or the block's shared memory; NULL: the error is in x. */
void *global_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write);
void *shared_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write);
void *refuse(struct exec *x, egpu_ptx_status status, uint64_t address, uint32_t length, bool write);

/* sample.c and surface.c: one instruction and its following words; false: an error. */
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

/* Return memory of any space by a generic address; NULL as above. */
void *generic_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write);

/* print.c: call sites of vprintf and __assertfail. False: an error, such as a failed assertion;
 * *cost: characters, which count as instructions. */
bool print_call(struct exec *x, struct thread *t, const struct ins *at, uint64_t *cost);
void assert_call(struct exec *x, struct thread *t, const struct ins *at);

/* builtin.c: parameters and the result of a call of a function that no module defines. */
uint64_t actual_value(const struct exec *x, const struct thread *t, const struct ins *at,
                      unsigned which);
void return_value(const struct exec *x, const struct thread *t, const struct ins *at,
                  uint64_t value);
/* Call sites of malloc and free. False: an error. */
void allocate_call(struct exec *x, struct thread *t, const struct ins *at);
bool free_call(struct exec *x, struct thread *t, const struct ins *at);

/* matrix.c: a whole warp whose threads are all at such an instruction. */
void matrix_multiply(struct thread *lanes);
bool matrix_move(struct exec *x, struct thread *lanes); /* false: an error */
void fragment_multiply(struct thread *lanes);
bool fragment_move(struct exec *x, struct thread *lanes);
bool warpgroup_multiply(struct exec *x, struct thread *lanes); /* warpgroup.c: one warp's part */
/* Operands in words: the slot of one; an element in a slot; a sum. */
uint16_t operand_slot(const struct ins *words, unsigned i);
double matrix_element(enum element type, const union slot *s, unsigned i);
double matrix_sum_value(const union slot *s, enum sum type, unsigned i);
void matrix_sum_store(union slot *s, enum sum type, unsigned i, double v, bool saturate);

/* reads a special register */
uint64_t special_value(const struct exec *x, uint32_t thread, unsigned which);
uint64_t globaltimer(const egpu_ptx_launch *launch);

static inline union slot *thread_registers(const struct thread *t) {
    return t->window->frames[t->depth].registers;
}

#endif
