/* Operations whose parameters do not follow from the driver table: one struct each, which begins
 * the payload. */
#ifndef EGPU_WIRE_SPECIAL_H
#define EGPU_WIRE_SPECIAL_H

#include "wire.h"

/* COPY_IN: host to device. `bytes` of data follow. stream and wait as in the struct: wait = the
 * call was not an Async one. */
struct wire_copy_in {
    uint64_t to, stream;
    uint32_t bytes, wait;
};

/* COPY_OUT: device to host; the reply carries `bytes` of data. */
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

/* COPY_RECT: within the device. */
struct wire_copy_rect {
    uint64_t to, to_pitch, from, from_pitch, width, rows, stream;
    uint32_t wait, zero;
};

/* COPY_ARRAY: within the device, where one end at least is an array. */
struct wire_end {
    uint64_t array;                     /* 0: memory */
    uint64_t address, pitch, row_count; /* of memory: rows from one slice to the next */
    uint64_t x, y, z;                   /* bytes, rows, slices; of memory they are in the address */
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

/* COPY_IN_SHARED, COPY_OUT_SHARED: the data are in the bulk area. */
struct wire_copy_shared {
    uint64_t device, stream;
    uint32_t bytes, wait;
    uint64_t offset;
};

/* COPY_HOST_IN, COPY_HOST_OUT: the data are in host memory that both processes map (HOST_MAP). */
struct wire_copy_host {
    uint64_t device, host, bytes, stream;
    uint32_t wait, zero;
};

/* IMAGE: a part of a module's image; data follow. The last part completes it. */
struct wire_image {
    uint8_t digest[32];
    uint64_t total, offset;
    uint32_t bytes, zero;
};

/* MODULE_LOAD, LIBRARY_LOAD: of a known image, or of the `inline_bytes` that follow. The reply: see
 * wire_loaded. */
struct wire_load {
    uint8_t digest[32];
    uint64_t total, handle;
    uint32_t inline_bytes, log_bytes; /* log_bytes: room for each of the JIT's logs */
};

/* Reply of a load: `known` = 0: send the image and ask again. Otherwise functions follow, then the
 * logs as blocks (info, error). */
struct wire_loaded {
    uint32_t known, functions;
};

/* A function or kernel: then its name as a string and `parameters` times {offset u32, size u32}. */
struct wire_function {
    uint64_t handle;
    uint32_t parameters, max_threads;
    uint32_t clusters, zero; /* clusters: not every grid does for it */
};
#define WIRE_MAX_FUNCTIONS 2048u
#define WIRE_MAX_PARAMETERS 1024u

/* FUNCTION_INFO: asks for the above about one handle. */
struct wire_function_info {
    uint64_t handle;
};

enum { WIRE_LAUNCH_COOPERATIVE = 1, WIRE_LAUNCH_EX = 2 };

/* LAUNCH: then attribute_count CUlaunchAttributes and argument_bytes of arguments, packed as the
 * kernel declares them. */
struct wire_launch {
    uint64_t function, stream;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, flags;
    uint32_t attribute_count, argument_bytes;
};

/* CLUSTERS: cuOccupancyMaxPotentialClusterSize or cuOccupancyMaxActiveClusters of such a launch;
 * `attribute_count` CUlaunchAttributes follow. The reply: a u64. */
struct wire_clusters {
    uint64_t function;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes, attribute_count;
    uint32_t largest, zero; /* largest: how many blocks a cluster may have */
};

/* NODE_ATTRIBUTE: cuGraphKernelNodeSetAttribute or cuGraphKernelNodeGetAttribute. The reply to that
 * is the value. */
#define WIRE_ATTRIBUTE_BYTES 64
struct wire_node_attribute {
    uint64_t node;
    uint32_t which, set;
    uint8_t value[WIRE_ATTRIBUTE_BYTES];
};

/* HOST_CALLBACK: cuLaunchHostFunc or cuStreamAddCallback; the client runs callback `id` when
 * CALLBACK says so. */
struct wire_host_callback {
    uint64_t id, stream;
    uint32_t with_status, zero;
};

/* HOST_MAP: the memfd comes over the socket, before this frame, in the same order. It lies at the
 * same address in both processes, far from where libraries and stacks are. */
#ifdef __SANITIZE_THREAD__ /* there ThreadSanitizer keeps its own */
#define WIRE_HOST_LOWEST UINT64_C(0x7e8000000000)
#define WIRE_HOST_HIGHEST UINT64_C(0x7f0000000000)
#elif defined(__SANITIZE_ADDRESS__) /* and AddressSanitizer its own */
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

/* DEVICE_STATUS: what NVML says of a card, as the slice sees it. The reply: wire_device_status,
 * then `processes` times wire_process. */
struct wire_device_status_ask {
    uint32_t device, zero;
};
struct wire_device_status {
    uint64_t total, free, used;
    uint32_t gpu_percent, memory_percent;
    char driver[80];
    uint32_t processes, zero;
};
struct wire_process { /* pid: the client's own, as its HELLO said */
    uint32_t pid, zero;
    uint64_t bytes;
};
#define WIRE_MAX_PROCESSES 256u

/* CAPTURE_INFO: what a stream is writing. The reply: wire_captured, then the nodes that what comes
 * next will follow, and an edge (8 bytes) to each. */
struct wire_capture_info {
    uint64_t stream;
};
struct wire_captured {
    uint32_t status, nodes;
    uint64_t id, graph;
};

/* CAPTURE_MODE: that of the program's thread whose calls follow (8 bytes, a CUstreamCaptureMode).
 * As SET_CONTEXT it is numbered and has no reply. */

/* GRAPH_NODE: adds a node or changes one. Parameters of its type follow; of one that is added, then
 * the nodes that it comes after, as a block. The reply of an allocation: its address. */
enum wire_node_how { WIRE_NODE_ADD, WIRE_NODE_SET, WIRE_NODE_SET_EXEC };
struct wire_node {
    uint32_t type, how;     /* type: a CUgraphNodeType */
    uint64_t graph;         /* or the graph_exec; 0 where the node says it */
    uint64_t node, context; /* context 0: the current one */
};

/* A kernel: wire_launch without a stream and attributes, and the arguments. A call of the program:
 * the number of the callback. A fill: CUDA_MEMSET_NODE_PARAMS. */
struct wire_node_copy { /* pitches and heights are never 0 */
    uint64_t from, to;  /* device addresses, or in host memory of both (HOST_MAP) */
    uint64_t from_pitch, from_height, to_pitch, to_height, width, rows, slices;
    uint32_t from_host, to_host;
    uint64_t room; /* instead of the host's address: packed, in a room of this number */
};
struct wire_node_alloc { /* `accesses` CUmemAccessDescs follow a CUmemPoolProps */
    uint64_t bytes;
    uint32_t accesses, zero;
};

/* GRAPH_UPDATE: cuGraphExecUpdate. The reply, also of one that fails. */
struct wire_graph_update {
    uint64_t exec, graph;
};
struct wire_graph_updated {
    uint32_t result, zero;
    uint64_t node, from_node;
};

/* ROOM: pinned memory of the executor's for copies of graphs whose host memory only the client has.
 * The reply: its number, from 1. It stays for the session. */
struct wire_room {
    uint64_t bytes;
};
#define WIRE_ROOMS 4096u
#define WIRE_ROOM_BYTES (64u << 20) /* all of them */

/* ROOM_IN, ROOM_OUT: what is in one, from where a graph is (see HOST_CALLBACK). Data follow the
 * first, and are the reply of the second. */
struct wire_room_part {
    uint64_t room, offset, bytes;
};

/* PRINTED: the oldest of what kernels have printed, once the pending word of a reply says that
 * there is something. The reply: its bytes. */
#define WIRE_MAX_PRINTED (64u << 10)

/* POINTER_ATTRIBUTE: reply: 8 bytes. */
struct wire_pointer_attribute {
    uint64_t pointer;
    uint32_t attribute, zero;
};

#endif
