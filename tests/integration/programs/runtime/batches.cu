#include "check.h"
/* Several copies by one call; fills and copies of volumes; what is asked of kernels and devices. */
#if CUDART_VERSION < 13020
extern "C" cudaError_t cudaMemcpyWithAttributesAsync(void *, const void *, size_t,
                                                     cudaMemcpyAttributes *, cudaStream_t);
extern "C" cudaError_t cudaMemcpy3DWithAttributesAsync(cudaMemcpy3DBatchOp *, unsigned long long,
                                                       cudaStream_t);
#endif
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
    FAILS(cudaErrorInvalidValue,
          cudaMemcpyBatchAsync(to, from, bytes, 2, &how, &start, 1, cudaStreamLegacy));
}
static void check_attributes(cudaStream_t stream, int *d) {
    int first[4] = {11, 12, 13, 14}, back[4] = {};
    cudaMemcpyAttributes how = {};
    how.srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    SINCE(13020, cudaMemcpyWithAttributesAsync(d, first, 16, &how, stream));
    if (!driver_since(13020)) return;
    first[0] = 99;
    how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    OK(cudaMemcpyWithAttributesAsync(d + 4, d, 16, &how, stream));
    OK(cudaMemcpyWithAttributesAsync(back, d + 4, 16, &how, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(back[0] == 11 && back[3] == 14);
    const auto wrong = cudaErrorInvalidValue;
    FAILS(wrong, cudaMemcpyWithAttributesAsync(back, d, 16, &how, cudaStreamLegacy));
    FAILS(wrong, cudaMemcpyWithAttributesAsync(back, d, 16, nullptr, stream));
    how.srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
    FAILS(wrong, cudaMemcpyWithAttributesAsync(back, d, 16, &how, stream));
}
static cudaMemcpy3DOperand at(void *memory, size_t row, size_t rows) {
    cudaMemcpy3DOperand operand = {};
    operand.type = cudaMemcpyOperandTypePointer;
    operand.op.ptr.ptr = memory, operand.op.ptr.rowLength = row, operand.op.ptr.layerHeight = rows;
    return operand;
}
static cudaMemcpy3DOperand in(cudaArray_t array, size_t x, size_t y) {
    cudaMemcpy3DOperand operand = {};
    operand.type = cudaMemcpyOperandTypeArray;
    operand.op.array.array = array;
    operand.op.array.offset.x = x, operand.op.array.offset.y = y;
    return operand;
}
static cudaMemcpy3DBatchOp copy_of(cudaMemcpy3DOperand to, cudaMemcpy3DOperand from,
                                   cudaExtent extent) {
    cudaMemcpy3DBatchOp copy = {};
    copy.dst = to, copy.src = from, copy.extent = extent;
    copy.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    return copy;
}
/* Elements of four bytes of an array, and bytes of memory. */
static void check_volume_batches(cudaStream_t stream) {
    static int cells[2][3][8], back[2][3][8];
    static char line[6];
    cudaChannelFormatDesc element = cudaCreateChannelDesc<int>();
    cudaArray_t a, b;
    char *d;
    OK(cudaMalloc(&d, 16));
    OK(cudaMemset(d, 7, 16));
    cudaExtent all = make_cudaExtent(8, 3, 2), some = make_cudaExtent(4, 2, 2);
    OK(cudaMalloc3DArray(&a, &element, all));
    OK(cudaMalloc3DArray(&b, &element, all));
    for (int i = 0; i < 48; i++) cells[0][0][i] = i, back[0][0][i] = -1;
    cudaMemcpy3DBatchOp in_once = copy_of(in(a, 0, 0), at(cells, 8, 3), all);
    in_once.srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
    if (driver_since(13020))
        OK(cudaMemcpy3DWithAttributesAsync(&in_once, 0, stream));
    else
        OK(cudaMemcpy3DBatchAsync(1, &in_once, 0, stream));
    for (int i = 0; i < 48; i++) cells[0][0][i] = 99; /* they have been read */
    cudaMemcpy3DBatchOp within = copy_of(in(b, 4, 1), in(a, 1, 0), some);
    OK(cudaMemcpy3DBatchAsync(1, &within, 0, stream));
    cudaMemcpy3DBatchOp out[] = {copy_of(at(back, 8, 3), in(b, 4, 1), some),
                                 copy_of(at(line, 0, 0), at(d, 0, 0), make_cudaExtent(3, 2, 1))};
    OK(cudaMemcpy3DBatchAsync(2, out, 0, stream));
    OK(cudaStreamSynchronize(stream));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 8; x++)
                CHECK(back[z][y][x] == (x < 4 && y < 2 ? z * 24 + y * 8 + x + 1 : -1));
    CHECK(line[0] == 7 && line[5] == 7);
    const auto wrong = cudaErrorInvalidValue;
    FAILS(wrong, cudaMemcpy3DBatchAsync(0, out, 0, stream));
    FAILS(wrong, cudaMemcpy3DBatchAsync(2, out, 1, stream));
    FAILS(wrong, cudaMemcpy3DBatchAsync(2, out, 0, cudaStreamLegacy));
    FAILS(driver_since(13020) ? wrong : cudaErrorNotSupported,
          cudaMemcpy3DWithAttributesAsync(nullptr, 0, stream));
    line[0] = 0; /* of a batch with one that is wrong none is done */
    cudaMemcpy3DBatchOp bad[] = {out[1], out[0]};
    bad[1].extent.depth = 0;
    FAILS(wrong, cudaMemcpy3DBatchAsync(2, bad, 0, stream));
    bad[1] = copy_of(at(back, 3, 0), in(b, 0, 0), some);
    FAILS(wrong, cudaMemcpy3DBatchAsync(2, bad, 0, stream));
    bad[1] = copy_of(at(back, 8, 3), in(b, 0, 0), some);
    bad[1].srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
    FAILS(wrong, cudaMemcpy3DBatchAsync(2, bad, 0, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(line[0] == 0);
    OK(cudaFreeArray(a));
    OK(cudaFreeArray(b));
    OK(cudaFree(d));
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
    check_attributes(stream, d);
    check_volume_batches(stream);
    check_volumes(stream);
    check_asked();
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(d));
    return 0;
}
