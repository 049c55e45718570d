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
 *   graph.c    graphs
 *   node.c     nodes of graphs that have pointers or handles in them
 *   room.c     memory over there for what their copies have here
 *   capture.c  what streams write into graphs
 *   virtual.c  ranges of addresses that memory is mapped into
 *   lookup.c   cuInit, cuGetProcAddress, cuDriverGetVersion
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
    uint64_t context; /* that it was made in; of a node: its graph */
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
    _Atomic bool clusters;           /* not every grid does for it */
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
/* A context's streams, events, modules and functions, or a graph's nodes, are no more, here and
 * there. */
void handles_end(uint64_t owner);
uint64_t handle_owner(uint64_t handle);          /* the graph of a node; a graph is its own */
void handle_belongs(uint64_t node, uint64_t of); /* to the graph, or to that of another node */
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

/* texture.c: what the program names, as the executor calls it, and the other way. */
CUresult call_locate_CUDA_RESOURCE_DESC(struct call *call, const CUDA_RESOURCE_DESC *from,
                                        CUDA_RESOURCE_DESC *to);
void call_found_CUDA_RESOURCE_DESC(const struct call *call, CUDA_RESOURCE_DESC *resource);

/* Bytes that the value of a pool's attribute has. */
static inline size_t attribute_bytes(int attribute) {
    return attribute >= 1 && attribute <= 3 ? 4 : 8;
}

/* ---- addresses.c ---- */

enum addresses { ADDRESSES_TAKEN, ADDRESSES_OF_OTHERS, ADDRESSES_UNKNOWN };
/* Only what was TAKEN is to be given back. OF_OTHERS: the program has memory there, or a card of
 * another server. */
enum addresses addresses_take(unsigned server, uint64_t base, uint64_t bytes);
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
/* A context of another server than `link`, whose card's memory the pointer means; NULL: it does
 * not. */
CUcontext allocation_elsewhere(const struct link *link, uint64_t pointer);
static inline bool allocation_covers(const struct allocation *a, uint64_t pointer, size_t bytes) {
    return bytes <= a->bytes && pointer - a->base <= a->bytes - bytes;
}

/* ---- copy.c, array_copy.c ---- */

#define POSTED_BYTES (32u << 10)

/* The stream of a copy, and whose it is. */
CUresult copy_place(CUstream stream, bool wait, struct where *where);
/* It points to memory of a card, if nothing else says where it points. */
bool on_device(CUdeviceptr pointer);
CUresult captured_copy(void); /* says that it is not carried */
/* With an array at one end at least; pitches and heights as given. */
CUresult array_copy(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait);

/* ---- module.c ---- */

CUresult function_of(uint64_t handle, struct function **function); /* of a function or a kernel */
void function_free(struct function *function);
void module_free(struct module *module);

CUresult not_supported(const char *what); /* says so, once */

/* ---- copy.c, launch.c ---- */

bool on_device(CUdeviceptr pointer);
bool mapped_there(const struct link *link, const void *host, size_t bytes);
/* A kernel's arguments: whether they are all there; and as the kernel declares them. */
CUresult kernel_arguments(const struct function *function, void **params, void **extra,
                          const void **buffer);
void pack_arguments(const struct function *function, void **params, const void *buffer,
                    uint8_t *to);

/* ---- room.c ---- */

/* Host memory that only this process has, in the form of a graph's copy. */
struct host_volume {
    struct link *link;
    uint8_t *host;
    uint64_t pitch, height, width, rows, slices;
    uint64_t room; /* where the executor has it, packed */
};
CUresult room_take(struct host_volume *volume); /* finds or makes its room */
void CUDA_CB room_fill(void *volume);           /* calls of a graph: from the program, */
void CUDA_CB room_empty(void *volume);          /* and to it */

/* ---- graph.c ---- */

CUresult call_handles(struct call *call, unsigned kind, const void *handles, size_t count,
                      uint64_t wire[WIRE_MAX_NODES]);
/* Of what the driver `listed`, as much as there is `room` for; what is missing is NULL. */
void get_handles(struct call *call, unsigned kind, void *out, size_t room, size_t listed,
                 uint64_t owner);
void get_edges(struct call *call, CUgraphEdgeData *out, size_t room, size_t listed);
CUresult too_many_nodes(void); /* says so, once */

/* ---- capture.c ---- */

/* The calling thread's, and whether a thread has ever had another than all have at first. */
extern _Thread_local CUstreamCaptureMode capture_mode;
extern _Atomic bool capture_modes;
bool capturing(CUstream stream); /* what is asked of it is written into a graph, and not done now */

#include "stubs.h"

#pragma GCC visibility pop
#endif
