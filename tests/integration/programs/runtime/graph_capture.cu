#include "check.h"
__global__ void add(int *x, int by) { x[threadIdx.x] += by; }
int main() {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *d, h[32];
    size_t nodes = 0;
    cudaStreamCaptureStatus status;
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemset(d, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    add<<<1, 32, 0, stream>>>(d, 1);
    add<<<1, 32, 0, stream>>>(d, 2);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 2);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 5; i++) OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int x : h) CHECK(x == 15);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    return 0;
}
