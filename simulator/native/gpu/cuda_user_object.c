/* User objects and their references from graphs. Implementation: user_object.c. */
#include "cuda_api.h"
#include "graph.h"

#include <limits.h>

#define NEED_USER_OBJECT(name, handle)                                                 \
    NEED_INIT();                                                                       \
    if (handle_kind_of(handle) != HANDLE_USER_OBJECT) return CUDA_ERROR_INVALID_VALUE; \
    struct user_object *name = (struct user_object *)(handle)
#define NEED_COUNT(count) NEED((count) > 0 && (count) <= INT_MAX)

API CUresult cuUserObjectCreate(CUuserObject *out, void *value, CUhostFn destroy, unsigned int refs,
                                unsigned int flags) {
    NEED_INIT();
    NEED(out && destroy && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    NEED_COUNT(refs);
    *out = (CUuserObject)user_object_create(value, destroy, refs);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count) {
    NEED_USER_OBJECT(object, handle);
    NEED_COUNT(count);
    user_object_retain(object, count);
    return CUDA_SUCCESS;
}

API CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count) {
    NEED_USER_OBJECT(object, handle);
    NEED_COUNT(count);
    return user_object_release(object, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject handle, unsigned int count,
                                     unsigned int flags) {
    NEED_USER_OBJECT(object, handle);
    NEED_COUNT(count);
    NEED(handle_kind_of(graph) == HANDLE_GRAPH);
    NEED(!(flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE));
    return graph_keep((struct graph *)graph, object, count, flags != 0);
}

API CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject handle, unsigned int count) {
    NEED_USER_OBJECT(object, handle);
    NEED_COUNT(count);
    NEED(handle_kind_of(graph) == HANDLE_GRAPH);
    return graph_unkeep((struct graph *)graph, object, count) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}
