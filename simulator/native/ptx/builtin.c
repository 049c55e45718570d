/* Calls of functions that no module defines, and those of the heap: malloc, new, free, delete. */
#include "exec.h"

#include <string.h>

static const struct call_site *site_of(const struct thread *t, const struct ins *at) {
    return &t->window->frames[t->depth].function->calls[at->imm];
}

uint64_t actual_value(const struct exec *x, const struct thread *t, const struct ins *at,
                      unsigned which) {
    const struct call_site *site = site_of(t, at);
    const struct actual *a = &site->actuals[site->returns + which];
    if (a->in_register) return thread_registers(t)[a->slot].u64;
    uint64_t value = 0;
    memcpy(&value, x->local + x->local_base + a->offset, a->size);
    return value;
}

void return_value(const struct exec *x, const struct thread *t, const struct ins *at,
                  uint64_t value) {
    const struct call_site *site = site_of(t, at);
    const struct actual *to = &site->actuals[0];
    if (!site->returns) return;
    if (to->in_register)
        thread_registers(t)[to->slot].u64 = value;
    else
        memcpy(x->local + x->local_base + to->offset, &value, to->size);
}

void allocate_call(struct exec *x, struct thread *t, const struct ins *at) {
    const egpu_ptx_launch *launch = x->launch;
    uint64_t size = actual_value(x, t, at, 0), align = 16, address = 0;
    if (site_of(t, at)->args > 1) align = actual_value(x, t, at, 1);
    bool power_of_two = align && !(align & (align - 1));
    if (launch->heap && power_of_two)
        address = launch->heap->allocate(launch->check_ctx, size, align);
    return_value(x, t, at, address);
}

bool free_call(struct exec *x, struct thread *t, const struct ins *at) {
    const egpu_ptx_launch *launch = x->launch;
    uint64_t address = actual_value(x, t, at, 0);
    if (!address || (launch->heap && launch->heap->release(launch->check_ctx, address)))
        return true;
    refuse(x, EGPU_PTX_ILLEGAL_ADDRESS, address, 0, true);
    return false;
}
