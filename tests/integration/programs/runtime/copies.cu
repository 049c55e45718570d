#include "check.h"
int main() {
    std::vector<char> from(100000), to(100000);
    for (size_t i = 0; i < from.size(); i++) from[i] = (char)(i * 7);
    char *a, *b;
    OK(cudaMalloc(&a, from.size()));
    OK(cudaMalloc(&b, from.size()));
    OK(cudaMemcpy(a, from.data(), from.size(), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(b, a, from.size(), cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(to.data(), b, from.size(), cudaMemcpyDefault));
    CHECK(from == to);
    std::fill(to.begin(), to.end(), 0);
    OK(cudaMemcpy(to.data(), from.data(), from.size(), cudaMemcpyHostToHost));
    CHECK(from == to);
    OK(cudaMemcpy(to.data(), b, 0, cudaMemcpyDeviceToHost));
    FAILS(cudaErrorInvalidMemcpyDirection, cudaMemcpy(a, b, 4, (cudaMemcpyKind)9));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemsetAsync(a, 1, from.size(), stream));
    OK(cudaMemcpyAsync(to.data(), a, from.size(), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (char c : to) CHECK(c == 1);
    return 0;
}
