/* The interpreter's inner loop: directly threaded code over the decoded instructions. */
#include "exec.h"

#include "alu.h"

#include <string.h>
#include <time.h>

#if defined(__clang__)
#pragma STDC FENV_ACCESS ON
#endif

uint64_t globaltimer(const egpu_ptx_launch *launch) {
    if (launch->globaltimer) return launch->globaltimer(launch->globaltimer_ctx);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void *refuse(struct exec *x, egpu_ptx_status status, uint64_t address, uint32_t length,
             bool write) {
    x->status = status;
    x->fault.address = address;
    x->fault.length = length;
    x->fault.write = write;
    return NULL;
}

static inline bool covers(const egpu_ptx_range *range, uint64_t address, uint32_t length,
                          bool write) {
    uint64_t offset = address - range->base;
    return offset < range->size && range->size - offset >= length && (!write || range->writable);
}

static __attribute__((noinline)) void *global_slow(struct exec *x, unsigned place, uint64_t address,
                                                   uint32_t length, uint32_t align, bool write) {
    if (address & (align - 1)) return refuse(x, EGPU_PTX_MISALIGNED, address, length, write);
    egpu_ptx_range *range = &x->ranges[place];
    bool found = false;
    for (unsigned i = 0; i < RANGE_CACHE && !found; i++)
        if (covers(&x->ranges[i], address, length, write)) {
            *range = x->ranges[i];
            found = true;
        }
    if (!found) {
        egpu_ptx_range fresh = {0};
        if (!x->launch->check ||
            !x->launch->check(x->launch->check_ctx, address, length, write, &fresh) ||
            !covers(&fresh, address, length, write))
            return refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, address, length, write);
        *range = fresh;
    }
    return (uint8_t *)range->host + (address - range->base);
}

static inline void *global_at(struct exec *x, unsigned place, uint64_t address, uint32_t length,
                              uint32_t align, bool write) {
    const egpu_ptx_range *range = &x->ranges[place];
    if (__builtin_expect(covers(range, address, length, write) && !(address & (align - 1)), 1))
        return (uint8_t *)range->host + (address - range->base);
    return global_slow(x, place, address, length, align, write);
}

void *global_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write) {
    return global_at(x, (unsigned)(address >> 12) & (RANGE_CACHE - 1), address, length, align,
                     write);
}

/* Return memory of a space that starts at 0 (or of a window, if window is not 0). */
static inline void *window_at(struct exec *x, uint8_t *memory, uint64_t size, uint64_t address,
                              uint32_t length, uint32_t align, bool write, uint64_t window) {
    if (__builtin_expect(address >= size || size - address < length, 0))
        return refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, address + window, length, write);
    if (__builtin_expect(address & (align - 1), 0))
        return refuse(x, EGPU_PTX_MISALIGNED, address + window, length, write);
    return memory + address;
}

/* Another block's memory in the cluster; a wrapped 32-bit address and offset; or an error. */
static __attribute__((noinline)) void *shared_slow(struct exec *x, uint64_t address,
                                                   uint32_t length, uint32_t align, bool write) {
    if (address >> 32 == 1) address = (uint32_t)address;
    uint32_t rank = CLUSTER_RANK(address) - 1; /* its own memory: the highest value */
    bool there = address >> 32 == 0 && rank < x->cluster[0] * x->cluster[1] * x->cluster[2];
    return window_at(x, there ? x->shared_of[rank] : x->shared, x->shared_bytes,
                     there ? CLUSTER_OFFSET(address) : address, length, align, write,
                     WINDOW_SHARED + (there ? address - CLUSTER_OFFSET(address) : 0));
}

static inline void *shared_at(struct exec *x, uint64_t address, uint32_t length, uint32_t align,
                              bool write) {
    if (__builtin_expect(address < x->shared_bytes && x->shared_bytes - address >= length &&
                             !(address & (align - 1)),
                         1))
        return x->shared + address;
    return shared_slow(x, address, length, align, write);
}

void *shared_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align, bool write) {
    return shared_at(x, address, length, align, write);
}

static void *param_at(struct exec *x, uint64_t address, uint32_t length, uint32_t align,
                      bool write) {
    if (write) return refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, address + WINDOW_PARAM, length, write);
    return window_at(x, (uint8_t *)(uintptr_t)x->launch->params, x->kernel->info.param_bytes,
                     address, length, align, write, WINDOW_PARAM);
}

static void *generic_at(struct exec *x, unsigned place, uint64_t address, uint32_t length,
                        uint32_t align, bool write) {
    uint64_t low = address & ((UINT64_C(1) << WINDOW_SHIFT) - 1);
    switch (address >> WINDOW_SHIFT) {
    case 0: return global_at(x, place, address, length, align, write);
    case WINDOW_SHARED >> WINDOW_SHIFT: return shared_at(x, low, length, align, write);
    case WINDOW_LOCAL >> WINDOW_SHIFT:
        return window_at(x, x->local, x->kernel->stack_bytes, low, length, align, write,
                         WINDOW_LOCAL);
    case WINDOW_PARAM >> WINDOW_SHIFT: return param_at(x, low, length, align, write);
    default: return refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, address, length, write);
    }
}

