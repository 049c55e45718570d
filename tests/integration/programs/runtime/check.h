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

/* A driver before this version does not have it, and says so. */
static inline bool driver_since(int version) {
    int is = 0;
    OK(cudaDriverGetVersion(&is));
    return is >= version;
}
#define SINCE(version, call)                    \
    do {                                        \
        if (driver_since(version))              \
            OK(call);                           \
        else                                    \
            FAILS(cudaErrorNotSupported, call); \
    } while (0)

/* Where the driver says that it does not have this, the whole program is refused, and main.h says
 * so. */
#define REFUSED_STATUS 3
#define REFUSED(call)                                                     \
    do {                                                                  \
        cudaError_t refused_ = (call);                                    \
        if (refused_ == cudaErrorNotSupported) std::exit(REFUSED_STATUS); \
        OK(refused_);                                                     \
    } while (0)
