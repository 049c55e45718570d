/* y = a·x + y with a fused multiply-add, in a grid-stride loop. */
#include "sample.h"

#include <stdio.h>
#include <stdlib.h>

static const char ptx[] = PTX_HEADER
    ".visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u32 n)\n"
    "{\n"
    "    .reg .pred %p; .reg .f32 %a, %u, %v; .reg .b32 %i, %n, %t, %stride; .reg .b64 %x, %y, %px, %py, %offset;\n"
    "    ld.param.f32 %a, [a]; ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u32 %n, [n];\n"
    "    mov.u32 %i, %ctaid.x; mov.u32 %stride, %ntid.x; mov.u32 %t, %tid.x;\n"
    "    mad.lo.u32 %i, %i, %stride, %t;\n"
    "    mov.u32 %t, %nctaid.x; mul.lo.u32 %stride, %stride, %t;\n"
    "LOOP:\n"
    "    setp.ge.u32 %p, %i, %n;\n"
    "    @%p ret;\n"
    "    mul.wide.u32 %offset, %i, 4; add.u64 %px, %x, %offset; add.u64 %py, %y, %offset;\n"
    "    ld.global.f32 %u, [%px]; ld.global.f32 %v, [%py];\n"
    "    fma.rn.f32 %v, %a, %u, %v;\n"
    "    st.global.f32 [%py], %v;\n"
    "    add.u32 %i, %i, %stride;\n"
    "    bra LOOP;\n"
    "}\n";

int main(int argc, char **argv) {
    uint64_t n = 100000, rounds = 3;
    const struct flag flags[] = {{"n", "elements (100000)", FLAG_COUNT, {.count = &n}, 1u << 28},
                                 {"rounds",
                                  "launches, each on the previous one's result (3)",
                                  FLAG_COUNT,
                                  {.count = &rounds},
                                  1000},
                                 {0}};
    sample_begin(argc, argv, "saxpy",
                 "Computes y = 2x + y on the GPU, several times over, and checks it.", flags, true);
    float *x = malloc(n * 4), *y = malloc(n * 4), a = 2;
    if (!x || !y) return EXIT_CUDA;
    for (uint64_t i = 0; i < n; i++) x[i] = (float)(i % 100), y[i] = 1;
    cu_pointer dx = sample_upload(x, n * 4), dy = sample_upload(y, n * 4);
    unsigned count = (unsigned)n, blocks = (count + 255) / 256;
    void *params[] = {&a, &dx, &dy, &count};
    cu_function kernel = sample_kernel(ptx, "saxpy");
    for (uint64_t i = 0; i < rounds; i++)
        CUDA(launch, kernel, blocks < 64 ? blocks : 64, 1, 1, 256, 1, 1, 0, NULL, params, NULL);
    CUDA(from_device, y, dy, n * 4);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) wrong += y[i] != (float)rounds * 2 * x[i] + 1;
    CUDA(release, dx), CUDA(release, dy);
    char fields[128];
    snprintf(fields, sizeof fields, "\"n\": %llu, \"rounds\": %llu, \"wrong\": %llu",
             (unsigned long long)n, (unsigned long long)rounds, (unsigned long long)wrong);
    return sample_end(wrong == 0, fields, "%llu elements, %llu rounds on %s, %llu wrong",
                      (unsigned long long)n, (unsigned long long)rounds, sample_device_name,
                      (unsigned long long)wrong);
}
