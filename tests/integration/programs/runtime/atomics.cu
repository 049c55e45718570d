#include "check.h"
__global__ void histogram(const unsigned char *data, int n, unsigned *bins) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[data[i]], 1u);
}
int main() {
    std::vector<unsigned char> data(5000);
    unsigned expected[256] = {}, bins[256], *d_bins;
    for (size_t i = 0; i < data.size(); i++) expected[data[i] = (unsigned char)(i * i)]++;
    unsigned char *d;
    OK(cudaMalloc(&d, data.size()));
    OK(cudaMalloc(&d_bins, sizeof bins));
    OK(cudaMemcpy(d, data.data(), data.size(), cudaMemcpyHostToDevice));
    OK(cudaMemset(d_bins, 0, sizeof bins));
    histogram<<<4, 128>>>(d, (int)data.size(), d_bins);
    OK(cudaMemcpy(bins, d_bins, sizeof bins, cudaMemcpyDeviceToHost));
    CHECK(!std::memcmp(bins, expected, sizeof bins));
    return 0;
}
