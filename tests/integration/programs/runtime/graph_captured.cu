#include "check.h"
/* The graph of a capture that goes on: which it is, what comes next in it, and to say otherwise. */
__global__ void add(int *x, int by) { x[threadIdx.x] += by; }
struct going_on {
    cudaStreamCaptureStatus status;
    unsigned long long id;
    cudaGraph_t graph;
    const cudaGraphNode_t *nodes;
    const cudaGraphEdgeData *edges;
    size_t count;
};
static going_on ask(cudaStream_t stream) {
    going_on is = {};
    OK(cudaStreamGetCaptureInfo(stream, &is.status, &is.id, &is.graph, &is.nodes, &is.edges,
                                &is.count));
    return is;
}
static void check_none(cudaStream_t stream) {
    CHECK(ask(stream).status == cudaStreamCaptureStatusNone);
    CHECK(ask(stream).graph == nullptr && ask(stream).count == 0);
    FAILS(cudaErrorInvalidValue, cudaStreamGetCaptureInfo(stream, nullptr));
}
/* What would end a capture may be called where the thread says that it means to. */
static void check_mode() {
    void *memory;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeGlobal);
    OK(cudaMalloc(&memory, 1 << 20));
    OK(cudaFree(memory));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeRelaxed);
}
/* A second stream joins, and leaves again. */
static void check_joined(cudaStream_t stream, cudaStream_t other, int *d) {
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaEventRecord(event, stream));
    CHECK(ask(other).status == cudaStreamCaptureStatusNone);
    OK(cudaStreamWaitEvent(other, event, 0));
    going_on here = ask(stream), there = ask(other);
    CHECK(here.id == there.id && here.graph == there.graph);
    add<<<1, 32, 0, other>>>(d + 32, 1);
    OK(cudaEventRecord(event, other));
    OK(cudaStreamWaitEvent(stream, event, 0));
    CHECK(ask(stream).count == 2);
    OK(cudaEventDestroy(event));
}
static void check_graph(cudaGraph_t graph, cudaGraphNode_t first, size_t count) {
    cudaGraphNode_t nodes[8] = {}, root = nullptr;
    size_t room = 8, roots = 1;
    OK(cudaGraphGetNodes(graph, nodes, &room));
    CHECK(room == count && nodes[0] == first && nodes[count] == nullptr);
    OK(cudaGraphGetRootNodes(graph, &root, &roots));
    CHECK(roots == 1 && root == first);
    for (size_t i = 0; i < count; i++) {
        cudaGraphNodeType type;
        OK(cudaGraphNodeGetType(nodes[i], &type));
        CHECK(type == cudaGraphNodeTypeKernel);
    }
}
int main() {
    cudaStream_t stream, other;
    cudaGraph_t graph, own;
    cudaGraphExec_t exec;
    cudaGraphNode_t empty, after[1];
    int *d, h[64];
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemset(d, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    check_none(stream);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    going_on begun = ask(stream);
    CHECK(begun.status == cudaStreamCaptureStatusActive && begun.graph && begun.count == 0);
    check_mode();
    add<<<1, 32, 0, stream>>>(d, 1);
    going_on is = ask(stream);
    CHECK(is.id == begun.id && is.graph == begun.graph && is.count == 1);
    cudaGraphNode_t first = is.nodes[0];
    check_joined(stream, other, d);
    after[0] = first; /* the next one comes after the first alone */
    OK(cudaStreamUpdateCaptureDependencies(stream, after, nullptr, 1,
                                           cudaStreamSetCaptureDependencies));
    CHECK(ask(stream).count == 1 && ask(stream).nodes[0] == first);
    add<<<1, 32, 0, stream>>>(d, 2);
    size_t followers = 0;
    OK(cudaGraphNodeGetDependentNodes(first, nullptr, nullptr, &followers));
    CHECK(followers == 2);
    after[0] = ask(other).nodes[0]; /* who has joined is waited for before the end */
    OK(cudaStreamUpdateCaptureDependencies(stream, after, nullptr, 1,
                                           cudaStreamAddCaptureDependencies));
    CHECK(ask(stream).count == 2);
    OK(cudaStreamDestroy(other)); /* its work was joined */
    OK(cudaStreamEndCapture(stream, &graph));
    CHECK(graph == begun.graph);
    check_none(stream);
    check_graph(graph, first, 3);
    /* what is captured now goes into a graph that there is */
    OK(cudaGraphCreate(&own, 0));
    OK(cudaGraphAddEmptyNode(&empty, own, nullptr, 0));
    OK(cudaStreamBeginCaptureToGraph(stream, own, &empty, nullptr, 1, cudaStreamCaptureModeGlobal));
    is = ask(stream);
    CHECK(is.graph == own && is.count == 1 && is.nodes[0] == empty);
    add<<<1, 32, 0, stream>>>(d, 4);
    OK(cudaStreamEndCapture(stream, nullptr)); /* the program has that graph */
    size_t nodes = 0;
    OK(cudaGraphGetNodes(own, nullptr, &nodes));
    CHECK(nodes == 2);
    for (cudaGraph_t each : {graph, own}) {
        OK(cudaGraphInstantiateWithFlags(&exec, each, 0));
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(each));
    }
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) CHECK(h[i] == (i < 32 ? 7 : 1));
    return 0;
}
