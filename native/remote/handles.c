/* Handles that programs hold instead of the driver's objects: typed indexes with a generation.
 * wire.h has their bits. */
#define _GNU_SOURCE
#include "client.h"

#include <sys/mman.h>

bool handles_init(struct link *link) {
    size_t bytes = (size_t)WIRE_INDEXES * sizeof(struct handle_entry); /* touched only where used */
    link->own = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    link->found = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    link->next_index = 1;
    return link->own != MAP_FAILED && link->found != MAP_FAILED;
}

struct handle_entry *handle_entry(uint64_t handle) {
    unsigned server = wire_server(handle);
    if (server >= link_count) return NULL;
    struct handle_entry *table =
        wire_is_executors(handle) ? links[server]->found : links[server]->own;
    struct handle_entry *entry = &table[wire_index(handle)];
    return handle != 0 && entry->id == handle ? entry : NULL;
}

/* Return the driver's error for a value that is not a handle of this kind. */
static CUresult refused(unsigned kind) {
    switch (kind) {
    case KIND_context: return CUDA_ERROR_INVALID_CONTEXT;
    case KIND_graph:
    case KIND_graph_node:
    case KIND_pool:
    case KIND_allocation: return CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_HANDLE;
    }
}

CUresult call_handle(struct call *call, unsigned kind, uint64_t handle, uint64_t *wire) {
    if (kind == KIND_stream && handle <= 2) {
        if (handle == 2) handle = (uint64_t)(uintptr_t)thread_stream(NULL);
        if (handle <= 2) { /* the legacy default stream of the current context */
            *wire = 0;
            struct link *link;
            CUresult result = context_needed(&link);
            if (result == CUDA_SUCCESS && call->link == NULL) call->link = link;
            return result;
        }
    }
    *wire = 0;
    if (handle == 0 && kind == KIND_context)
        return context_current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    struct handle_entry *entry = handle_entry(handle);
    if (entry == NULL || !wire_kind_serves(wire_kind_of(handle), kind)) return refused(kind);
    struct link *link = links[wire_server(handle)];
    if (call->link != NULL && call->link != link) return refused(kind); /* of another server */
    call->link = link;
    *wire = wire_without_server(handle);
    return CUDA_SUCCESS;
}

CUresult call_new_handle(struct call *call, unsigned kind, uint64_t *handle) {
    uint64_t context = context_current();
    if (call->link == NULL) call->link = context ? links[wire_server(context)] : links[0];
    struct link *link = call->link;
    pthread_mutex_lock(&link->handle_lock);
    uint32_t index = link->free_count > 64 || link->next_index == WIRE_INDEXES
                         ? (link->free_count ? link->free_indexes[--link->free_count] : 0)
                         : link->next_index++;
    if (index != 0) {
        /* a free entry keeps its generation there */
        uint32_t generation = (uint32_t)(uintptr_t)link->own[index].info + 1;
        link->own[index] = (struct handle_entry){
            wire_with_server(wire_handle(kind, false, generation, index), link->index), NULL,
            context};
        *handle = wire_without_server(link->own[index].id);
    }
    pthread_mutex_unlock(&link->handle_lock);
    return index ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void free_info(uint64_t handle, void *info) {
    unsigned kind = wire_kind_of(handle);
    if (kind == KIND_module || kind == KIND_library) variables_forget(handle);
    if (info == NULL) return;
    switch (kind) {
    case KIND_module:
    case KIND_library: module_free(info); break;
    case KIND_function:
    case KIND_kernel: function_free(info); break;
    default: free(info);
    }
}

/* With or without the server in it: a handle that the program never got belongs to the server whose
 * table has it. */
void handle_drop(uint64_t handle) {
    struct handle_entry *entry = handle_entry(handle);
    for (unsigned i = 0; entry == NULL && i < link_count; i++)
        entry = handle_entry(wire_with_server(wire_without_server(handle), i));
    if (entry == NULL) return;
    uint64_t id = entry->id;
    struct link *link = links[wire_server(id)];
    pthread_mutex_lock(&link->handle_lock);
    void *info = entry->info;
    entry->id = 0;
    entry->info = wire_is_executors(id)
                      ? NULL
                      : (void *)(uintptr_t)(id >> WIRE_INDEX_BITS & (WIRE_GENERATIONS - 1));
    if (!wire_is_executors(id)) {
        if (link->free_count == link->free_room) {
            uint32_t room = link->free_room ? link->free_room * 2 : 256;
            uint32_t *grown = realloc(link->free_indexes, room * sizeof *grown);
            if (grown != NULL) {
                link->free_indexes = grown;
                link->free_room = room;
            }
        }
        if (link->free_count < link->free_room)
            link->free_indexes[link->free_count++] = wire_index(id);
    }
    pthread_mutex_unlock(&link->handle_lock);
    free_info(id, info);
}

static bool ends_with(unsigned owner, unsigned kind) {
    return owner == KIND_graph ? kind == KIND_graph_node
                               : kind == KIND_stream || kind == KIND_event || kind == KIND_module;
}

void handles_end(uint64_t owner) {
    struct link *link = links[wire_server(owner)];
    for (uint32_t index = 1; index < link->next_index; index++) {
        uint64_t id = link->own[index].id;
        if (id != 0 && link->own[index].context == owner &&
            ends_with(wire_kind_of(owner), wire_kind_of(id)))
            handle_drop(id);
    }
}

uint64_t handle_owner(uint64_t handle) {
    struct handle_entry *entry = handle_entry(handle);
    return entry != NULL && wire_kind_of(handle) == KIND_graph_node ? entry->context : handle;
}

void handle_belongs(uint64_t node, uint64_t of) {
    struct handle_entry *entry = handle_entry(node);
    if (entry != NULL) entry->context = handle_owner(of);
}

uint64_t stream_context(uint64_t stream) {
    if (stream <= 2) return context_current();
    struct handle_entry *entry = handle_entry(stream);
    return entry == NULL || wire_kind_of(stream) != KIND_stream ? 0 : entry->context;
}

/* Note a handle that the executor chose. Information about an older one in its place is dropped. */
uint64_t handle_found(struct link *link, unsigned kind, uint64_t wire) {
    if (wire == 0 || wire_kind_of(wire) != kind) return 0;
    uint64_t handle = wire_with_server(wire_without_server(wire), link->index);
    if (!wire_is_executors(wire)) return handle_entry(handle) != NULL ? handle : 0;
    struct handle_entry *entry = &link->found[wire_index(wire)];
    if (entry->id == handle) return handle;
    void *old = entry->info;
    uint64_t id = entry->id;
    *entry = (struct handle_entry){handle, NULL, context_current()};
    free_info(id, old);
    return handle;
}
