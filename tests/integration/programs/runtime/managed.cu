#include "check.h"
#if CUDART_VERSION < 13040
extern "C" cudaError_t cudaMemGetLocationInfo(void *, size_t, size_t, size_t, cudaMemLocation *);
#endif
__global__ void add(int *x) { x[threadIdx.x] += 1; }
int main() {
    int *m, place = -7, mostly_read = -7;
    REFUSED(cudaMallocManaged(&m, 128)); /* over a network there is no memory that both see */
    for (int i = 0; i < 32; i++) m[i] = i;
    cudaMemLocation card;
    card.type = cudaMemLocationTypeDevice, card.id = 0;
    OK(cudaMemAdvise(m, 128, cudaMemAdviseSetReadMostly, card));
    OK(cudaMemPrefetchAsync(m, 128, card, 0, 0));
    add<<<1, 32>>>(m);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 32; i++) CHECK(m[i] == i + 1);
    const auto where = cudaMemRangeAttributeLastPrefetchLocation;
    OK(cudaMemRangeGetAttribute(&place, sizeof place, where, m, 128));
    const auto how = cudaMemRangeAttributeReadMostly;
    OK(cudaMemRangeGetAttribute(&mostly_read, sizeof mostly_read, how, m, 128));
    CHECK(place == 0 && mostly_read == 1);
    cudaMemLocation places_now[2] = {};
    SINCE(13040, cudaMemGetLocationInfo(m, 128, 64, 0, places_now));
    if (driver_since(13040)) {
        CHECK(places_now[1].type == cudaMemLocationTypeDevice && places_now[1].id == 0);
        FAILS(cudaErrorInvalidValue, cudaMemGetLocationInfo(m, 128, 129, 0, places_now));
        FAILS(cudaErrorInvalidValue, cudaMemGetLocationInfo(m, 256, 64, 0, places_now));
    }
    int again[2] = {-7, -7};
    void *answers[] = {&again[0], &again[1]};
    size_t sizes[] = {sizeof(int), sizeof(int)};
    cudaMemRangeAttribute both[] = {how, where};
    OK(cudaMemRangeGetAttributes(answers, sizes, both, 2, m, 128));
    CHECK(again[0] == 1 && again[1] == 0);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamAttachMemAsync(stream, m, 0, cudaMemAttachSingle));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    int *d;
    OK(cudaMalloc(&d, 128));
    OK(cudaStreamCreate(&stream));
    void *ranges[] = {m, m + 8, m + 16};
    size_t range_sizes[] = {32, 32, 64}, firsts[] = {0, 2};
    cudaMemLocation host;
    host.type = cudaMemLocationTypeHost, host.id = 0;
    cudaMemLocation places[] = {card, host};
    OK(cudaMemPrefetchBatchAsync(ranges, range_sizes, 3, places, firsts, 2, 0, stream));
    OK(cudaMemRangeGetAttribute(&place, sizeof place, where, m, 128));
    CHECK(place == cudaCpuDeviceId); /* a simulated card keeps it of the allocation: the last one */
    OK(cudaMemDiscardAndPrefetchBatchAsync(ranges, range_sizes, 3, places, firsts, 1, 0, stream));
    OK(cudaMemRangeGetAttribute(&place, sizeof place, where, m, 128));
    CHECK(place == 0);
    OK(cudaMemDiscardBatchAsync(ranges, range_sizes, 3, 0, stream));
    OK(cudaStreamSynchronize(stream));
    const auto wrong = cudaErrorInvalidValue;
    FAILS(wrong, cudaMemDiscardBatchAsync(ranges, range_sizes, 0, 0, stream));
    FAILS(wrong, cudaMemDiscardBatchAsync(ranges, range_sizes, 3, 1, stream));
    FAILS(wrong, cudaMemDiscardBatchAsync(ranges, range_sizes, 3, 0, cudaStreamLegacy));
    firsts[1] = 3;
    FAILS(wrong, cudaMemPrefetchBatchAsync(ranges, range_sizes, 3, places, firsts, 2, 0, stream));
    firsts[1] = 2, range_sizes[2] = 65;
    FAILS(wrong, cudaMemPrefetchBatchAsync(ranges, range_sizes, 3, places, firsts, 2, 0, stream));
    range_sizes[2] = 64, ranges[1] = d;
    FAILS(wrong, cudaMemPrefetchBatchAsync(ranges, range_sizes, 3, places, firsts, 2, 0, stream));
    CHECK(cudaMemRangeGetAttribute(&place, sizeof place, where, m, 128) == 0 && place == 0);
    OK(cudaStreamDestroy(stream));
    FAILS(cudaErrorInvalidValue, cudaMemPrefetchAsync(d, 128, card, 0, 0));
    OK(cudaFree(d));
    OK(cudaFree(m));
    return 0;
}
