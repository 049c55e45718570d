/* The decoded form of a module, shared by the interpreter's parts. Parse → this → execute. */
#ifndef EGPU_PTX_INTERNAL_H
#define EGPU_PTX_INTERNAL_H

#include "ptx.h"

/* A register. Little-endian, so a narrow read is the low part of a wide write. */
union slot {
    uint64_t u64;
    int64_t s64;
    uint32_t u32;
    int32_t s32;
    uint16_t u16;
    int16_t s16;
    uint8_t u8;
    int8_t s8;
    float f32;
    double f64;
};
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "register slots are read by their low bytes");

/* A decoded instruction. d, a, b and c are always slot numbers of the function's register frame (0
 * if unused): constants and special registers are in the frame too, so no operation has variants
 * for immediates.
 */
struct ins {
    uint16_t op, aux;
    uint16_t d, a, b, c;
    int32_t imm;
};
_Static_assert(sizeof(struct ins) == 16, "four instructions per cache line");

enum op {
#define OP(name, ...) OP_##name,
#include "ops.def"
#undef OP
    OP_COUNT
};

enum special { /* special registers that stay the same while a thread runs */
               SR_TID_X,
               SR_TID_Y,
               SR_TID_Z,
               SR_NTID_X,
               SR_NTID_Y,
               SR_NTID_Z,
               SR_CTAID_X,
               SR_CTAID_Y,
               SR_CTAID_Z,
               SR_NCTAID_X,
               SR_NCTAID_Y,
               SR_NCTAID_Z,
               SR_CLUSTERID_X,
               SR_CLUSTERID_Y,
               SR_CLUSTERID_Z,
               SR_NCLUSTERID_X,
               SR_NCLUSTERID_Y,
               SR_NCLUSTERID_Z,
               SR_CLUSTER_CTAID_X,
               SR_CLUSTER_CTAID_Y,
               SR_CLUSTER_CTAID_Z,
               SR_CLUSTER_NCTAID_X,
               SR_CLUSTER_NCTAID_Y,
               SR_CLUSTER_NCTAID_Z,
               SR_CLUSTER_CTARANK,
               SR_CLUSTER_NCTARANK,
               SR_IS_EXPLICIT_CLUSTER,
               SR_LANEID,
               SR_WARPID,
               SR_NWARPID,
               SR_SMID,
               SR_NSMID,
               SR_GRIDID,
               SR_LANEMASK_EQ,
               SR_LANEMASK_LE,
               SR_LANEMASK_LT,
               SR_LANEMASK_GE,
               SR_LANEMASK_GT,
               SR_DYNAMIC_SMEM_SIZE,
               SR_TOTAL_SMEM_SIZE,
               SR_AGGR_SMEM_SIZE,
               SR_GRID_WORKSPACE_HIGH,
               SR_GRID_WORKSPACE_LOW,
               SR_RESERVED_SMEM_BEGIN, /* the first of those that need reserved shared memory */
               SR_RESERVED_SMEM_END,
               SR_RESERVED_SMEM_SECOND, /* the last of them */
               SR_RESERVED_SMEM_CAP,
               SR_ZERO, /* counters that count nothing, and what no driver documents */
               SR_COUNT
};

/* Generic addresses: device memory is where the driver put it. Other spaces are windows that no
 * host address is in. */
#define WINDOW_SHIFT 60
#define WINDOW_SHARED (UINT64_C(1) << WINDOW_SHIFT)
#define WINDOW_LOCAL (UINT64_C(2) << WINDOW_SHIFT)
#define WINDOW_PARAM (UINT64_C(3) << WINDOW_SHIFT)
#define WINDOW_CODE (UINT64_C(4) << WINDOW_SHIFT) /* "addresses" of functions: window + index */

/* Shared memory of any block of the cluster, with addresses as from mapa: the block's rank, from 1,
 * above the offset. Rank 0 is the block itself. 28 bits, so 32-bit addresses suffice. */
