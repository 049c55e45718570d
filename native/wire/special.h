/* Operations whose parameters do not follow from the driver table. Each has a struct that starts
 * its payload. */
#ifndef EGPU_WIRE_SPECIAL_H
#define EGPU_WIRE_SPECIAL_H

#include "wire.h"

/* Our NVML uses the client's functions of devices. Its ordinals count all cards of the leases,
 * whatever CUDA_VISIBLE_DEVICES selects, and have this bit. */
#define WIRE_EVERY_CARD 0x40000000

/* COPY_IN: host to device. `bytes` of data follow. As in the following structs, wait = the call was
 * not an Async one. */
struct wire_copy_in {
    uint64_t to, stream;
    uint32_t bytes, wait;
};

/* COPY_OUT: device to host. The reply has `bytes` of data. */
struct wire_copy_out {
    uint64_t from, stream;
    uint32_t bytes, wait;
};

/* COPY_RECT_IN/_OUT: rows of a rectangle, packed on the wire. */
struct wire_copy_rows {
    uint64_t device, stream;
    uint64_t pitch;
    uint32_t width, rows, wait, zero;
};

/* COPY_RECT: within one device. */
struct wire_copy_rect {
    uint64_t to, to_pitch, from, from_pitch, width, rows, stream;
    uint32_t wait, zero;
};

/* COPY_ARRAY: within one device, with an array at one end at least. */
struct wire_end {
    uint64_t array;                     /* 0: memory */
    uint64_t address, pitch, row_count; /* memory: rows from one slice to the next */
    uint64_t x, y, z;                   /* bytes, rows, slices; the address of memory has them */
};
struct wire_copy_array {
    struct wire_end to, from;
    uint64_t width, rows, slices, stream;
    uint32_t wait, zero;
};

/* COPY_ARRAY_IN/_OUT: rows of a slice of an array, packed on the wire. */
struct wire_copy_array_rows {
    uint64_t array, stream;
    uint64_t x, y, z;
    uint32_t width, rows, wait, zero;
};

/* COPY_IN_SHARED, COPY_OUT_SHARED: the data is in the bulk area. */
struct wire_copy_shared {
    uint64_t device, stream;
    uint32_t bytes, wait;
    uint64_t offset;
};

/* COPY_HOST_IN, COPY_HOST_OUT: the data is in host memory that both processes map (HOST_MAP). */
struct wire_copy_host {
    uint64_t device, host, bytes, stream;
    uint32_t wait, zero;
};

/* IMAGE: part of a module's image; data follows. The last part completes it. */
struct wire_image {
    uint8_t digest[32];
    uint64_t total, offset;
    uint32_t bytes, zero;
};

/* MODULE_LOAD, LIBRARY_LOAD: of a known image, or of the `inline_bytes` that follow. Reply:
 * wire_loaded. */
struct wire_load {
    uint8_t digest[32];
    uint64_t total, handle;
    uint32_t inline_bytes, log_bytes; /* log_bytes: room for each log of the JIT */
};

/* Reply of a load. `known` = 0: send the image and ask again. Otherwise the functions follow, then
 * the logs as blocks (info, error). */
struct wire_loaded {
    uint32_t known, functions;
};

/* A function or kernel. Its name and `parameters` times {offset u32, size u32} follow. A load of
 * many does not say their limits, because a driver would load each of them for that: max_threads is
 * 0 then. `clusters`: not every grid is valid. `opaque`: the driver does not tell its parameters.
 */
struct wire_function {
    uint64_t handle;
    uint32_t parameters, max_threads;
    uint32_t clusters, opaque;
};
#define WIRE_MAX_FUNCTIONS 2048u
#define WIRE_FEW_FUNCTIONS 4u /* a load of at most so many says their limits */
#define WIRE_MAX_PARAMETERS 1024u

/* FUNCTION_INFO: asks for a wire_function about one handle, with its limits. */
struct wire_function_info {
    uint64_t handle;
};

enum { WIRE_LAUNCH_COOPERATIVE = 1, WIRE_LAUNCH_EX = 2 };

/* LAUNCH: attribute_count CUlaunchAttributes follow, then argument_bytes of arguments, packed as
 * the kernel declares them. */
struct wire_launch {
    uint64_t function, stream;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, flags;
    uint32_t attribute_count, argument_bytes;
};

/* CLUSTERS: cuOccupancyMaxPotentialClusterSize or cuOccupancyMaxActiveClusters for such a launch.
 * `attribute_count` CUlaunchAttributes follow. The reply: a u64. */
struct wire_clusters {
    uint64_t function;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, attribute_count;
    uint32_t largest, zero; /* largest: asks for the maximum blocks of a cluster */
};

/* VARIABLE: where a library's variable is, whose name follows. The reply: its address and its
 * bytes. The address holds until VARIABLE_DONE: a session does not move in between. */
struct wire_variable {
    uint64_t library;
};

/* TENSOR_MAP: cuTensorMapEncode… or cuTensorMapReplaceAddress. The reply: the map. Addresses are
 * the card's, and the driver only writes them down. */
#define WIRE_TENSOR_DIMENSIONS 5
#define WIRE_TENSOR_MAP_BYTES 128
enum { WIRE_TENSOR_TILED, WIRE_TENSOR_IM2COL, WIRE_TENSOR_IM2COL_WIDE, WIRE_TENSOR_ADDRESS };
struct wire_tensor_map {
    uint64_t address, sizes[WIRE_TENSOR_DIMENSIONS], strides[WIRE_TENSOR_DIMENSIONS];
    uint32_t form, type, rank, interleave, swizzle, promotion, fill, mode;
    uint32_t box[WIRE_TENSOR_DIMENSIONS], steps[WIRE_TENSOR_DIMENSIONS];
    int32_t lower[WIRE_TENSOR_DIMENSIONS], upper[WIRE_TENSOR_DIMENSIONS]; /* of a box of pixels */
    uint32_t channels, pixels;
    uint8_t map[WIRE_TENSOR_MAP_BYTES]; /* ADDRESS: the one to change */
};

