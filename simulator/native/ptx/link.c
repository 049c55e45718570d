/* Steps after the text is read: addresses of variables, the call graph of each kernel, stacks and
 * shared memory. */
#include "parse.h"

#include <string.h>

/* Recursion has no static depth; it gets this much beyond the longest path without it. */
enum { RECURSION_SLOTS = 16 * 1024, RECURSION_BYTES = 64 * 1024, RECURSION_FRAMES = 1024 };
#define MAX_IMAGE_BYTES (UINT64_C(1) << 36)

static uint64_t up(uint64_t value, uint64_t align) { return (value + align - 1) & ~(align - 1); }

static void place_variables(struct parser *p) {
    egpu_ptx_module *m = p->module;
    uint64_t size = 0;
    m->globals = allocate(p, m->variable_count * sizeof *m->globals);
    for (uint32_t i = 0; i < m->variable_count; i++) {
        struct variable *v = m->variables[i];
        if (v->kind == VAR_SHARED) continue;
        if (v->external) {
            p->statement_line = v->line;
            fail(p, EGPU_PTX_UNRESOLVED, "the extern variable '%s' is not defined", v->name);
        }
        /* larger than needed: bulk copies are aligned then */
        size = up(size, v->align < 16 ? 16 : v->align);
        v->address = size;
        size += v->size;
        if (size > MAX_IMAGE_BYTES)
            fail(p, EGPU_PTX_NO_MEMORY, "the module's variables need more than 64 GiB");
    }
    if (size) {
        void *host = NULL;
        if (!m->allocator.alloc ||
            !m->allocator.alloc(m->allocator.ctx, size, 4096, &m->image_address, &host))
            fail(p, EGPU_PTX_NO_MEMORY, "no device memory for %llu bytes of module variables",
                 (unsigned long long)size);
        m->image_host = host;
        m->image_size = size;
    }
    for (uint32_t i = 0; i < m->variable_count; i++) {
        struct variable *v = m->variables[i];
        if (v->kind == VAR_SHARED) continue;
        if (v->init) memcpy(m->image_host + v->address, v->init, v->size);
        v->address += m->image_address;
        m->globals[m->global_count++] =
            (egpu_ptx_global){v->name, v->address, v->size, v->kind == VAR_CONST};
    }
    for (uint32_t i = 0; i < p->data_relocs.count; i++) {
        const struct data_reloc *r = &p->data_relocs.items[i];
        uint64_t address = r->target->address + r->addend;
        memcpy(m->image_host + (r->holder->address - m->image_address) + r->offset, &address,
               r->bytes);
    }
}

/* Functions of the card's driver, which no module defines. Sizes of the return value (0: none) and
 * of parameters in bytes. */
static const struct builtin {
    const char *name;
    enum op op;
    uint32_t result, params;
    uint32_t sizes[5];
} builtins[] = {
    {"vprintf", OP_vprintf, 4, 2, {8, 8}}, {"__assertfail", OP_assertfail, 0, 5, {8, 8, 4, 8, 8}},
    {"malloc", OP_malloc, 8, 1, {8}},      {"__nv_aligned_device_malloc", OP_malloc, 8, 2, {8, 8}},
    {"free", OP_free, 0, 1, {8}},
};

static const struct builtin *builtin_named(struct parser *p, const struct function *f) {
    const struct builtin *b = builtins, *end = b + sizeof builtins / sizeof *builtins;
    while (b < end && strcmp(f->name, b->name) != 0) b++;
    if (b == end) fail(p, EGPU_PTX_UNRESOLVED, "the function '%s' is not defined", f->name);
    bool fits = f->param_count == b->params && f->return_count == (b->result != 0);
    for (uint32_t i = 0; fits && i < b->params; i++)
        fits = f->params[i].in_register || f->params[i].size == b->sizes[i];
    for (uint32_t i = 0; fits && i < f->return_count; i++)
        fits = f->returns[i].in_register || f->returns[i].size == b->result;
    if (!fits) syntax(p, "'%s' is declared with the wrong parameters", f->name);
    return b;
}

