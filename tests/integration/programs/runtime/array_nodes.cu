#include "check.h"
/* A graph fills an array, a kernel reads it as a texture, and what comes out goes into another. */
__global__ void twice(cudaTextureObject_t t, float *out) { out[threadIdx.x] = 2 * tex2D<float>(t, threadIdx.x % 4, threadIdx.x / 4); }
int main() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaResourceDesc resource = {};
    cudaTextureDesc how = {};
    cudaTextureObject_t t;
    cudaArray_t from, to;
    float in[8], out[8], *d;
    OK(cudaMallocArray(&from, &format, 4, 2));
    OK(cudaMallocArray(&to, &format, 4, 2));
    OK(cudaMalloc(&d, sizeof in));
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = from;
    OK(cudaCreateTextureObject(&t, &resource, &how, nullptr));

    cudaGraph_t graph;
    cudaGraphNode_t fill, kernel, drain;
    OK(cudaGraphCreate(&graph, 0));
    cudaMemcpy3DParms copy = {}, asked = {};
    copy.srcPtr = make_cudaPitchedPtr(in, 16, 16, 2);
    copy.dstArray = from;
    copy.extent = make_cudaExtent(4, 2, 1);
    copy.kind = cudaMemcpyHostToDevice;
    REFUSED(cudaGraphAddMemcpyNode(&fill, graph, nullptr, 0, &copy));
    OK(cudaGraphMemcpyNodeGetParams(fill, &asked));
    CHECK(asked.dstArray == from && asked.dstPtr.ptr == nullptr && asked.srcPtr.ptr == in);
    CHECK(asked.extent.width == 4 && asked.extent.height == 2 && asked.kind == cudaMemcpyHostToDevice);
    void *arguments[] = {&t, &d};
    cudaKernelNodeParams launch = {};
    launch.func = (void *)twice, launch.gridDim = dim3(1), launch.blockDim = dim3(8);
    launch.kernelParams = arguments;
    OK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
    copy = cudaMemcpy3DParms();
    copy.srcPtr = make_cudaPitchedPtr(d, 16, 16, 2);
    copy.dstArray = to;
    copy.dstPos = make_cudaPos(1, 0, 0);
    copy.extent = make_cudaExtent(3, 2, 1);
    copy.kind = cudaMemcpyDeviceToDevice;
    OK(cudaGraphAddMemcpyNode(&drain, graph, &kernel, 1, &copy));
    OK(cudaGraphMemcpyNodeGetParams(drain, &asked));
    CHECK(asked.dstArray == to && asked.dstPos.x == 1 && asked.extent.width == 3);
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 1; round < 3; round++) {
        for (int i = 0; i < 8; i++) in[i] = (float)(i * round);
        OK(cudaGraphLaunch(exec, 0));
        OK(cudaMemcpy2DFromArray(out, 16, to, 0, 0, 16, 2, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 8; i++)
            if (i % 4) CHECK(out[i] == (i - 1) * round * 2);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaDestroyTextureObject(t));
    return 0;
}