#define CLUSTER_SHIFT 24
#define CLUSTER_RANK(address) ((uint32_t)(address) >> CLUSTER_SHIFT)
#define CLUSTER_OFFSET(address) ((address) & ((UINT64_C(1) << CLUSTER_SHIFT) - 1))

/* Shared memory of each block that the system keeps for itself; compilers' libraries use its second
 * part for barriers. A kernel has it only if it asks for its place. */
enum { RESERVED_SHARED_BYTES = 1024, RESERVED_SHARED_SECOND = 512 };

/* In aux of cvta, isspacep and the atomics. */
enum space {
    SPACE_GENERIC,
    SPACE_GLOBAL,
    SPACE_SHARED,
    SPACE_LOCAL,
    SPACE_PARAM,
    SPACE_FRAME,
    SPACE_CONST
};

enum round { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };
enum shfl_mode { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };
enum vote_mode { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };
enum redux_mode {
    REDUX_ADD,
    REDUX_MIN_S,
    REDUX_MIN_U,
    REDUX_MAX_S,
    REDUX_MAX_U,
    REDUX_AND,
    REDUX_OR,
    REDUX_XOR
};
/* In aux of mbarrier. All but the last two modes change it. */
enum mbarrier_mode {
    MBARRIER_INIT,
    MBARRIER_INVALIDATE,
    MBARRIER_EXPECT,
    MBARRIER_COMPLETE,
    MBARRIER_ARRIVE,
    MBARRIER_ARRIVE_EXPECT,
    MBARRIER_ARRIVE_DROP,
    MBARRIER_TEST,
    MBARRIER_TEST_PARITY
};
enum cluster_mode { CLUSTER_ARRIVE, CLUSTER_WAIT };
enum bar_mode { BAR_SYNC, BAR_ARRIVE, BAR_AND, BAR_OR, BAR_POPC };
/* How coordinates select an element; in aux of texture and surface instructions. */
enum shape { SHAPE_1D, SHAPE_2D, SHAPE_3D, SHAPE_A1D, SHAPE_A2D, SHAPE_CUBE, SHAPE_ACUBE };
enum level_mode { LEVEL_FIRST, LEVEL_GIVEN, LEVEL_GRADIENT };
enum surface_edge { EDGE_TRAP, EDGE_CLAMP, EDGE_ZERO };
enum texture_fact { FACT_WIDTH, FACT_HEIGHT, FACT_DEPTH, FACT_LAYERS, FACT_LEVELS };
#define TEXTURE_AUX(shape, mode, by_number) ((shape) | (mode) << 3 | (by_number) << 6)
#define AUX_SHAPE(aux) ((enum shape)((aux) & 7))
#define AUX_MODE(aux) ((aux) >> 3 & 7)
#define AUX_BY_NUMBER(aux) ((aux) >> 6 & 1) /* coordinates are whole numbers */
enum prmt_mode { PRMT_PLAIN, PRMT_F4E, PRMT_B4E, PRMT_RC8, PRMT_ECL, PRMT_ECR, PRMT_RC16 };

/* Elements of the matrices that a warp multiplies, and of the sums. */
enum element {
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_TF32,
    ELEMENT_E4M3,
    ELEMENT_E5M2,
    ELEMENT_S8,
    ELEMENT_U8,
    ELEMENT_F64,
    ELEMENT_F32, /* only of sums, in fragments of wmma */
    ELEMENT_S32
};
enum sum { SUM_F32, SUM_F16, SUM_S32, SUM_F64 };
/* aux of mma: d(M×8) = a(M×K) · b(K×8) + c. M is 8 or 16, K a power of two up to 32. */
#define MMA_AUX(a, b, sum, tall, saturate, log2_k)                                       \
    ((unsigned)(a) | (unsigned)(b) << 3 | (unsigned)(sum) << 6 | (unsigned)(tall) << 8 | \
     (unsigned)(saturate) << 9 | (unsigned)(log2_k) << 10)