/* NODE_ATTRIBUTE: cuGraphKernelNodeSetAttribute or cuGraphKernelNodeGetAttribute. The latter's
 * reply is the value. */
#define WIRE_ATTRIBUTE_BYTES 64
struct wire_node_attribute {
    uint64_t node;
    uint32_t which, set;
    uint8_t value[WIRE_ATTRIBUTE_BYTES];
};

/* HOST_CALLBACK: cuLaunchHostFunc or cuStreamAddCallback. The client runs callback `id` when
 * CALLBACK tells it to. */
struct wire_host_callback {
    uint64_t id, stream;
    uint32_t with_status, zero;
};

/* HOST_MAP: the memfd comes over the socket before this frame, in the same order. Both processes
 * map it at the same address, far from libraries and stacks. */
#ifdef __SANITIZE_THREAD__ /* ThreadSanitizer uses the usual range */
#define WIRE_HOST_LOWEST UINT64_C(0x7e8000000000)
#define WIRE_HOST_HIGHEST UINT64_C(0x7f0000000000)
#elif defined(__SANITIZE_ADDRESS__) /* so does AddressSanitizer */
#define WIRE_HOST_LOWEST UINT64_C(0x650000000000)
#define WIRE_HOST_HIGHEST UINT64_C(0x700000000000)
#else
#define WIRE_HOST_LOWEST UINT64_C(0x600000000000)
#define WIRE_HOST_HIGHEST UINT64_C(0x700000000000)
#endif
struct wire_host_map {
    uint64_t address, bytes;
    uint32_t flags, zero;
};
struct wire_host_unmap {
    uint64_t address;
};

/* DEVICE_STATUS: NVML's view of a card, limited to the slice. The reply: wire_device_status, then
 * `processes` times wire_process. */
struct wire_device_status_ask {
    uint32_t device, zero;
};
struct wire_device_status {
    uint64_t total, free, used;
    uint32_t gpu_percent, memory_percent;
    char driver[80];
    uint32_t processes, zero;
};
struct wire_process { /* pid: the client's own, from its HELLO */
    uint32_t pid, zero;
    uint64_t bytes;
};
#define WIRE_MAX_PROCESSES 256u

/* CAPTURE_INFO: the state of a stream's capture. The reply: wire_captured, then the nodes that the
 * next captured operation depends on, and an edge (8 bytes) to each. */
struct wire_capture_info {
    uint64_t stream;
};
struct wire_captured {
    uint32_t status, nodes;
    uint64_t id, graph;
};

/* CAPTURE_MODE: of the program's thread that makes the next calls (8 bytes, a CUstreamCaptureMode).
 * Like SET_CONTEXT it is numbered and has no reply. */

/* GRAPH_NODE: adds or changes a node. Its type's parameters follow; for a new node then its
 * dependencies, as a block. The reply for an allocation: its address. */
enum wire_node_how { WIRE_NODE_ADD, WIRE_NODE_SET, WIRE_NODE_SET_EXEC };
struct wire_node {
    uint32_t type, how;     /* type: a CUgraphNodeType */
    uint64_t graph;         /* or the graph_exec; 0: derived from the node */
    uint64_t node, context; /* context 0: the current one */
};

/* A kernel: wire_launch without stream and attributes, then the arguments. A call of the program:
 * the number of the callback. A fill: CUDA_MEMSET_NODE_PARAMS. */
struct wire_node_copy { /* pitches and heights are never 0 */
    uint64_t from, to;  /* device addresses, or host memory of both (HOST_MAP) */
    uint64_t from_pitch, from_height, to_pitch, to_height, width, rows, slices;
    uint32_t from_host, to_host;
    uint64_t room; /* replaces the host's address: packed, in this room */
};
struct wire_node_alloc { /* `accesses` CUmemAccessDescs follow a CUmemPoolProps */
    uint64_t bytes;
    uint32_t accesses, zero;
};

/* GRAPH_UPDATE: cuGraphExecUpdate. The reply is the same if it fails. */
struct wire_graph_update {
    uint64_t exec, graph;
};
struct wire_graph_updated {
    uint32_t result, zero;
    uint64_t node, from_node;
};

/* ROOM: pinned memory of the executor for copies of graphs whose host memory only the client has.
 * The reply: its number, from 1. It lasts as long as the session. */
struct wire_room {
    uint64_t bytes;
};
#define WIRE_ROOMS 4096u
#define WIRE_ROOM_BYTES (64u << 20) /* of a session */

/* ROOM_IN, ROOM_OUT: the contents of a room, at a graph's call of the program (see HOST_CALLBACK).
 * Data follows the first, and is the reply of the second. */
struct wire_room_part {
    uint64_t room, offset, bytes;
};

/* PRINTED: asks for the oldest output of kernels after a reply's pending word announced it. The
 * reply: its bytes. */
#define WIRE_MAX_PRINTED (64u << 10)

/* POINTER_ATTRIBUTE: reply: 8 bytes. */
struct wire_pointer_attribute {
    uint64_t pointer;
    uint32_t attribute, zero;
};

#endif
