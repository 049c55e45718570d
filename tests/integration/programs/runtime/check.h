/* Every program here checks itself: it prints nothing but what is wrong, and fails by its exit
 * status. */
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(condition)                                                \
    do {                                                                \
        if (!(condition)) {                                             \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                               \
        }                                                               \
    } while (0)

#define OK(call)                                                                                 \
    do {                                                                                         \
        cudaError_t error_ = (call);                                                             \
        if (error_ != cudaSuccess) {                                                             \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(error_)); \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)

/* The call fails with this error, which is then the thread's last one, once. */
#define FAILS(error, call)                        \
    do {                                          \
        CHECK((call) == (error));                 \
        CHECK(cudaPeekAtLastError() == (error));  \
        CHECK(cudaGetLastError() == (error));     \
        CHECK(cudaGetLastError() == cudaSuccess); \
    } while (0)