static void check_calls(struct parser *p, struct function *f) {
    for (uint32_t i = 0; i < f->code_count; i++) {
        if (f->code[i].op != OP_call) continue;
        const struct call_site *site = &f->calls[f->code[i].imm];
        if (!site->callee) continue;
        struct function *callee = site->callee;
        p->statement_line = f->lines[i];
        if (!callee->defined) {
            enum op op = builtin_named(p, callee)->op;
            bool heap = op == OP_malloc || op == OP_free;
            f->code[i].op = (uint16_t)op;
            f->allocates = f->allocates || heap;
            f->prints = f->prints || !heap;
        }
        if (callee->entry) unsupported(p, "a call of the kernel '%s'", callee->name);
        if (callee->param_count != site->args || callee->return_count != site->returns)
            syntax(p, "'%s' takes %u parameters and returns %u values", callee->name,
                   callee->param_count, callee->return_count);
        for (uint32_t k = 0; k < site->returns + site->args; k++) {
            const struct formal *formal =
                k < site->returns ? &callee->returns[k] : &callee->params[k - site->returns];
            if (formal->in_register != site->actuals[k].in_register ||
                formal->size != site->actuals[k].size)
                syntax(p, "the call of '%s' does not fit its parameter '%s'", callee->name,
                       formal->name);
        }
    }
}

struct walk {
    struct parser *p;
    egpu_ptx_kernel *kernel;
    LIST(struct function *) reachable;
    LIST(struct variable *) shared;
    bool recursive;
    uint32_t depth;
    uint32_t *slots, *bytes, *frames; /* per function: the deepest call chain from it */
};

enum { UNSEEN, ON_PATH, DONE };

static void visit(struct walk *w, struct function *f);

static void visit_callee(struct walk *w, struct function *f, struct function *callee) {
    if (callee->visit == ON_PATH) {
        w->recursive = true;
        return;
    }
    visit(w, callee);
    uint32_t slots = f->slot_count + w->slots[callee->index],
             bytes = f->frame_bytes + w->bytes[callee->index];
    if (slots > w->slots[f->index]) w->slots[f->index] = slots;
    if (bytes > w->bytes[f->index]) w->bytes[f->index] = bytes;
    if (w->frames[callee->index] + 1 > w->frames[f->index])
        w->frames[f->index] = w->frames[callee->index] + 1;
}

static void visit(struct walk *w, struct function *f) {
    struct parser *p = w->p;
    if (f->visit == DONE) return;
    if (++w->depth > 2000) unsupported(p, "calls nested more than 2000 deep");
    f->visit = ON_PATH;
    APPEND(p, w->reachable, f);
    w->slots[f->index] = f->slot_count;
    w->bytes[f->index] = f->frame_bytes;
    w->frames[f->index] = 1;
    w->kernel->info.prints = w->kernel->info.prints || f->prints;
    w->kernel->info.allocates = w->kernel->info.allocates || f->allocates;
    for (uint32_t i = 0; i < f->special_count; i++)
        if (f->specials[i].which >= SR_RESERVED_SMEM_BEGIN &&
            f->specials[i].which <= SR_RESERVED_SMEM_SECOND)
            w->kernel->reserved_shared = true;
    for (uint32_t i = 0; i < f->shared_count; i++) {
        bool known = false;
        for (uint32_t k = 0; k < w->shared.count; k++)
            known = known || w->shared.items[k] == f->shared[i];
        if (!known) APPEND(p, w->shared, f->shared[i]);
    }
    for (uint32_t i = 0; i < f->call_count; i++) {
        if (f->calls[i].callee) {
            if (f->calls[i].callee->defined) visit_callee(w, f, f->calls[i].callee);
            continue;
        }
        /* through a pointer: any of them may be called */
        for (uint32_t k = 0; k < p->module->function_count; k++)
            if (p->module->functions[k]->defined && !p->module->functions[k]->entry)
                visit_callee(w, f, p->module->functions[k]);
    }
    f->visit = DONE;
    w->depth--;
}