void *generic_memory(struct exec *x, uint64_t address, uint32_t length, uint32_t align,
                     bool write) {
    return generic_at(x, (unsigned)(address >> 12) & (RANGE_CACHE - 1), address, length, align,
                      write);
}

static void *atomic_at(struct exec *x, unsigned space, uint64_t address, uint32_t length) {
    x->stats.atomics++;
    if (space == SPACE_SHARED) return shared_at(x, address, length, length, true);
    unsigned place = (unsigned)(length ^ address >> 21) & (RANGE_CACHE - 1);
    return space == SPACE_GLOBAL ? global_at(x, place, address, length, length, true)
                                 : generic_at(x, place, address, length, length, true);
}

/* ---- calls ---- */

static void copy_actual(union slot *to_slot, uint8_t *to_bytes, const union slot *from_slot,
                        const uint8_t *from_bytes, uint32_t size) {
    if (to_slot)
        *to_slot = *from_slot;
    else
        memcpy(to_bytes, from_bytes, size);
}

/* Push a frame for the call at `at`. False: the stack is full or the pointer is not to a matching
 * function. */
static bool push(struct exec *x, struct thread *t, const struct ins *at) {
    struct frame *caller = &t->window->frames[t->depth], *frame = caller + 1;
    const struct call_site *site = &caller->function->calls[at->imm];
    const struct function *callee = site->callee;
    if (!callee) {
        uint64_t address = caller->registers[at->a].u64, index = address - WINDOW_CODE;
        if (address < WINDOW_CODE || index >= x->kernel->module->function_count) {
            refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, address, 0, false);
            return false;
        }
        callee = x->kernel->module->functions[index];
        bool fits = callee->defined && !callee->entry && callee->param_count == site->args &&
                    callee->return_count == site->returns;
        for (uint32_t i = 0; fits && i < site->returns + site->args; i++) {
            const struct formal *f =
                i < site->returns ? &callee->returns[i] : &callee->params[i - site->returns];
            fits =
                f->in_register == site->actuals[i].in_register && f->size == site->actuals[i].size;
        }
        if (!fits) {
            refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, address, 0, false);
            return false;
        }
    }
    union slot *registers = caller->registers + caller->function->slot_count;
    uint32_t local_base = caller->local_base + caller->function->frame_bytes;
    size_t slots = (size_t)(registers - t->window->slots) + callee->slot_count;
    if (t->depth + 2 > x->kernel->stack_frames || slots > x->kernel->stack_slots ||
        (uint64_t)local_base + callee->frame_bytes > x->kernel->stack_bytes) {
        x->status = EGPU_PTX_STACK_OVERFLOW;
        return false;
    }
    *frame = (struct frame){callee, at, registers, local_base};
    memcpy(frame->registers, x->templates[callee->index], callee->const_count * sizeof(union slot));
    for (uint32_t i = 0; i < callee->special_count; i++)
        frame->registers[callee->specials[i].slot].u64 =
            special_value(x, t->index, callee->specials[i].which);
    for (uint32_t i = 0; i < site->args; i++) {
        const struct actual *from = &site->actuals[site->returns + i];
        const struct formal *to = &callee->params[i];
        copy_actual(to->in_register ? &frame->registers[to->slot] : NULL,
                    x->local + frame->local_base + to->offset, &caller->registers[from->slot],
                    x->local + caller->local_base + from->offset, to->size);
    }
    t->depth++;
    return true;
}

static const struct ins *pop(struct exec *x, struct thread *t) {
    struct frame *frame = &t->window->frames[t->depth--], *caller = frame - 1;
    const struct call_site *site = &caller->function->calls[frame->call->imm];
    for (uint32_t i = 0; i < site->returns; i++) {
        const struct actual *to = &site->actuals[i];
        const struct formal *from = &frame->function->returns[i];
        copy_actual(to->in_register ? &caller->registers[to->slot] : NULL,
                    x->local + caller->local_base + to->offset, &frame->registers[from->slot],
                    x->local + frame->local_base + from->offset, from->size);
    }
    return frame->call + 1;
}

/* ---- the loop ---- */

#define DISPATCH() goto *labels[I->op]
#define D R[I->d]
#define A R[I->a]
#define B R[I->b]
#define C R[I->c]
#define ADDRESS (A.u64 + (uint64_t)(int64_t)I->imm)

/* Return the rank of the block that owns an address of shared memory. */
#define OWNER(address) (CLUSTER_RANK(address) ? CLUSTER_RANK(address) - 1 : x->rank)

#define CHECKED(pointer)                               \
    ({                                                 \
        void *checked_ = (pointer);                    \
        if (__builtin_expect(!checked_, 0)) goto fail; \
        checked_;                                      \
    })
