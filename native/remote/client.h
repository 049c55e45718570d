/* The remote client: a libcuda.so.1 without a GPU.
 *
 *   stubs.c    generated: encodes functions without special handling
 *   link.h     how calls reach a server and return
 *   handles.c  handles that programs hold instead of the driver's objects
 *   context.c  current contexts, streams per thread
 *   device.c   what a snapshot can answer
 *   memory.c   allocations; pinned.c host memory, pointer.c what a pointer is
 *   variable.c variables of modules and libraries whose addresses the program has
 *   copy.c     bytes; copy_volume.c in rows and slices
 *   module.c   images, functions
 *   launch.c   kernels
 *   stream.c   callbacks, events
 *   graph.c    graphs
 *   node.c     graph nodes whose parameters have pointers or handles
 *   room.c     the executor's memory for their copies of host memory
 *   capture.c  what streams write into graphs
 *   virtual.c  reserved address ranges that memory is mapped into
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
    void *info;       /* per kind: struct function, struct module, struct shadow_context */
    uint64_t context; /* where it was made; of a node: its graph */
};

struct shadow_context {
    int ordinal;
    _Atomic int error; /* of a kernel: this context is unusable until it is reset */
};

struct parameter {
    uint32_t offset, size;
};

struct function {
    uint64_t handle;  /* on the server */
    uint64_t library; /* of a kernel */
    char *name;
    uint32_t parameter_count, argument_bytes;
    bool opaque;                     /* the driver does not tell its parameters */
    _Atomic uint32_t max_threads;    /* 0: its limits are not known yet */
    _Atomic bool clusters;           /* not every grid is valid */
    _Atomic uint32_t largest_shared; /* dynamic shared memory that a launch has had */
    struct parameter *parameters;
};

struct module {
    uint32_t count;
    bool complete; /* all its functions are listed */
    /* handles: each is looked up, since a hostile executor may name one twice */
    uint64_t *functions;
    uint32_t derived_count;
    /* a library's modules and the functions of its kernels; they end when it is unloaded */
    uint64_t *derived;
};

/* ---- handles.c, context.c ---- */

bool handles_init(struct link *link);
struct handle_entry *handle_entry(uint64_t handle); /* NULL: forged or stale */
CUresult call_handle(struct call *call, unsigned kind, uint64_t handle, uint64_t *wire);
CUresult call_device(struct call *call, CUdevice ordinal, uint64_t *wire);
CUresult call_new_handle(struct call *call, unsigned kind, uint64_t *handle);
void handle_drop(uint64_t handle);
/* Drop the streams, events, modules and functions of a context, or the nodes of a graph, here and
 * on the server. */
void handles_end(uint64_t owner);
uint64_t handle_owner(uint64_t handle);          /* the graph of a node; a graph is its own */
void handle_belongs(uint64_t node, uint64_t of); /* to the graph, or to the graph of another node */
/* the current one for a default stream; 0: no such stream */
uint64_t stream_context(uint64_t stream);
static inline uint64_t handle_name(const struct link *link, uint64_t handle) {
    return wire_with_server(handle, link->index);
}
uint64_t handle_found(struct link *link, unsigned kind, uint64_t wire);

/* Every call reads it, hence initial-exec: no call of the loader is needed to find it. Its 8 bytes
 * come from the room that the loader keeps for libraries opened late. */
extern _Thread_local uint64_t context_now __attribute__((tls_model("initial-exec")));
static inline uint64_t context_current(void) { return context_now; }
void context_forget(uint64_t context);
CUresult context_error(void);         /* that of the current context */
void context_failed(CUresult result); /* note the result of a call in it */
CUresult context_needed(struct link **link);
CUstream thread_stream(CUstream stream);

void launches_choose(void); /* launch.c, by CUDA_LAUNCH_BLOCKING */

/* visible.c */
void visible_choose(void);    /* by CUDA_VISIBLE_DEVICES, of open leases */
unsigned visible_count(void); /* of the program's devices */
unsigned card_count(void);    /* of all cards of the leases */
struct link *link_of_card(unsigned card, unsigned *local);
struct link *link_of_device(CUdevice ordinal, unsigned *local);
/* The program's ordinal of a server's device, -1 if it is not visible. */
CUdevice ordinal_of(const struct link *link, unsigned local);

CUresult call_locate_CUmemLocation(struct call *call, const CUmemLocation *from, CUmemLocation *to);
CUresult call_locate_CUmemAllocationProp(struct call *call, const CUmemAllocationProp *from,
                                         CUmemAllocationProp *to);
CUresult call_locate_CUmemAccessDesc(struct call *call, const CUmemAccessDesc *from,
                                     CUmemAccessDesc *to);
CUresult call_locate_CUmemPoolProps(struct call *call, const CUmemPoolProps *from,
                                    CUmemPoolProps *to);

/* texture.c: translate the program's names to the executor's, and back. */
CUresult call_locate_CUDA_RESOURCE_DESC(struct call *call, const CUDA_RESOURCE_DESC *from,
                                        CUDA_RESOURCE_DESC *to);
void call_found_CUDA_RESOURCE_DESC(const struct call *call, CUDA_RESOURCE_DESC *resource);

/* Return the bytes of the value of a pool's attribute. */
static inline size_t attribute_bytes(int attribute) {
    return attribute >= 1 && attribute <= 3 ? 4 : 8;
}

