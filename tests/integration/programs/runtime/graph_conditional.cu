#include "check.h"
#if CUDART_VERSION < 13020
extern "C" cudaError_t cudaGraphConditionalHandleCreate_v2(cudaGraphConditionalHandle *, cudaGraph_t,
                                                           void *, unsigned, unsigned);
#endif
/* Nodes that decide: if and otherwise, while, switch, and one within another. Kernels set what they
 * decide by. */
__global__ void count_down(cudaGraphConditionalHandle handle, int *left) {
    cudaGraphSetConditional(handle, --*left > 0);
}
__global__ void decide(cudaGraphConditionalHandle handle, const int *value) {
    cudaGraphSetConditional(handle, (unsigned)*value);
}
__global__ void add(int *to, int what) { *to += what; }
struct body {
    cudaGraph_t graph;
    cudaGraphNode_t last;
};
static void then(body &at, void *kernel, void **arguments) {
    cudaKernelNodeParams params = {};
    params.func = kernel, params.gridDim = params.blockDim = dim3(1), params.kernelParams = arguments;
    cudaGraphNode_t before = at.last;
    OK(cudaGraphAddKernelNode(&at.last, at.graph, &before, before != nullptr, &params));
}
static void then_add(body &at, int *to, int what) {
    void *arguments[] = {&to, &what};
    then(at, (void *)add, arguments);
}
static void then_set(body &at, void *kernel, cudaGraphConditionalHandle handle, int *value) {
    void *arguments[] = {&handle, &value};
    then(at, kernel, arguments);
}
static cudaGraphConditionalHandle handle_of(cudaGraph_t graph, unsigned value, unsigned flags) {
    cudaGraphConditionalHandle handle = 0;
    REFUSED(cudaGraphConditionalHandleCreate(&handle, graph, value, flags));
    return handle;
}
static cudaError_t try_add(body &at, cudaGraphConditionalHandle handle,
                           cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t *bodies) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle, params.conditional.type = type;
    params.conditional.size = size;
    cudaGraphNode_t before = at.last, node;
#if CUDART_VERSION >= 13000
    cudaError_t error = cudaGraphAddNode(&node, at.graph, &before, nullptr, before != nullptr, &params);
#else
    cudaError_t error = cudaGraphAddNode(&node, at.graph, &before, before != nullptr, &params);
