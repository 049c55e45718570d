/* c = a + b, checked element by element. */
#include "sample.h"

#include <stdio.h>
#include <stdlib.h>

static const char ptx[] = PTX_HEADER
    ".visible .entry vectoradd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{\n"
    "    .reg .pred %p; .reg .f32 %x, %y; .reg .b32 %i, %n, %t; .reg .b64 %a, %b, %c, %offset;\n"
    "    ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c]; ld.param.u32 %n, [n];\n"
    "    mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t;\n"
    "    mov.u32 %t, %tid.x; add.u32 %i, %i, %t;\n"
    "    setp.ge.u32 %p, %i, %n;\n"
    "    @%p ret;\n"
    "    mul.wide.u32 %offset, %i, 4;\n"
    "    add.u64 %a, %a, %offset; add.u64 %b, %b, %offset; add.u64 %c, %c, %offset;\n"
    "    ld.global.f32 %x, [%a]; ld.global.f32 %y, [%b];\n"
    "    add.f32 %x, %x, %y;\n"
    "    st.global.f32 [%c], %x;\n"
    "    ret;\n"
    "}\n";

int main(int argc, char **argv) {
    uint64_t n = 100000;
    const struct flag flags[] = {{"n", "elements (100000)", FLAG_COUNT, {.count = &n}, 1u << 28},
                                 {0}};
    sample_begin(argc, argv, "vectoradd", "Adds two vectors on the GPU and checks the sum.", flags,
                 true);
    float *a = malloc(n * 4), *b = malloc(n * 4), *c = calloc(n, 4);
    if (!a || !b || !c) return EXIT_CUDA;
    for (uint64_t i = 0; i < n; i++) a[i] = (float)(i % 1000), b[i] = (float)(i % 77) * 0.5f;
    cu_pointer da = sample_upload(a, n * 4), db = sample_upload(b, n * 4), dc = sample_alloc(n * 4);
    unsigned count = (unsigned)n;
    void *params[] = {&da, &db, &dc, &count};
    CUDA(launch, sample_kernel(ptx, "vectoradd"), (count + 255) / 256, 1, 1, 256, 1, 1, 0, NULL,
         params, NULL);
    CUDA(from_device, c, dc, n * 4);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++) wrong += c[i] != a[i] + b[i];
    CUDA(release, da), CUDA(release, db), CUDA(release, dc);
    char fields[128];
    snprintf(fields, sizeof fields, "\"n\": %llu, \"wrong\": %llu", (unsigned long long)n,
             (unsigned long long)wrong);
    return sample_end(wrong == 0, fields, "%llu elements on %s, %llu wrong", (unsigned long long)n,
                      sample_device_name, (unsigned long long)wrong);
}
