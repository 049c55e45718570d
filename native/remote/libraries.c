/* The session's functions for stand-ins of libraries. See libraries.h. */
#define _GNU_SOURCE
#include "libraries.h"
#include "client.h"

static CUresult ready(void) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS && (result = cuInit(0)) != CUDA_SUCCESS) return result;
    if (context_current() != 0) return CUDA_SUCCESS;
    CUcontext primary;
    result = cuDevicePrimaryCtxRetain(&primary, 0);
    return result == CUDA_SUCCESS ? cuCtxSetCurrent(primary) : result;
}

static struct link *link_now(void) {
    uint64_t context = context_current();
    return context ? links[wire_server(context)] : links[0];
}

static void **info(uint64_t handle) {
    struct handle_entry *entry = handle_entry(handle);
    return entry == NULL ? NULL : &entry->info;
}

static_assert(WIRE_INDEX_BITS + 4 < 31, "a server and an index are an int");

static int number(uint64_t handle) {
    return (int)(wire_server(handle) << WIRE_INDEX_BITS | wire_index(handle));
}

static uint64_t numbered(int number) {
    unsigned server = (unsigned)number >> WIRE_INDEX_BITS;
    return number <= 0 || server >= link_count
               ? 0
               : links[server]->own[wire_index((uint64_t)number)].id;
}

static int device_of_server(int device, struct link **link) {
    unsigned local;
    struct link *found = link_of_device(device, &local);
    if (found == NULL) return -1;
    *link = found;
    return (int)local;
}

API extern const struct library_calls egpuLibraryCalls;
const struct library_calls egpuLibraryCalls = {
    .table = EGPU_WIRE_TABLE_HASH,
    .ready = ready,
    .link = link_now,
    .handle = call_handle,
    .new_handle = call_new_handle,
    .drop = handle_drop,
    .info = info,
    .number = number,
    .numbered = numbered,
    .begin = call_begin,
    .post = call_post,
    .exchange = call_exchange,
    .end = call_end,
    .copy_rows = cuMemcpy2DAsync_v2,
    .wait = cuStreamSynchronize,
    .allocate = cuMemAlloc_v2,
    .release = cuMemFree_v2,
    .context = context_current,
    .device = device_of_server,
};