static void link_kernel(struct parser *p, egpu_ptx_kernel *kernel) {
    egpu_ptx_module *m = p->module;
    struct walk w = {.p = p, .kernel = kernel};
    size_t each = (m->function_count + 1) * sizeof(uint32_t);
    w.slots = allocate(p, each), w.bytes = allocate(p, each), w.frames = allocate(p, each);
    for (uint32_t i = 0; i < m->function_count; i++) m->functions[i]->visit = UNSEEN;
    visit(&w, kernel->function);
    uint32_t root = kernel->function->index;
    kernel->module = m;
    kernel->reachable = keep(p, w.reachable.items, w.reachable.count, sizeof *w.reachable.items);
    kernel->reachable_count = w.reachable.count;
    kernel->stack_slots = w.slots[root] + (w.recursive ? RECURSION_SLOTS : 0);
    kernel->stack_bytes = w.bytes[root] + (w.recursive ? RECURSION_BYTES : 0);
    kernel->stack_frames = w.frames[root] + 1 + (w.recursive ? RECURSION_FRAMES : 0);
    kernel->info.local_bytes = w.bytes[root];

    /* Static arrays in order of use, then the one whose size the launch sets. */
    kernel->shared = keep(p, w.shared.items, w.shared.count, sizeof *w.shared.items);
    kernel->shared_offsets = allocate(p, w.shared.count * sizeof(uint32_t));
    kernel->shared_count = w.shared.count;
    uint64_t bytes = 0, dynamic_align = 16;
    for (uint32_t i = 0; i < w.shared.count; i++) {
        struct variable *v = kernel->shared[i];
        if (v->external) {
            kernel->info.dynamic_shared = true;
            dynamic_align = v->align > dynamic_align ? v->align : dynamic_align;
            continue;
        }
        bytes = up(bytes, v->align);
        kernel->shared_offsets[i] = (uint32_t)bytes;
        bytes += v->size;
        if (bytes > 1 << 20)
            unsupported(p, "more than 1 MiB of shared memory in '%s'", kernel->info.name);
    }
    if (kernel->info.dynamic_shared) bytes = up(bytes, dynamic_align);
    for (uint32_t i = 0; i < w.shared.count; i++)
        if (kernel->shared[i]->external) kernel->shared_offsets[i] = (uint32_t)bytes;
    kernel->info.static_shared_bytes = (uint32_t)bytes;

    /* Of those that share no slot, typically a third live at once in compiled code. */
    uint32_t estimate = 8 + align_up(kernel->function->register_words / 3, 8);
    kernel->info.registers = estimate > 255 ? 255 : estimate;
    kernel->info.ptx_version = m->ptx_version;
    kernel->info.target = m->target;
}

void link_module(struct parser *p) {
    egpu_ptx_module *m = p->module;
    m->functions = keep(p, p->functions.items, p->functions.count, sizeof *p->functions.items);
    m->function_count = p->functions.count;
    m->variables = keep(p, p->variables.items, p->variables.count, sizeof *p->variables.items);
    m->variable_count = p->variables.count;
    m->kernels = keep(p, p->kernels.items, p->kernels.count, sizeof *p->kernels.items);
    m->kernel_count = p->kernels.count;
    for (uint32_t i = 0; i < m->function_count; i++) check_calls(p, m->functions[i]);
    p->statement_line = 0;
    for (uint32_t i = 0; i < m->kernel_count; i++) link_kernel(p, &m->kernels[i]);
    place_variables(p); /* last: no step can fail once device memory is held */
    for (uint32_t i = 0; i < m->function_count; i++) {
        struct function *f = m->functions[i];
        for (uint32_t r = 0; r < f->reloc_count; r++)
            if (f->relocs[r].target->kind != VAR_SHARED)
                f->constants[f->relocs[r].slot].u64 =
                    f->relocs[r].target->address + f->relocs[r].addend;
    }
    for (uint32_t i = 0; i < m->kernel_count; i++) /* known only now */
        for (uint32_t k = 0; k < m->global_count; k++)
            if (m->globals[k].constant)
                m->kernels[i].info.const_bytes += (uint32_t)m->globals[k].size;
}

/* ---- queries of the loaded module ---- */

void egpu_ptx_unload(egpu_ptx_module *module) {
    if (!module) return;
    if (module->image_size && module->allocator.release)
        module->allocator.release(module->allocator.ctx, module->image_address, module->image_size);
    arena_free(module->arena);
}

size_t egpu_ptx_kernel_count(const egpu_ptx_module *module) { return module->kernel_count; }

const egpu_ptx_kernel *egpu_ptx_kernel_at(const egpu_ptx_module *module, size_t index) {
    return index < module->kernel_count ? &module->kernels[index] : NULL;
}

const egpu_ptx_kernel *egpu_ptx_find_kernel(const egpu_ptx_module *module, const char *name) {
    for (uint32_t i = 0; i < module->kernel_count; i++)
        if (strcmp(module->kernels[i].info.name, name) == 0) return &module->kernels[i];
    return NULL;
}

const egpu_ptx_kernel_info *egpu_ptx_kernel_describe(const egpu_ptx_kernel *kernel) {
    return &kernel->info;
}

size_t egpu_ptx_global_count(const egpu_ptx_module *module) { return module->global_count; }

const egpu_ptx_global *egpu_ptx_global_at(const egpu_ptx_module *module, size_t index) {
    return index < module->global_count ? &module->globals[index] : NULL;
}

const egpu_ptx_global *egpu_ptx_find_global(const egpu_ptx_module *module, const char *name) {
    for (uint32_t i = 0; i < module->global_count; i++)
        if (strcmp(module->globals[i].name, name) == 0) return &module->globals[i];
    return NULL;
}
