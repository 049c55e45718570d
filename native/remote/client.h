/* The remote client: a libcuda.so.1 that has no GPU. Who is who:
 *
 *   stubs.c    generated: encodes what needs no thought
 *   link.h     how calls get to a server and back
 *   handles.c  what programs hold instead of the driver's objects
 *   context.c  current contexts, streams per thread
 *   device.c   what a snapshot can answer
 *   memory.c   allocations, host memory, pointers
 *   copy.c     bytes
 *   module.c   images, functions
 *   launch.c   kernels
 *   stream.c   callbacks, events
 *   capture.c  what streams write into graphs
 *   lookup.c   cuInit, cuGetProcAddress
 */
#ifndef EGPU_REMOTE_CLIENT_H
#define EGPU_REMOTE_CLIENT_H

#include <stdlib.h>

#include "link.h"
#include "special.h"

#pragma GCC visibility push(hidden)

#define API __attribute__((visibility("default")))

struct device {
    struct wire_device is;
    int32_t attributes[WIRE_ATTRIBUTES];
};

struct handle_entry {
    uint64_t id;      /* 0: free */
    void *info;       /* of its kind: struct function, struct module, struct shadow_context */
    uint64_t context; /* that it was made in */
};

struct shadow_context {
    int ordinal;
    _Atomic int error; /* of a kernel: nothing goes on in this context until it is reset */
};

struct parameter {
    uint32_t offset, size;
};

struct function {
    uint64_t handle;  /* with the server */
    uint64_t library; /* of a kernel */
    char *name;
    uint32_t max_threads, parameter_count, argument_bytes;
    _Atomic uint32_t largest_shared; /* dynamic shared memory that a launch has had */
    struct parameter *parameters;
};

struct module {
    uint32_t count;
    bool complete; /* all its functions are listed */
    /* handles: what they stand for is looked up, since a hostile executor may name one twice */
    uint64_t *functions;
    uint32_t derived_count;
    uint64_t *derived; /* functions of a library's kernels, which are no more when it is unloaded */
};

/* ---- handles.c, context.c ---- */

bool handles_init(struct link *link);
struct handle_entry *handle_entry(uint64_t handle); /* NULL: forged or stale */
CUresult call_handle(struct call *call, unsigned kind, uint64_t handle, uint64_t *wire);
CUresult call_device(struct call *call, CUdevice ordinal, uint64_t *wire);
CUresult call_new_handle(struct call *call, unsigned kind, uint64_t *handle);
void handle_drop(uint64_t handle);
/* its streams, events, modules and functions are no more, here and there */
void handles_end(uint64_t context);
/* the current one for a default stream; 0: there is no such stream */
uint64_t stream_context(uint64_t stream);
static inline uint64_t handle_name(const struct link *link, uint64_t handle) {
    return wire_with_server(handle, link->index);
}
uint64_t handle_found(struct link *link, unsigned kind, uint64_t wire);

/* Read by every call, hence initial-exec: no call of the loader is needed to find it. Its 8 bytes
 * come from the room that the loader keeps for libraries that are opened late. */
extern _Thread_local uint64_t context_now __attribute__((tls_model("initial-exec")));
static inline uint64_t context_current(void) { return context_now; }
void context_forget(uint64_t context);
CUresult context_error(void);         /* that of the current context */
void context_failed(CUresult result); /* what a call in it ended with */
CUresult context_needed(struct link **link);
CUstream thread_stream(CUstream stream);
struct link *link_of_device(CUdevice ordinal, unsigned *local);

CUresult call_locate_CUmemLocation(struct call *call, const CUmemLocation *from, CUmemLocation *to);
CUresult call_locate_CUmemAllocationProp(struct call *call, const CUmemAllocationProp *from,
                                         CUmemAllocationProp *to);
CUresult call_locate_CUmemAccessDesc(struct call *call, const CUmemAccessDesc *from,
                                     CUmemAccessDesc *to);
CUresult call_locate_CUmemPoolProps(struct call *call, const CUmemPoolProps *from,
                                    CUmemPoolProps *to);

/* Bytes that the value of a pool's attribute (or of a device's graph memory) has. */
static inline size_t attribute_bytes(int attribute) {
    return attribute >= 1 && attribute <= 3 ? 4 : 8;
}

/* ---- addresses.c ---- */

enum addresses { ADDRESSES_TAKEN, ADDRESSES_OF_PROGRAM, ADDRESSES_UNKNOWN };
/* Only what was TAKEN is to be given back. OF_PROGRAM: it has memory there. */
enum addresses addresses_take(uint64_t base, uint64_t bytes);
void addresses_give(uint64_t base, uint64_t bytes);
bool addresses_of_program(uint64_t pointer); /* it has memory there */

/* ---- memory.c ---- */

enum allocation_kind { ALLOCATION_DEVICE = 1, ALLOCATION_PINNED, ALLOCATION_REGISTERED };

struct allocation {
    uint64_t base, bytes, context;
    struct link *link;
    enum allocation_kind kind;
    uint32_t flags;
    bool shared; /* host memory that the executor maps at the same address */
    bool taken;  /* its addresses, in this process */
};

bool allocation_find(const struct link *link, uint64_t pointer, struct allocation *out);
static inline bool allocation_covers(const struct allocation *a, uint64_t pointer, size_t bytes) {
    return bytes <= a->bytes && pointer - a->base <= a->bytes - bytes;
}

/* ---- module.c ---- */

CUresult function_of(uint64_t handle, struct function **function); /* of a function or a kernel */
void function_free(struct function *function);
void module_free(struct module *module);

CUresult not_supported(const char *what); /* says so, once */

/* ---- capture.c ---- */

bool capturing(CUstream stream); /* what is asked of it is written into a graph, and not done now */

#include "stubs.h"

#pragma GCC visibility pop
#endif
