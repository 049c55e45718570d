#include "check.h"
int main() {
    const size_t width = 100, height = 17;
    size_t pitch;
    char *d;
    OK(cudaMallocPitch(&d, &pitch, width, height));
    CHECK(pitch >= width);
    std::vector<char> from(width * height), to(width * height);
    for (size_t i = 0; i < from.size(); i++) from[i] = (char)i;
    OK(cudaMemset2D(d, pitch, 0, width, height));
    OK(cudaMemcpy2D(d, pitch, from.data(), width, width, height, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2D(to.data(), width, d, pitch, width, height, cudaMemcpyDeviceToHost));
    CHECK(from == to);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemset2DAsync(d, pitch, 5, width / 2, height, stream));
    OK(cudaMemcpy2DAsync(to.data(), width, d, pitch, width, height, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++)
            CHECK(to[y * width + x] == (x < width / 2 ? 5 : from[y * width + x]));
    FAILS(cudaErrorInvalidPitchValue, cudaMemcpy2D(d, 10, to.data(), width, width, 1, cudaMemcpyHostToDevice));
    return 0;
}