/* ---- addresses.c ---- */

enum addresses { ADDRESSES_TAKEN, ADDRESSES_OF_OTHERS, ADDRESSES_UNKNOWN };
/* Only TAKEN addresses may be given back. OF_OTHERS: the program has memory there, or another
 * server's card has. */
enum addresses addresses_take(unsigned server, uint64_t base, uint64_t bytes);
void addresses_give(uint64_t base, uint64_t bytes);
bool addresses_of_program(uint64_t pointer); /* it has memory there */

/* ---- graph_memory.c ---- */

/* The same for memory of a graph, which is given back with the current context. */
enum addresses graph_memory_take(unsigned server, uint64_t base, uint64_t bytes);
void graph_memory_forget(uint64_t context);

/* ---- memory.c ---- */

enum allocation_kind { ALLOCATION_DEVICE = 1, ALLOCATION_PINNED, ALLOCATION_REGISTERED };

struct allocation {
    uint64_t base, bytes, context;
    struct link *link;
    enum allocation_kind kind;
    uint32_t flags;
    bool shared; /* host memory that the executor maps at the same address */
    bool taken;  /* its addresses are reserved in this process */
    /* of a variable: its module or library */
    uint64_t image;
};

bool allocation_find(const struct link *link, uint64_t pointer, struct allocation *out);
/* Return a context of another server than `link` if its card's memory is at the pointer; otherwise
 * NULL. */
CUcontext allocation_elsewhere(const struct link *link, uint64_t pointer);
bool allocation_add(struct allocation made);
void allocation_forget(const struct link *link, uint64_t base);
void variables_forget(uint64_t image);
bool variable_in_use(uint64_t pointer); /* a copy of our runtime in this thread names it */
static inline bool allocation_covers(const struct allocation *a, uint64_t pointer, size_t bytes) {
    return bytes <= a->bytes && pointer - a->base <= a->bytes - bytes;
}

/* ---- copy.c, array_copy.c ---- */

#define POSTED_BYTES (32u << 10)

/* Find the stream of a copy and its server. */
CUresult copy_place(CUstream stream, bool wait, struct where *where);
/* Return whether it points to memory of a card; used if nothing else decides where it points. */
bool on_device(CUdeviceptr pointer);
/* An array at one end at least; pitches and heights as given. */
CUresult array_copy(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait);
CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, bool wait);
CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait);
CUresult copy_rect(CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch,
                   size_t width, size_t rows, CUstream stream, bool wait);
/* Between cards, of contexts that may be NULL. */
CUresult copy_between(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes, CUstream stream, bool wait);
CUresult copy_unified(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait);

/* ---- module.c ---- */

CUresult function_of(uint64_t handle, struct function **function); /* of a function or a kernel */
/* the same, with its limits: the server's driver loads it for these */
CUresult function_limits(uint64_t handle, struct function **function);
struct function *function_read(struct link *link, unsigned kind,
                               struct reader *in); /* of a reply */
void function_free(struct function *function);
void module_free(struct module *module);
void library_derives(uint64_t library, uint64_t handle); /* a module, or a kernel's function */

CUresult not_supported(const char *what); /* reports it once */
/* Print a line that begins with `what`, a literal, once per process. */
void say_once(const char *what, const char *why);

/* ---- copy.c, launch.c ---- */

bool on_device(CUdeviceptr pointer);
bool mapped_there(const struct link *link, const void *host, size_t bytes);
/* Check that a kernel's arguments are all there, and pack them as the kernel declares them. */
CUresult kernel_arguments(const struct function *function, void **params, void **extra,
                          const void **buffer);
void pack_arguments(const struct function *function, void **params, const void *buffer,
                    uint8_t *to);

/* ---- room.c ---- */

/* Host memory that only this process has, in the layout of a graph's copy. */
struct host_volume {
    struct link *link;
    uint8_t *host;
    uint64_t pitch, height, width, rows, slices;
    uint64_t room; /* number of the executor's packed copy */
};
CUresult room_take(struct host_volume *volume); /* finds or makes its room */
void CUDA_CB room_fill(void *volume);           /* a graph calls these: from the program, */
void CUDA_CB room_empty(void *volume);          /* and to it */

/* ---- graph.c ---- */

CUresult call_handles(struct call *call, unsigned kind, const void *handles, size_t count,
                      uint64_t wire[WIRE_MAX_NODES]);
/* Write as many as fit into `room` of those that the driver `listed`; missing ones are NULL. */
void get_handles(struct call *call, unsigned kind, void *out, size_t room, size_t listed,
                 uint64_t owner);
void get_edges(struct call *call, CUgraphEdgeData *out, size_t room, size_t listed);
CUresult too_many_nodes(void); /* reports it once */

/* ---- capture.c ---- */

/* The calling thread's mode, and whether any thread has ever had another than the initial one. */
extern _Thread_local CUstreamCaptureMode capture_mode;
extern _Atomic bool capture_modes;
bool capturing(CUstream stream); /* its operations go into a graph instead of running now */
/* Write a copy from or to the program's memory into the graph that the stream captures. */
CUresult captured_copy(CUstream stream, const CUDA_MEMCPY3D *copy);

#include "generated/stubs.h"

#pragma GCC visibility pop
#endif
