/* Kernels of libraries. A CUkernel is of no context: the driver takes its library into a context,
 * and grows that context's local memory, when the kernel is first used there. So every call that
 * takes one, or takes a function and may be given one instead, settles that before the driver does
 * it. What has been settled, each thread remembers.
 */
#include "interposer.h"

enum { RECENT = 64 }; /* a power of two */

uint32_t kernels_known;
static uint32_t epoch; /* of all that threads remember */

static __thread struct recent_kernel {
    const void *function;
    CUcontext context; /* NULL: it is no kernel of a library */
    CUstream stream;
    uint32_t epoch;
} recent[RECENT] __attribute__((tls_model("initial-exec")));

void kernels_changed(void) { __atomic_fetch_add(&epoch, 1, __ATOMIC_ACQ_REL); }

void kernels_announce(void) {
    kernels_changed();
    __atomic_store_n(&kernels_known, 1, __ATOMIC_RELEASE);
}

static bool names_context(CUstream stream) {
    return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* In the current context. */
static CUresult settle_here(CUkernel kernel, CUlibrary library) {
    CUfunction function;
    CUresult result = library_settle(library);
    if (result != CUDA_SUCCESS || REAL(cuKernelGetFunction) == NULL ||
        REAL(cuKernelGetFunction)(&function, kernel) != CUDA_SUCCESS)
        return result; /* the call itself has the right error */
    return local_settle(function);
}

/* The driver may be asked for anything here, also while the thread captures. */
static CUresult settle_in(CUcontext context, CUkernel kernel, CUlibrary library) {
    CUcontext current = NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REAL(cuCtxGetCurrent)(&current);
    if (context != current && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    bool exchanged = REAL(cuThreadExchangeStreamCaptureMode) != NULL &&
                     REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
    CUresult result = settle_here(kernel, library);
    if (exchanged) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (context != current) REAL(cuCtxPopCurrent_v2)(&context);
    return result;
}

CUresult kernel_settle_slow(const void *function, CUstream stream) {
    struct recent_kernel *seen =
        &recent[((uintptr_t)function * 0x9E3779B97F4A7C15ull >> 32) & (RECENT - 1)];
    uint32_t now = __atomic_load_n(&epoch, __ATOMIC_ACQUIRE);
    struct holding known;
    CUcontext context = NULL;
    bool fresh = seen->function == function && seen->epoch == now;
    if (fresh && (seen->context == NULL || (names_context(stream) && seen->stream == stream)))
        return CUDA_SUCCESS;
    if (!slice_open()) return REFUSED;
    if (!table_look(HOLDING_KERNEL, (uint64_t)(uintptr_t)function, &known)) {
        *seen = (struct recent_kernel){.function = function, .epoch = now};
        return CUDA_SUCCESS;
    }
    if (names_context(stream) && REAL(cuStreamGetCtx) != NULL)
        REAL(cuStreamGetCtx)(stream, &context);
    else
        REAL(cuCtxGetCurrent)(&context);
    if (fresh && context != NULL && seen->context == context) return CUDA_SUCCESS;
    if (context == NULL) return library_settle((CUlibrary)(uintptr_t)known.owner);
    CUresult result =
        settle_in(context, (CUkernel)(uintptr_t)function, (CUlibrary)(uintptr_t)known.owner);
    if (result == CUDA_SUCCESS)
        *seen = (struct recent_kernel){
            .function = function, .context = context, .stream = stream, .epoch = now};
    return result;
}

/* ---- calls that take a kernel, or a function that may be one ----
 *
 * Without those that load nothing: they ask for names, parameters, the library, or whether it is
 * loaded. Programs and executors ask them about all kernels of an image. */

#define OF_KERNEL(SYMBOL, KERNEL, PARAMETERS, ARGUMENTS)                 \
    EXPORT CUresult SYMBOL PARAMETERS {                                  \
        if (!slice_open()) return REFUSED;                               \
        CUresult result = kernel_settle((KERNEL), NULL);                 \
        return result == CUDA_SUCCESS ? REAL(SYMBOL) ARGUMENTS : result; \
    }

OF_KERNEL(cuKernelGetFunction, kernel, (CUfunction * function, CUkernel kernel), (function, kernel))
OF_KERNEL(cuKernelGetAttribute, kernel,
          (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice ordinal),
          (value, attribute, kernel, ordinal))
OF_KERNEL(cuKernelSetAttribute, kernel,
          (CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice ordinal),
          (attribute, value, kernel, ordinal))
OF_KERNEL(cuKernelSetCacheConfig, kernel, (CUkernel kernel, CUfunc_cache config, CUdevice ordinal),
          (kernel, config, ordinal))

OF_KERNEL(cuFuncGetAttribute, f, (int *value, CUfunction_attribute attribute, CUfunction f),
          (value, attribute, f))
OF_KERNEL(cuFuncSetAttribute, f, (CUfunction f, CUfunction_attribute attribute, int value),
          (f, attribute, value))
OF_KERNEL(cuFuncSetCacheConfig, f, (CUfunction f, CUfunc_cache config), (f, config))
OF_KERNEL(cuFuncSetSharedMemConfig, f, (CUfunction f, CUsharedconfig config), (f, config))
OF_KERNEL(cuFuncGetModule, f, (CUmodule * module, CUfunction f), (module, f))
OF_KERNEL(cuFuncLoad, f, (CUfunction f), (f))

OF_KERNEL(cuOccupancyMaxActiveBlocksPerMultiprocessor, f,
          (int *blocks, CUfunction f, int threads, size_t shared), (blocks, f, threads, shared))
OF_KERNEL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, f,
          (int *blocks, CUfunction f, int threads, size_t shared, unsigned flags),
          (blocks, f, threads, shared, flags))
OF_KERNEL(cuOccupancyMaxPotentialBlockSize, f,
          (int *grid, int *threads, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared,
           int limit),
          (grid, threads, f, shared_of, shared, limit))
OF_KERNEL(cuOccupancyMaxPotentialBlockSizeWithFlags, f,
          (int *grid, int *threads, CUfunction f, CUoccupancyB2DSize shared_of, size_t shared,
           int limit, unsigned flags),
          (grid, threads, f, shared_of, shared, limit, flags))
OF_KERNEL(cuOccupancyAvailableDynamicSMemPerBlock, f,
          (size_t *shared, CUfunction f, int blocks, int threads), (shared, f, blocks, threads))
OF_KERNEL(cuOccupancyMaxPotentialClusterSize, f,
          (int *size, CUfunction f, const CUlaunchConfig *config), (size, f, config))
OF_KERNEL(cuOccupancyMaxActiveClusters, f, (int *count, CUfunction f, const CUlaunchConfig *config),
          (count, f, config))

/* ---- nodes of graphs ---- */

/* A node's kernel, in the context that the node names. */
static CUresult node_settle(CUfunction function, CUkernel kernel, CUcontext context) {
    struct holding known;
    const void *which = function != NULL ? (const void *)function : (const void *)kernel;
    if (context == NULL) return kernel_settle(which, NULL);
    if (!table_look(HOLDING_KERNEL, (uint64_t)(uintptr_t)which, &known)) return CUDA_SUCCESS;
    return settle_in(context, (CUkernel)(uintptr_t)which, (CUlibrary)(uintptr_t)known.owner);
}

#define OF_NODE(SYMBOL, SETTLE, PARAMETERS, ARGUMENTS)                   \
    EXPORT CUresult SYMBOL PARAMETERS {                                  \
        if (!slice_open()) return REFUSED;                               \
        CUresult result = p == NULL ? CUDA_SUCCESS : (SETTLE);           \
        return result == CUDA_SUCCESS ? REAL(SYMBOL) ARGUMENTS : result; \
    }
#define FIRST node_settle(p->func, NULL, NULL)
#define SECOND node_settle(p->func, p->kern, p->ctx)
#define ANY                                                           \
    (p->type == CU_GRAPH_NODE_TYPE_KERNEL                             \
         ? node_settle(p->kernel.func, p->kernel.kern, p->kernel.ctx) \
         : CUDA_SUCCESS)

OF_NODE(cuGraphAddKernelNode, FIRST,
        (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,
         const CUDA_KERNEL_NODE_PARAMS_v1 *p),
        (node, graph, after, count, p))
OF_NODE(cuGraphAddKernelNode_v2, SECOND,
        (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,
         const CUDA_KERNEL_NODE_PARAMS_v2 *p),
        (node, graph, after, count, p))
OF_NODE(cuGraphKernelNodeSetParams, FIRST, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p),
        (node, p))
OF_NODE(cuGraphKernelNodeSetParams_v2, SECOND,
        (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p), (node, p))
OF_NODE(cuGraphExecKernelNodeSetParams, FIRST,
        (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p), (exec, node, p))
OF_NODE(cuGraphExecKernelNodeSetParams_v2, SECOND,
        (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p), (exec, node, p))
OF_NODE(cuGraphAddNode, ANY,
        (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count,
         CUgraphNodeParams *p),
        (node, graph, after, count, p))
OF_NODE(cuGraphAddNode_v2, ANY,
        (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges,
         size_t count, CUgraphNodeParams *p),
        (node, graph, after, edges, count, p))
OF_NODE(cuGraphAddNode_v3, ANY,
        (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges,
         size_t count, CUgraphNodeParams *p),
        (node, graph, after, edges, count, p))
OF_NODE(cuGraphNodeSetParams, ANY, (CUgraphNode node, CUgraphNodeParams *p), (node, p))
OF_NODE(cuGraphNodeSetParams_v2, ANY, (CUgraphNode node, CUgraphNodeParams *p), (node, p))
OF_NODE(cuGraphExecNodeSetParams, ANY, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p),
        (exec, node, p))
