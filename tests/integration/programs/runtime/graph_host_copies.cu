#include "check.h"
/* Graphs copy the program's memory when they are launched, pinned or not, in lines and in planes. */
static const int WIDTH = 24, ROWS = 5, PITCH = 32;
static int to_card[PITCH * ROWS], back[PITCH * ROWS];
static void fill_in(int from) {
    for (int i = 0; i < PITCH * ROWS; i++) to_card[i] = from + i, back[i] = -1;
}
static cudaMemcpy3DParms plane(void *to, size_t to_pitch, void *from, size_t from_pitch) {
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(from, from_pitch, WIDTH * 4, ROWS);
    copy.dstPtr = make_cudaPitchedPtr(to, to_pitch, WIDTH * 4, ROWS);
    copy.extent = make_cudaExtent(WIDTH * 4, ROWS, 1);
    copy.kind = cudaMemcpyDefault;
    return copy;
}
static void launch(cudaGraphExec_t exec) {
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
}
static void check_planes(int *d) {
    cudaGraph_t graph, copied;
    cudaGraphExec_t exec;
    cudaGraphNode_t in, out;
    OK(cudaGraphCreate(&graph, 0));
    cudaMemcpy3DParms copy = plane(d, WIDTH * 4, to_card, PITCH * 4);
    OK(cudaGraphAddMemcpyNode(&in, graph, nullptr, 0, &copy));
    copy = plane(back, PITCH * 4, d, WIDTH * 4);
    OK(cudaGraphAddMemcpyNode(&out, graph, &in, 1, &copy));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int from = 0; from < 2000; from += 1000) {
        fill_in(from);
        launch(exec);
        for (int i = 0; i < PITCH * ROWS; i++)
            CHECK(back[i] == (i % PITCH < WIDTH ? from + i : -1));
    }
    size_t nodes = 0;
    cudaGraphNodeType type;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    OK(cudaGraphNodeGetType(in, &type));
    CHECK(nodes == 2 && type == cudaGraphNodeTypeMemcpy);
    OK(cudaGraphClone(&copied, graph));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphInstantiate(&exec, copied, 0)); /* it has what the first one had */
    fill_in(5);
    launch(exec);
    CHECK(back[PITCH] == 5 + PITCH);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(copied));
}
static void check_changes(int *d) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t in;
    int other[4] = {40, 41, 42, 43}, h[8] = {};
    fill_in(7);
    OK(cudaMemset(d, 0, sizeof h));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, d, to_card, 16, cudaMemcpyHostToDevice));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphExecMemcpyNodeSetParams1D(exec, in, d + 4, other, 16, cudaMemcpyHostToDevice));
    launch(exec);
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    CHECK(h[0] == 0 && h[4] == 40 && h[7] == 43);
    OK(cudaGraphMemcpyNodeSetParams1D(in, d, other, 8, cudaMemcpyHostToDevice));
    cudaGraphExecUpdateResultInfo how;
    OK(cudaGraphExecUpdate(exec, graph, &how));
    launch(exec);
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    CHECK(h[0] == 40 && h[1] == 41 && h[2] == 0);
    cudaMemcpy3DParms copy = {};
    OK(cudaGraphMemcpyNodeGetParams(in, &copy));
    CHECK(copy.srcPtr.ptr == other && copy.extent.width == 8);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}
/* More than one frame carries, and than callbacks that may be under way. */
static void check_many(int *d) {
    const size_t count = 100000;
    static int long_in[count], long_out[count];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t last = nullptr;
    for (size_t i = 0; i < count; i++) long_in[i] = (int)i;
    OK(cudaGraphCreate(&graph, 0));
    for (int i = 0; i < 300; i++)
        OK(cudaGraphAddMemcpyNode1D(&last, graph, i ? &last : nullptr, i ? 1 : 0, d, long_in + i, 4,
                                    cudaMemcpyHostToDevice));
    OK(cudaGraphAddMemcpyNode1D(&last, graph, &last, 1, d, long_in, sizeof long_in,
                                cudaMemcpyHostToDevice));
    OK(cudaGraphAddMemcpyNode1D(&last, graph, &last, 1, long_out, d, sizeof long_out,
                                cudaMemcpyDeviceToHost));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    launch(exec);
    for (size_t i = 0; i < count; i++) CHECK(long_out[i] == (int)i);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}
/* A captured stream's copies are such nodes, too. */
static void check_captured(int *d) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int line[4], found[4];
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    cudaMemcpy3DParms copy = plane(d, WIDTH * 4, to_card, PITCH * 4);
    OK(cudaMemcpy3DAsync(&copy, stream));
    OK(cudaMemcpy2DAsync(back, PITCH * 4, d, WIDTH * 4, WIDTH * 4, ROWS, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemcpyAsync(d, line, sizeof line, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(found, d, sizeof found, cudaMemcpyDefault, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int from = 0; from < 2000; from += 1000) {
        fill_in(from);
        for (int i = 0; i < 4; i++) line[i] = from - i, found[i] = -1;
        OK(cudaGraphLaunch(exec, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < 4; i++) CHECK(found[i] == from - i);
        for (int i = 0; i < PITCH * ROWS; i++)
            CHECK(back[i] == (i % PITCH < WIDTH ? from + i : -1));
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
}
int main() {
    int *d;
    OK(cudaMalloc(&d, 1 << 20));
    check_captured(d);
    check_planes(d);
    check_changes(d);
    check_many(d);
    OK(cudaFree(d));
    return 0;
}
