#include "check.h"
extern "C" void **__cudaRegisterFatBinary(void *);
extern "C" void __cudaRegisterFatBinaryEnd(void **);
extern "C" void __cudaUnregisterFatBinary(void **);
extern "C" void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *,
                                       uint3 *, dim3 *, dim3 *, int *);
/* What a program's libraries register as they are loaded goes as they are closed, and another may have
 * its kernels where they had theirs. */
static const char one[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry first(.param .u64 at) { .reg .u64 %a; ld.param.u64 %a, [at];\n"
    "st.global.u32 [%a], 1; ret; }\n";
static const char other[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry second(.param .u64 at) { .reg .u64 %a; ld.param.u64 %a, [at];\n"
    "st.global.u32 [%a], 2; ret; }\n";
static const char stub = 0;
static int launched(int *d) {
    int got = 0;
    void *arguments[] = {&d};
    for (int i = 0; i < 3; i++)
        OK(cudaLaunchKernel(&stub, dim3(1), dim3(1), arguments, 0, nullptr));
    OK(cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost));
    return got;
}
static void **registered(const char *ptx, const char *name) {
    void **handle = __cudaRegisterFatBinary((void *)ptx);
    __cudaRegisterFunction(handle, &stub, (char *)name, name, -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
    __cudaRegisterFatBinaryEnd(handle);
    return handle;
}
int main() {
    int *d;
    OK(cudaMalloc(&d, 4));
    void **handle = registered(one, "first");
    CHECK(launched(d) == 1);
    __cudaUnregisterFatBinary(handle);
    handle = registered(other, "second");
    CHECK(launched(d) == 2);
    __cudaUnregisterFatBinary(handle);
    void *arguments[] = {&d};
    CHECK(cudaLaunchKernel(&stub, dim3(1), dim3(1), arguments, 0, nullptr) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess);
    OK(cudaFree(d));
    return 0;
}
