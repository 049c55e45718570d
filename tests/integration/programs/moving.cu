// Variables by name, a kernel that counts in one and prints, and constants that change: for programs that move.
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <unistd.h>

__constant__ int factors[4];
__device__ unsigned counted[2];
static __device__ unsigned initial = 41;

__global__ void count(unsigned *out) {
    atomicAdd(&counted[threadIdx.x & 1], (unsigned)factors[threadIdx.x & 3]);
    if (threadIdx.x == 0) out[0] = initial++;
}

__global__ void tell(unsigned number) { printf("told %u\n", number); }

#define CHECK(call)                                                         \
    do {                                                                    \
        cudaError_t is = (call);                                            \
        if (is != cudaSuccess) {                                            \
            printf("%d: %s\n", __LINE__, cudaGetErrorName(is));             \
            return 1;                                                       \
        }                                                                   \
    } while (0)

static bool asked_to_end() {
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 0) != 0;
}

int main() {
    unsigned *out, rounds = 0, expected[2] = {0, 0}, seen[2], first;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&out, sizeof *out));
    while (!asked_to_end()) {
        int now[4] = {1, (int)(rounds % 5), 2, 7};
        CHECK(cudaMemcpyToSymbolAsync(factors, now, sizeof now, 0, cudaMemcpyHostToDevice, stream));
        count<<<1, 64, 0, stream>>>(out);
        CHECK(cudaMemcpyAsync(&first, out, sizeof first, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        expected[0] += 16 * (1 + 2);
        expected[1] += 16 * (rounds % 5 + 7);
        if (first != 41 + rounds) return printf("wrong: %u in round %u\n", first, rounds), 1;
        if (rounds++ % 7 == 0) {
            CHECK(cudaMemcpyFromSymbol(seen, counted, sizeof seen));
            if (memcmp(seen, expected, sizeof seen) != 0) return printf("wrong: round %u\n", rounds), 1;
        }
        if (rounds == 1) printf("begun\n"), fflush(stdout);
    }
    tell<<<1, 1>>>(7);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpyFromSymbol(seen, counted, sizeof seen));
    printf("%s\n", memcmp(seen, expected, sizeof seen) == 0 && rounds > 1 ? "right" : "wrong");
    return 0;
}
