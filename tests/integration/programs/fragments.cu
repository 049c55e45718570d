/* Products of matrices with nvcuda::wmma, of each shape and type; the sums are doubled in their fragments. */
#include "runtime/check.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;
using Row = wmma::row_major;
using Column = wmma::col_major;

template <typename T> struct Stored { using type = T; };
template <> struct Stored<wmma::precision::tf32> { using type = float; };

template <int M, int N, int K, typename T, typename Sum, typename A, typename B>
__global__ void multiply(const typename Stored<T>::type *a, const typename Stored<T>::type *b, Sum *d) {
    __shared__ __align__(32) typename Stored<T>::type near[K * N];
    for (int i = threadIdx.x; i < K * N; i += 32) near[i] = b[i];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, M, N, K, T, A> of_a;
    wmma::fragment<wmma::matrix_b, M, N, K, T, B> of_b;
    wmma::fragment<wmma::accumulator, M, N, K, Sum> sum;
    wmma::load_matrix_sync(of_a, a, std::is_same<A, Row>::value ? K : M);
    wmma::load_matrix_sync(of_b, near, std::is_same<B, Row>::value ? N : K);
    wmma::load_matrix_sync(sum, d, N, wmma::mem_row_major);
    wmma::mma_sync(sum, of_a, of_b, sum);
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] = sum.x[i] + sum.x[i];
    wmma::store_matrix_sync(d, sum, N, wmma::mem_row_major);
}

static float factor(int i, int j) { return float((i * 7 + j * 3) % 5); }

template <int M, int N, int K, typename T, typename Sum, typename A, typename B> void product() {
    using E = typename Stored<T>::type;
    std::vector<E> a(M * K), b(K * N);
    std::vector<Sum> d(M * N), expected(M * N);
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++) a[std::is_same<A, Row>::value ? i * K + k : k * M + i] = E(factor(i, k));
    for (int k = 0; k < K; k++)
        for (int j = 0; j < N; j++) b[std::is_same<B, Row>::value ? k * N + j : j * K + k] = E(factor(j, k));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = float(i + j);
            d[i * N + j] = Sum(sum);
            for (int k = 0; k < K; k++) sum += factor(i, k) * factor(j, k);
            expected[i * N + j] = Sum(2 * sum);
        }
    E *on_a, *on_b;
    Sum *on_d;
    OK(cudaMalloc(&on_a, a.size() * sizeof(E)));
    OK(cudaMalloc(&on_b, b.size() * sizeof(E)));
    OK(cudaMalloc(&on_d, d.size() * sizeof(Sum)));
    OK(cudaMemcpy(on_a, a.data(), a.size() * sizeof(E), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(on_b, b.data(), b.size() * sizeof(E), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(on_d, d.data(), d.size() * sizeof(Sum), cudaMemcpyHostToDevice));
    multiply<M, N, K, T, Sum, A, B><<<1, 32>>>(on_a, on_b, on_d);
    OK(cudaMemcpy(d.data(), on_d, d.size() * sizeof(Sum), cudaMemcpyDeviceToHost));
    CHECK(!std::memcmp(d.data(), expected.data(), d.size() * sizeof(Sum)));
    for (void *each : {(void *)on_a, (void *)on_b, (void *)on_d}) OK(cudaFree(each));
}

int main() {
    product<16, 16, 16, half, float, Row, Column>();
    product<16, 16, 16, half, half, Column, Row>();
    product<32, 8, 16, half, float, Row, Row>();
    product<8, 32, 16, half, half, Column, Column>();
    product<16, 16, 16, signed char, int, Row, Column>();
    product<32, 8, 16, unsigned char, int, Column, Row>();
    product<8, 32, 16, signed char, int, Row, Row>();
    product<16, 16, 16, __nv_bfloat16, float, Row, Column>();
    product<32, 8, 16, __nv_bfloat16, float, Column, Row>();
    product<8, 32, 16, __nv_bfloat16, float, Row, Row>();
    product<16, 16, 8, wmma::precision::tf32, float, Column, Row>();
    product<8, 8, 4, double, double, Row, Column>();
    return 0;
}