#define MMA_A(aux) ((enum element)((aux) & 7))
#define MMA_B(aux) ((enum element)((aux) >> 3 & 7))
#define MMA_SUM(aux) ((enum sum)((aux) >> 6 & 3))
#define MMA_ROWS(aux) ((aux) >> 8 & 1 ? 16u : 8u)
#define MMA_SATURATE(aux) ((aux) >> 9 & 1)
#define MMA_K(aux) (1u << ((aux) >> 10))
/* The words of mma: d, the member mask, a (two), b, c; of ldmatrix and stmatrix: the address, the
 * member mask, the registers. */
enum { MMA_WORDS = 6, MATRIX_WORDS = 3, MATRIX_TRANSPOSED = 8 /* aux: with 1, 2 or 4 matrices */ };
static inline unsigned elements_of_register(enum element e) {
    return e == ELEMENT_TF32 || e >= ELEMENT_F64 ? 1 : e <= ELEMENT_BF16 ? 2 : 4;
}

/* wmma: d(M×N) = a(M×K) · b(K×N) + c, on fragments that are loaded and stored as a whole. */
enum part { PART_A, PART_B, PART_SUM };
static const struct wmma_shape {
    const char *name;
    unsigned m, n, k;
} wmma_shapes[] = {{"m16n16k16", 16, 16, 16},
                   {"m32n8k16", 32, 8, 16},
                   {"m8n32k16", 8, 32, 16},
                   {"m16n16k8", 16, 16, 8},
                   {"m8n8k4", 8, 8, 4}};
enum { WMMA_SHAPES = sizeof wmma_shapes / sizeof *wmma_shapes };
/* aux of wmma_load and wmma_store; by_column: neighbours in memory are in one column. */
#define FRAGMENT_AUX(shape, part, element, by_column, space)                \
    ((unsigned)(shape) | (unsigned)(part) << 3 | (unsigned)(element) << 5 | \
     (unsigned)(by_column) << 9 | (unsigned)(space) << 10)
#define FRAGMENT_SHAPE(aux) (&wmma_shapes[(aux) & 7])
#define FRAGMENT_PART(aux) ((enum part)((aux) >> 3 & 3))
#define FRAGMENT_ELEMENT(aux) ((enum element)((aux) >> 5 & 15))
#define FRAGMENT_BY_COLUMN(aux) ((aux) >> 9 & 1)
#define FRAGMENT_SPACE(aux) ((enum space)((aux) >> 10))
#define WMMA_AUX(shape, element, d, c, saturate)                                               \
    ((unsigned)(shape) | (unsigned)(element) << 3 | (unsigned)(d) << 6 | (unsigned)(c) << 10 | \
     (unsigned)(saturate) << 14)
#define WMMA_ELEMENT(aux) ((enum element)((aux) >> 3 & 7))
#define WMMA_D(aux) ((enum element)((aux) >> 6 & 15))
#define WMMA_C(aux) ((enum element)((aux) >> 10 & 15))
#define WMMA_SATURATE(aux) ((aux) >> 14)
/* Words of wmma: the operation, the member mask, d, a, b and c, two each; of loads and stores (a:
 * the address, b: the stride in elements) one such pair. */
enum { WMMA_WORDS = 10, FRAGMENT_WORDS = 4 };
/* Registers of a fragment. The placement of elements is our choice, but not the number of
 * registers: factors of half type are stored twice if there are fewer than 512. */
static inline unsigned fragment_total(const struct wmma_shape *shape, enum part part) {
    return part == PART_A   ? shape->m * shape->k
           : part == PART_B ? shape->k * shape->n
                            : shape->m * shape->n;
}
static inline unsigned fragment_registers(const struct wmma_shape *shape, enum part part,
                                          enum element e) {
    if (e == ELEMENT_F16 && part != PART_SUM) return 8;
    return fragment_total(shape, part) / (32 * elements_of_register(e));
}

