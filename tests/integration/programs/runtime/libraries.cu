#include "check.h"
#include <unistd.h>
/* Code that a program loads itself: from memory, from a file, and what is in it. */
static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                          ".visible .global .align 4 .u32 factor = 3;\n"
                          ".visible .entry scale(.param .u64 at) {\n"
                          ".reg .u64 %a; .reg .u32 %x<3>;\n"
                          "ld.param.u64 %a, [at]; ld.global.u32 %x1, [%a];\n"
                          "ld.global.u32 %x2, [factor]; mul.lo.u32 %x1, %x1, %x2;\n"
                          "st.global.u32 [%a], %x1; ret; }\n"
                          ".visible .entry other() { ret; }\n";
static void check(cudaLibrary_t library, int *d, int want) {
    cudaKernel_t scale, all[4] = {};
    unsigned count = 0;
    OK(cudaLibraryGetKernelCount(&count, library));
    CHECK(count == 2);
    OK(cudaLibraryEnumerateKernels(all, 2, library));
    OK(cudaLibraryGetKernel(&scale, library, "scale"));
    CHECK((all[0] == scale) != (all[1] == scale));
    void *factor;
    size_t bytes = 0;
    int value = want, got = 7;
    OK(cudaLibraryGetGlobal(&factor, &bytes, library, "factor"));
    CHECK(bytes == 4);
    OK(cudaMemcpy(factor, &value, 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(d, &got, 4, cudaMemcpyHostToDevice));
    void *arguments[] = {&d};
    OK(cudaLaunchKernel((const void *)scale, dim3(1), dim3(1), arguments, 0, nullptr));
    OK(cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost));
    CHECK(got == 7 * want);
    cudaKernel_t none;
    FAILS(cudaErrorSymbolNotFound, cudaLibraryGetKernel(&none, library, "absent"));
    FAILS(cudaErrorSymbolNotFound, cudaLibraryGetGlobal(&factor, &bytes, library, "absent"));
    FAILS(cudaErrorNotSupported, cudaLibraryGetManaged(&factor, &bytes, library, "factor"));
    FAILS(cudaErrorNotSupported, cudaLibraryGetUnifiedFunction(&factor, library, "scale"));
}
int main() {
    int *d;
    cudaLibrary_t library;
    OK(cudaMalloc(&d, 4));
    OK(cudaLibraryLoadData(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    check(library, d, 5);
    OK(cudaLibraryUnload(library));
    char path[] = "/tmp/library-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0 && write(file, ptx, sizeof ptx) == (ssize_t)sizeof ptx && close(file) == 0);
    OK(cudaLibraryLoadFromFile(&library, path, nullptr, nullptr, 0, nullptr, nullptr, 0));
    unlink(path);
    check(library, d, 6);
    OK(cudaLibraryUnload(library));
    FAILS(cudaErrorInvalidPtx,
          cudaLibraryLoadData(&library, "no PTX", nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cudaFree(d));
    return 0;
}
