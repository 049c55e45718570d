#include "check.h"
#include <fcntl.h>
#include <unistd.h>
/* Code that comes as text while the program runs. */
static const char TEXT[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 number = 17;\n"
    ".visible .entry copy(.param .u64 to) {\n"
    "    .reg .b64 %p<3>;\n    .reg .b32 %n;\n"
    "    ld.param.u64 %p1, [to];\n    cvta.to.global.u64 %p1, %p1;\n"
    "    ld.global.u32 %n, [number];\n    st.global.u32 [%p1], %n;\n    ret;\n}\n"
    ".visible .entry nothing() { ret; }\n";
static cudaLibrary_t from_file() {
    char path[] = "/tmp/egpu-library-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0 && write(file, TEXT, sizeof TEXT - 1) == (ssize_t)sizeof TEXT - 1);
    close(file);
    cudaLibrary_t library;
    const cudaError_t loaded = cudaLibraryLoadFromFile(&library, path, nullptr, nullptr, 0, nullptr, nullptr, 0);
    unlink(path);
    OK(loaded);
    return library;
}
static void check(cudaLibrary_t library) {
    cudaKernel_t copy, listed[2];
    unsigned count = 0;
    size_t bytes = 0;
    void *number = nullptr, *managed = nullptr, *unified = nullptr;
    int *d, h = 0, other = 23;
    OK(cudaLibraryGetKernelCount(&count, library));
    CHECK(count == 2);
    OK(cudaLibraryEnumerateKernels(listed, 2, library));
    OK(cudaLibraryGetKernel(&copy, library, "copy"));
    CHECK(copy == listed[0] || copy == listed[1]);
    FAILS(cudaErrorSymbolNotFound, cudaLibraryGetKernel(&copy, library, "none"));
    OK(cudaLibraryGetGlobal(&number, &bytes, library, "number"));
    CHECK(bytes == 4);
    CHECK(cudaLibraryGetManaged(&managed, &bytes, library, "number") != cudaSuccess);
    CHECK(cudaLibraryGetUnifiedFunction(&unified, library, "copy") != cudaSuccess);
    cudaGetLastError();
    OK(cudaMalloc(&d, sizeof h));
    void *arguments[] = {&d};
    OK(cudaLibraryGetKernel(&copy, library, "copy"));
    for (int expected : {17, 23}) {
        OK(cudaLaunchKernel((const void *)copy, dim3(1), dim3(1), arguments, 0, 0));
        OK(cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost));
        CHECK(h == expected);
        OK(cudaMemcpy(number, &other, sizeof other, cudaMemcpyHostToDevice));
    }
    OK(cudaFree(d));
    OK(cudaLibraryUnload(library));
}
int main() {
    cudaLibrary_t library;
    OK(cudaLibraryLoadData(&library, TEXT, nullptr, nullptr, 0, nullptr, nullptr, 0));
    check(library);
    check(from_file());
    FAILS(cudaErrorFileNotFound,
          cudaLibraryLoadFromFile(&library, "/nonexistent", nullptr, nullptr, 0, nullptr, nullptr, 0));
    return 0;
}