/* aux of wgmma: d(64×N) = a(64×K) · b(K×N), plus d if the predicate says so. Transposed: neighbours
 * in memory are not along the summed direction. Negated: either a or b is. */
#define WGMMA_AUX(a, b, sum, a_shared, a_transposed, b_transposed, negated, saturate)             \
    ((unsigned)(a) | (unsigned)(b) << 3 | (unsigned)(sum) << 6 | (unsigned)(a_shared) << 8 |      \
     (unsigned)(a_transposed) << 9 | (unsigned)(b_transposed) << 10 | (unsigned)(negated) << 11 | \
     (unsigned)(saturate) << 12)
#define WGMMA_A(aux) ((enum element)((aux) & 7))
#define WGMMA_B(aux) ((enum element)((aux) >> 3 & 7))
#define WGMMA_SUM(aux) ((enum sum)((aux) >> 6 & 3))
#define WGMMA_A_SHARED(aux) ((aux) >> 8 & 1)
#define WGMMA_A_TRANSPOSED(aux) ((aux) >> 9 & 1)
#define WGMMA_B_TRANSPOSED(aux) ((aux) >> 10 & 1)
#define WGMMA_NEGATED(aux) ((aux) >> 11 & 1)
#define WGMMA_SATURATE(aux) ((aux) >> 12 & 1)
/* Its words: a's and b's descriptors and the predicate; the member mask and N; a's registers if it
 * has no descriptor; d's registers. */
static inline unsigned wgmma_sums(unsigned columns, enum sum sum) {
    return columns / (sum == SUM_F16 ? 4 : 2);
}
static inline unsigned wgmma_words(const struct ins *at) {
    return 3 + (wgmma_sums((unsigned)at[1].imm, WGMMA_SUM(at->aux)) + 3) / 4;
}

struct variable {
    const char *name;
    uint64_t size, align;
    /* device address once allocated; for shared: offset within one launch's layout */
    uint64_t address;
    uint8_t *init; /* NULL: zeros */
    enum { VAR_GLOBAL, VAR_CONST, VAR_SHARED } kind;
    bool external; /* .extern: undefined, or dynamic shared memory */
    uint32_t index, line;
};

struct data_reloc { /* an address inside a .global initialiser */
    struct variable *holder, *target;
    uint64_t offset, addend;
    unsigned bytes;
};

struct const_reloc { /* a slot of a function's template that holds the address of a variable */
    uint16_t slot;
    struct variable *target;
    uint64_t addend;
    bool generic;
};

struct special_slot {
    uint16_t slot;
    uint16_t which;
};

/* A formal parameter or return value: a register, or bytes of the frame's local memory. */
struct formal {
    bool in_register;
    uint16_t slot;
    uint32_t offset, size, align;
    const char *name;
};

struct actual {
    bool in_register;
    uint16_t slot;
    uint32_t offset, size;
};

struct call_site {
    struct function *callee; /* NULL: indirect, through a slot */
    uint32_t args, returns;
    struct actual *actuals; /* returns first, then arguments */
};

struct branch_table {
    uint32_t count;
    uint32_t *targets;
};

struct function {
    const char *name;
    bool entry, defined;
    uint32_t index, line;

    struct ins *code;
    uint32_t *lines; /* of the source, per instruction */
    uint32_t code_count;

    union slot *constants; /* the first const_count slots of every frame */
    uint32_t const_count, slot_count, register_words;
    struct const_reloc *relocs;
    uint32_t reloc_count;
    struct special_slot *specials;
    uint32_t special_count;

    struct formal *params, *returns;
    uint32_t param_count, return_count;
    uint32_t frame_bytes; /* local memory: .local, and .param of calls */

    struct call_site *calls;
    uint32_t call_count;
    struct branch_table *tables;
    uint32_t table_count;
    struct variable **shared; /* shared variables it names itself */
    uint32_t shared_count;
    bool indirect;  /* it calls through a pointer */
    bool prints;    /* it calls vprintf or __assertfail */
    bool allocates; /* it calls malloc or free */
    int visit;      /* of the call graph's depth-first search */
};