#define COUNTED(write) (*((write) ? &stores : &loads) += 1)
#define AT_GLOBAL(n, w) (COUNTED(w), CHECKED(global_at(x, I->aux, ADDRESS, (n), (n), (w))))
#define AT_GENERIC(n, w) (COUNTED(w), CHECKED(generic_at(x, I->aux, ADDRESS, (n), (n), (w))))
#define AT_SHARED(n, w) (COUNTED(w), CHECKED(shared_at(x, ADDRESS, (n), (n), (w))))
#define AT_LOCAL(n, w)                                                                          \
    (COUNTED(w), CHECKED(window_at(x, x->local, x->kernel->stack_bytes, ADDRESS, (n), (n), (w), \
                                   WINDOW_LOCAL)))
#define AT_FRAME(n, w)                                                                           \
    (COUNTED(w), CHECKED(window_at(x, x->local, x->kernel->stack_bytes, ADDRESS + x->local_base, \
                                   (n), (n), (w), WINDOW_LOCAL)))
#define AT_PARAM(n, w) (COUNTED(w), CHECKED(param_at(x, ADDRESS, (n), (n), (w))))
#define AT_ATOMIC(n) CHECKED(atomic_at(x, I->aux, ADDRESS, (n)))

/* The following word: its slots are the elements, aux their bytes, imm their number. */
#define ELEMENT(k) R[(k) == 0 ? I[1].d : (k) == 1 ? I[1].a : (k) == 2 ? I[1].b : I[1].c]
#define VECTOR_LOAD(at)                                                           \
    const unsigned char *p = at((uint32_t)(I[1].aux * I[1].imm), false);          \
    union slot v[4] = {{0}};                                                      \
    for (int k = 0; k < I[1].imm; k++) memcpy(&v[k], p + k * I[1].aux, I[1].aux); \
    for (int k = 0; k < I[1].imm; k++) ELEMENT(k) = v[k];                         \
    I++
#define VECTOR_STORE(at)                                                                \
    unsigned char *p = at((uint32_t)(I[1].aux * I[1].imm), true);                       \
    for (int k = 0; k < I[1].imm; k++) memcpy(p + k * I[1].aux, &ELEMENT(k), I[1].aux); \
    I++

#define ACCOUNT() (count += (uint64_t)(I + 1 - start))
#define JUMP(distance)                      \
    {                                       \
        ACCOUNT();                          \
        I += (distance);                    \
        start = I;                          \
        if (count >= slice) goto preempted; \
        DISPATCH();                         \
    }
#define SKIP(distance)   \
    {                    \
        I += (distance); \
        DISPATCH();      \
    }
#define BRANCH_TABLE()                                            \
    const struct branch_table *table = &function->tables[I->imm]; \
    if (A.u32 >= table->count) FAIL(EGPU_PTX_TRAP);               \
    ACCOUNT();                                                    \
    I = function->code + table->targets[A.u32];                   \
    start = I;                                                    \
    if (count >= slice) goto preempted;                           \
    DISPATCH()
#define ENTER_FRAME()                                     \
    do {                                                  \
        struct frame *top = &t->window->frames[t->depth]; \
        function = top->function;                         \
        R = top->registers;                               \
        x->local_base = top->local_base;                  \
        start = I;                                        \
    } while (0)
#define CALL()                                      \
    ACCOUNT();                                      \
    start = I + 1;                                  \
    if (!push(x, t, I)) goto fail;                  \
    I = t->window->frames[t->depth].function->code; \
    ENTER_FRAME();                                  \
    if (count >= slice) goto preempted;             \
    DISPATCH()
#define RETURN()                             \
    if (t->depth == 0) LEAVE(THREAD_EXITED); \
    ACCOUNT();                               \
    I = pop(x, t);                           \
    ENTER_FRAME();                           \
    DISPATCH()
#define CLOCK() (t->clock + count + (uint64_t)(I - start))
#define FAIL(code)          \
    do {                    \
        x->status = (code); \
        goto fail;          \
    } while (0)
#define LEAVE(new_state)     \
    do {                     \
        state = (new_state); \
        ACCOUNT();           \
        goto leave;          \
    } while (0)

enum thread_state exec_thread(struct exec *x, struct thread *t) {
    static const void *const labels[] = {
#define OP(name, ...) &&L_##name,
#include "ops.def"
#undef OP
    };
    const struct ins *I = t->pc, *start = I;
    const struct function *function = t->window->frames[t->depth].function;
    union slot *R = thread_registers(t);
    uint64_t count = 0, loads = 0, stores = 0;
    uint64_t slice = x->fuel < x->slice ? x->fuel : x->slice;
    enum thread_state state = THREAD_READY;
    x->local = t->window->local;
    x->local_base = t->window->frames[t->depth].local_base;
    DISPATCH();

#define OP(name, ...)           \
    L_##name : { __VA_ARGS__; } \
    I++;                        \
    DISPATCH();
#include "ops.def"
#undef OP

fail:
    state = THREAD_FAILED;
    x->failed_thread = t->index;
    ACCOUNT();
    goto leave;
preempted:
leave:
    t->pc = I;
    t->clock += count;
    t->state = state;
    x->fuel = x->fuel > count ? x->fuel - count : 0;
    x->stats.instructions += count;
    x->stats.loads += loads;
    x->stats.stores += stores;
    return state;
}
