#include "check.h"
template <typename T> __global__ void saxpy(T a, const T *x, T *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += a * x[i];
}
template <typename T> static void run() {
    const int n = 777;
    std::vector<T> x(n), y(n, 1);
    for (int i = 0; i < n; i++) x[i] = (T)i;
    T *dx, *dy;
    OK(cudaMalloc(&dx, n * sizeof(T)));
    OK(cudaMalloc(&dy, n * sizeof(T)));
    OK(cudaMemcpy(dx, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(dy, y.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    saxpy<T><<<3, 64>>>((T)2, dx, dy, n);
    OK(cudaMemcpy(y.data(), dy, n * sizeof(T), cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(y[i] == (T)(2 * i + 1));
}
int main() {
    run<float>();
    run<double>();
    run<int>();
    return 0;
}
