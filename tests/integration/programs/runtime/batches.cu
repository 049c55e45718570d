#include "check.h"
/* Several copies by one call; fills and copies of volumes; what is asked of kernels and devices. */
__global__ void three(int a, double b, char c) {
    if (b == 0) asm volatile("trap;");
}
static void check_batch(cudaStream_t stream, int *d) {
    int first[4] = {1, 2, 3, 4}, second[4] = {5, 6, 7, 8}, back[8] = {};
    void *to[] = {d, d + 4};
    const void *from[] = {first, second};
    size_t bytes[] = {16, 16}, start = 0, behind = 2;
    cudaMemcpyAttributes how = {};
    how.srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    OK(cudaMemcpyBatchAsync(to, from, bytes, 2, &how, &start, 1, stream));
    first[0] = second[0] = 99; /* they have been read */
    void *host[] = {back, back + 4};
    const void *card[] = {d + 4, d};
    how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    OK(cudaMemcpyBatchAsync(host, card, bytes, 2, &how, &start, 1, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(back[0] == 5 && back[3] == 8 && back[4] == 1 && back[7] == 4);
    FAILS(cudaErrorInvalidValue, cudaMemcpyBatchAsync(to, from, bytes, 2, &how, &behind, 1, stream));
    FAILS(cudaErrorInvalidValue, cudaMemcpyBatchAsync(to, from, bytes, 2, &how, &start, 0, stream));
}
static void check_volumes(cudaStream_t stream) {
    static unsigned char back[4][6][32];
    cudaPitchedPtr a, b;
    cudaExtent all = make_cudaExtent(32, 6, 4), some = make_cudaExtent(16, 3, 4);
    OK(cudaMalloc3D(&a, all));
    OK(cudaMalloc3D(&b, all));
    OK(cudaMemset3D(a, 1, all));
    OK(cudaDeviceSynchronize());
    OK(cudaMemset3DAsync(a, 2, some, stream));
    OK(cudaStreamSynchronize(stream));
    cudaMemcpy3DPeerParms peers = {};
    peers.srcPtr = a, peers.dstPtr = b, peers.extent = all;
    OK(cudaMemcpy3DPeer(&peers));
    OK(cudaDeviceSynchronize());
    peers.srcPos = make_cudaPos(0, 0, 0), peers.dstPos = make_cudaPos(16, 3, 0);
    peers.extent = some;
    OK(cudaMemcpy3DPeerAsync(&peers, stream));
    OK(cudaStreamSynchronize(stream));
    cudaMemcpy3DParms out = {};
    out.srcPtr = b, out.dstPtr = make_cudaPitchedPtr(back, 32, 32, 6), out.extent = all;
    out.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&out));
    for (int z = 0; z < 4; z++)
        for (int y = 0; y < 6; y++)
            for (int x = 0; x < 32; x++)
                CHECK(back[z][y][x] == ((x < 16) == (y < 3) ? 2 : 1));
    FAILS(cudaErrorInvalidValue, cudaMemcpy3DPeer(nullptr));
    OK(cudaFree(a.ptr));
    OK(cudaFree(b.ptr));
}
static void check_asked() {
    size_t offset = 0, bytes = 0;
    int device = -1;
    cudaDeviceProp wanted = {};
    OK(cudaFuncGetParamInfo((const void *)three, 1, &offset, &bytes));
    CHECK(offset == 8 && bytes == 8);
    FAILS(cudaErrorInvalidValue, cudaFuncGetParamInfo((const void *)three, 3, &offset, &bytes));
    wanted.major = 1;
    OK(cudaChooseDevice(&device, &wanted));
    CHECK(device == 0);
    cudaSharedMemConfig config = cudaSharedMemBankSizeEightByte;
    OK(cudaDeviceSetSharedMemConfig(cudaSharedMemBankSizeDefault));
    OK(cudaDeviceGetSharedMemConfig(&config));
    CHECK(config != cudaSharedMemBankSizeEightByte);
}
int main() {
    cudaStream_t stream;
    int *d;
    OK(cudaMalloc(&d, 32));
    OK(cudaStreamCreate(&stream));
    check_batch(stream, d);
    check_volumes(stream);
    check_asked();
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(d));
    return 0;
}
