#include "check.h"
int main() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<short2>(), found;
    cudaArray_t a, b;
    OK(cudaMallocArray(&a, &format, 8, 4, cudaArraySurfaceLoadStore));
    cudaExtent extent;
    unsigned flags;
    OK(cudaArrayGetInfo(&found, &extent, &flags, a));
    CHECK(found.x == 16 && found.y == 16 && found.z == 0 && found.f == cudaChannelFormatKindSigned);
    CHECK(extent.width == 8 && extent.height == 4 && extent.depth == 0 && flags == cudaArraySurfaceLoadStore);
    OK(cudaGetChannelDesc(&found, a));
    CHECK(found.x == 16 && found.w == 0);
    std::vector<short2> in(32), out(32);
    for (short i = 0; i < 32; i++) in[i] = make_short2(i, -i);
    auto same = [&] { return !std::memcmp(in.data(), out.data(), 32 * sizeof(short2)); };

    OK(cudaMemcpy2DToArray(a, 0, 0, in.data(), 32, 32, 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArray(out.data(), 32, a, 0, 0, 32, 4, cudaMemcpyDeviceToHost));
    CHECK(same());

    /* Rows of another length, from the middle of one on. */
    OK(cudaMalloc3DArray(&b, &format, make_cudaExtent(16, 4, 0)));
    OK(cudaMemcpyArrayToArray(b, 8, 1, a, 0, 0, 128, cudaMemcpyDefault));
    OK(cudaMemcpyFromArray(out.data(), b, 8, 1, 128, cudaMemcpyDeviceToHost));
    CHECK(same());
    out.assign(32, short2());
    OK(cudaMemcpy2DFromArray(&out[2], 24, b, 40, 2, 24, 1, cudaMemcpyDeviceToHost));
    CHECK(out[1].x == 0 && out[2].x == 24 && out[7].y == -29 && out[8].x == 0);

    short2 *d;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(&d, 128));
    OK(cudaMemcpyFromArrayAsync(d, a, 0, 0, 128, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyToArrayAsync(b, 4, 0, d, 128, cudaMemcpyDeviceToDevice, stream));
    OK(cudaStreamSynchronize(stream)); /* a thread's own default stream would not wait for it */
    OK(cudaMemcpy2DArrayToArray(a, 16, 0, a, 0, 0, 16, 4, cudaMemcpyDeviceToDevice));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpyFromArrayAsync(out.data(), b, 4, 0, 128, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(same());
    OK(cudaMemcpy2DFromArrayAsync(out.data(), 16, a, 16, 0, 16, 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(out[0].x == 0 && out[4].x == 8 && out[15].y == -27);

    /* A graph takes what is on the card. */
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaMemcpy2DToArrayAsync(b, 0, 0, d, 32, 32, 4, cudaMemcpyDeviceToDevice, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaMemset(d, 7, 128));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy2DFromArray(out.data(), 32, b, 0, 0, 32, 4, cudaMemcpyDeviceToHost));
    CHECK(out[0].x == 0x0707 && out[31].y == 0x0707);

    /* In three dimensions, places and widths are counted in elements where there is an array. */
    cudaArray_t volume;
    OK(cudaMalloc3DArray(&volume, &format, make_cudaExtent(4, 4, 4)));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(in.data(), 8, 8, 4);
    copy.dstArray = volume;
    copy.dstPos = make_cudaPos(1, 0, 0);
    copy.extent = make_cudaExtent(2, 4, 4);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    out.assign(32, short2());
    cudaMemcpy3DParms back = {};
    back.srcArray = volume;
    back.srcPos = make_cudaPos(1, 1, 1);
    back.dstPtr = make_cudaPitchedPtr(out.data(), 8, 8, 3);
    back.extent = make_cudaExtent(2, 3, 3);
    back.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3DAsync(&back, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(out[0].x == 10 && out[1].x == 11 && out[17].x == 31 && out[18].x == 0);

    cudaChannelFormatDesc three = cudaCreateChannelDesc(8, 8, 8, 0, cudaChannelFormatKindUnsigned);
    cudaArray_t none;
    FAILS(cudaErrorInvalidChannelDescriptor, cudaMallocArray(&none, &three, 8, 8));
    FAILS(cudaErrorInvalidValue, cudaMallocArray(&none, &format, 1 << 20, 8));
    FAILS(cudaErrorInvalidValue, cudaMallocArray(nullptr, &format, 8, 8));
    FAILS(cudaErrorInvalidValue, cudaMemcpy2DToArray(a, 8, 0, in.data(), 32, 32, 4, cudaMemcpyHostToDevice));
    FAILS(cudaErrorInvalidMemcpyDirection, cudaMemcpyToArray(a, 0, 0, in.data(), 4, cudaMemcpyDeviceToHost));
    copy.dstPos.x = 3;
    FAILS(cudaErrorInvalidValue, cudaMemcpy3D(&copy));
    OK(cudaFreeArray(a));
    OK(cudaFreeArray(b));
    OK(cudaFreeArray(volume));
    OK(cudaFreeArray(nullptr));
    FAILS(cudaErrorInvalidResourceHandle, cudaFreeArray(volume));
    return 0;
}