#endif
    if (error != cudaSuccess) return error;
    at.last = node;
    for (unsigned i = 0; i < size; i++) bodies[i] = params.conditional.phGraph_out[i];
    return cudaSuccess;
}
static body begin() {
    body all = {};
    OK(cudaGraphCreate(&all.graph, 0));
    return all;
}
static void run(cudaGraph_t graph, int *values, const int *from, int *d) {
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaMemcpy(d, from, 16, cudaMemcpyHostToDevice));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaMemcpy(values, d, 16, cudaMemcpyDeviceToHost));
    OK(cudaGraphExecDestroy(exec));
}
static void check_while(int *d) {
    body all = begin();
    auto handle = handle_of(all.graph, 1, cudaGraphCondAssignDefault);
    cudaGraph_t graph;
    REFUSED(try_add(all, handle, cudaGraphCondTypeWhile, 1, &graph));
    body loop = {graph, nullptr};
    then_add(loop, d + 1, 3);
    then_set(loop, (void *)count_down, handle, d);
    then_add(all, d + 2, 1);
    int values[4], from[4] = {5, 0, 0, 0};
    for (int again = 0; again < 2; again++) { /* each launch begins with what it begins with */
        run(all.graph, values, from, d);
        CHECK(values[0] == 0 && values[1] == 15 && values[2] == 1);
    }
    /* there is one at a time; and no copy, no child of another graph */
    cudaGraphExec_t exec, second;
    cudaGraph_t clone, other;
    cudaGraphNode_t node;
    OK(cudaGraphInstantiate(&exec, all.graph, 0));
    CHECK(cudaGraphInstantiate(&second, all.graph, 0) != cudaSuccess);
    CHECK(cudaGraphClone(&clone, all.graph) != cudaSuccess);
    OK(cudaGraphCreate(&other, 0));
    CHECK(cudaGraphAddChildGraphNode(&node, other, nullptr, 0, all.graph) != cudaSuccess);
    (void)cudaGetLastError();
    OK(cudaGraphDestroy(other));
    OK(cudaGraphDestroy(all.graph)); /* what was made of it goes on */
    OK(cudaMemcpy(d, from, sizeof from, cudaMemcpyHostToDevice));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaMemcpy(values, d, sizeof values, cudaMemcpyDeviceToHost));
    CHECK(values[1] == 15);
    OK(cudaGraphExecDestroy(exec));
}
static void check_if(int *d) {
    body all = begin();
    auto handle = handle_of(all.graph, 0, 0);
    cudaGraph_t graphs[2];
    then_set(all, (void *)decide, handle, d);
    OK(try_add(all, handle, cudaGraphCondTypeIf, 2, graphs));
    body yes = {graphs[0], nullptr}, no = {graphs[1], nullptr};
    then_add(yes, d + 1, 10);
    then_add(no, d + 1, 20);
    int values[4];
    const int one[4] = {1, 0, 0, 0}, none[4] = {0, 0, 0, 0};
    run(all.graph, values, one, d);
    CHECK(values[1] == 10);
    run(all.graph, values, none, d);
    CHECK(values[1] == 20);
    OK(cudaGraphDestroy(all.graph));
}
/* Which of three, captured; and a loop within the second. */
static void check_switch(int *d) {
    body all = begin();
    auto handle = handle_of(all.graph, 7, cudaGraphCondAssignDefault);
    cudaGraph_t graphs[3], loop_graph;
    then_set(all, (void *)decide, handle, d);
    OK(try_add(all, handle, cudaGraphCondTypeSwitch, 3, graphs));
    cudaStream_t stream;
    cudaGraph_t captured;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCaptureToGraph(stream, graphs[0], nullptr, nullptr, 0,
                                     cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, stream>>>(d + 1, 100);
    OK(cudaStreamEndCapture(stream, &captured));
    body second = {graphs[1], nullptr}, third = {graphs[2], nullptr};
    auto inner = handle_of(graphs[1], 1, cudaGraphCondAssignDefault);
    OK(try_add(second, inner, cudaGraphCondTypeWhile, 1, &loop_graph));
    body loop = {loop_graph, nullptr};
    then_add(loop, d + 1, 1);
    then_set(loop, (void *)count_down, inner, d + 2);
    then_add(third, d + 1, 300);
    int values[4];
    const int expected[] = {100, 4, 300, 0};
    for (int which = 0; which < 4; which++) {
        const int from[4] = {which, 0, 4, 0};
        run(all.graph, values, from, d);
        CHECK(values[1] == expected[which]);
    }
    OK(cudaGraphDestroy(all.graph));
    OK(cudaStreamDestroy(stream));
}
static void check_refused(int *d) {
    const auto wrong = cudaErrorInvalidValue;
    body all = begin();
    cudaGraph_t graphs[3];
    cudaGraphExec_t exec;
    auto handle = handle_of(all.graph, 1, 0);
    FAILS(wrong, try_add(all, 0, cudaGraphCondTypeIf, 1, graphs));
    FAILS(wrong, try_add(all, handle, cudaGraphCondTypeIf, 3, graphs));
    FAILS(wrong, try_add(all, handle, cudaGraphCondTypeWhile, 2, graphs));
    FAILS(wrong, try_add(all, handle, cudaGraphCondTypeSwitch, 0, graphs));
    CHECK(cudaGraphInstantiate(&exec, all.graph, 0) != cudaSuccess); /* it decides nothing */
    (void)cudaGetLastError();
    OK(try_add(all, handle, cudaGraphCondTypeIf, 1, graphs));
    FAILS(wrong, try_add(all, handle, cudaGraphCondTypeIf, 1, graphs + 1)); /* it has its node */
    cudaHostNodeParams host = {};
    cudaGraphNode_t node;
    host.fn = [](void *) {};
    OK(cudaGraphAddHostNode(&node, graphs[0], nullptr, 0, &host));
    CHECK(cudaGraphInstantiate(&exec, all.graph, 0) != cudaSuccess); /* not in a body */
    (void)cudaGetLastError();
    OK(cudaGraphDestroy(all.graph));
    body next = begin();
    auto of_next = cudaGraphConditionalHandle(0);
    FAILS(wrong, cudaGraphConditionalHandleCreate(&of_next, next.graph, 0, 2));
    OK(cudaGraphConditionalHandleCreate_v2(&of_next, next.graph, nullptr, 0, 0));
    OK(cudaGraphDestroy(next.graph));
}
int main() {
    int *d;
    OK(cudaMalloc(&d, 16));
    check_while(d);
    check_if(d);
    check_switch(d);
    check_refused(d);
    OK(cudaFree(d));
    return 0;
}
