#include "check.h"
int main() {
    cudaExtent extent = make_cudaExtent(20, 5, 3);
    cudaPitchedPtr d;
    OK(cudaMalloc3D(&d, extent));
    std::vector<char> from(300), to(300);
    for (size_t i = 0; i < from.size(); i++) from[i] = (char)i;
    cudaMemcpy3DParms there = {};
    there.srcPtr = make_cudaPitchedPtr(from.data(), 20, 20, 5);
    there.dstPtr = d;
    there.extent = extent;
    there.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&there));
    cudaMemcpy3DParms back = {};
    back.srcPtr = d;
    back.dstPtr = make_cudaPitchedPtr(to.data(), 20, 20, 5);
    back.extent = extent;
    back.kind = cudaMemcpyDeviceToHost;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpy3DAsync(&back, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(from == to);
    return 0;
}