struct egpu_ptx_kernel {
    egpu_ptx_kernel_info info;
    struct function *function;
    egpu_ptx_module *module;
    struct function **reachable; /* itself first */
    uint32_t reachable_count;
    struct variable **shared; /* in layout order; offsets follow */
    uint32_t *shared_offsets;
    uint32_t shared_count;
    bool reserved_shared; /* it reads the place of the system's shared memory */
    /* per thread, for the deepest call chain */
    uint32_t stack_slots, stack_bytes, stack_frames;
};

struct egpu_ptx_module {
    struct arena *arena;
    egpu_ptx_allocator allocator;
    struct function **functions;
    uint32_t function_count;
    struct variable **variables;
    uint32_t variable_count;
    struct data_reloc *data_relocs;
    uint32_t data_reloc_count;
    egpu_ptx_kernel *kernels;
    uint32_t kernel_count;
    egpu_ptx_global *globals;
    uint32_t global_count;
    uint64_t image_address, image_size; /* all .global and .const in one allocation */
    uint8_t *image_host;
    uint32_t ptx_version, target;
};

/* arena.c: memory that is freed all at once. Out of memory returns NULL. */
struct arena *arena_new(void);
void *arena_alloc(struct arena *arena, size_t size); /* zeroed, 16-byte aligned */
void arena_free(struct arena *arena);

/* In the order of their names in logic.c. */
enum comparison {
    COMPARE_EQ,
    COMPARE_NE,
    COMPARE_LT,
    COMPARE_LE,
    COMPARE_GT,
    COMPARE_GE,
    COMPARE_LO,
    COMPARE_LS,
    COMPARE_HI,
    COMPARE_HS,
    COMPARE_EQU,
    COMPARE_NEU,
    COMPARE_LTU,
    COMPARE_LEU,
    COMPARE_GTU,
    COMPARE_GEU,
    COMPARE_NUM,
    COMPARE_NAN
};

/* In aux of half and half_compare. */
enum half_op {
    HALF_ADD,
    HALF_SUB,
    HALF_MUL,
    HALF_FMA,
    HALF_MIN,
    HALF_MAX,
    HALF_MIN_NAN,
    HALF_MAX_NAN,
    HALF_EX2,
    HALF_TANH,
    HALF_ABS,
    HALF_NEG
};
enum { /* operation or comparison, and options */
       HALF_OP = 31,
       HALF_BFLOAT = 32,
       HALF_FTZ = 64,
       HALF_SAT = 128,
       HALF_RELU = 256,
       HALF_PACKED = 512
};

/* In aux of pair_16. */
enum { PAIR_ADD, PAIR_MIN, PAIR_MAX, PAIR_OP = 3, PAIR_SIGNED = 4, PAIR_RELU = 8 };

/* half.c: conversions to and from 16-bit and 8-bit floats, rounding to nearest even by default. */
static inline float half_to_float(uint16_t bits) {
    union slot v = {.u32 = (uint32_t)(bits & 0x7fff) << 13};
    if ((bits & 0x7c00) == 0x7c00)
        v.u32 |= 0x7f800000u;
    else
        v.f32 *= 0x1p112f; /* the exponents' bias; exact, for subnormals too */
    v.u32 |= (uint32_t)(bits & 0x8000) << 16;
    return v.f32;
}
uint16_t half_from_double(double value, enum round mode);
uint16_t bfloat_from_double(double value, enum round mode);
static inline float bfloat_to_float(uint16_t bits) {
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits << 16};
    return v.f;
}
uint8_t quarter_from_double(double value, bool e4m3); /* otherwise e5m2 */
float quarter_to_float(uint8_t bits, bool e4m3);
uint32_t half_arithmetic(uint32_t a, uint32_t b, uint32_t c, unsigned aux);
uint32_t half_comparison(uint32_t a, uint32_t b, unsigned aux); /* one bit per half */

#endif
