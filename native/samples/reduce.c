/* A sum: by halves in shared memory with barriers, then by shuffles in one warp, then one atomic
 * per block. */
#include "sample.h"

#include <stdio.h>
#include <stdlib.h>

static const char ptx[] = PTX_HEADER
    ".visible .entry reduce(.param .u64 in, .param .u64 out, .param .u32 n)\n"
    "{\n"
    "    .shared .align 4 .b8 cells[1024];\n"
    "    .reg .pred %p; .reg .f32 %x, %y; .reg .b32 %i, %n, %t, %cell, %other, %half, %bits; .reg .b64 %in, %out, %offset;\n"
    "    ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; ld.param.u32 %n, [n];\n"
    "    mov.u32 %t, %tid.x; mov.u32 %i, %ctaid.x; shl.b32 %i, %i, 8; add.u32 %i, %i, %t;\n"
    "    mov.f32 %x, 0f00000000;\n"
    "    setp.ge.u32 %p, %i, %n;\n"
    "    @%p bra STORE;\n"
    "    mul.wide.u32 %offset, %i, 4; add.u64 %in, %in, %offset; ld.global.f32 %x, [%in];\n"
    "STORE:\n"
    "    shl.b32 %cell, %t, 2; mov.u32 %other, cells; add.u32 %cell, %cell, %other;\n"
    "    st.shared.f32 [%cell], %x;\n"
    "    mov.u32 %half, 128;\n"
    "HALVE:\n"
    "    bar.sync 0;\n"
    "    setp.ge.u32 %p, %t, %half;\n"
    "    @%p bra NEXT;\n"
    "    shl.b32 %other, %half, 2; add.u32 %other, %other, %cell;\n"
    "    ld.shared.f32 %y, [%other]; ld.shared.f32 %x, [%cell]; add.f32 %x, %x, %y; st.shared.f32 [%cell], %x;\n"
    "NEXT:\n"
    "    shr.u32 %half, %half, 1;\n"
    "    setp.ge.u32 %p, %half, 32;\n"
    "    @%p bra HALVE;\n"
    "    bar.sync 0;\n"
    "    setp.ge.u32 %p, %t, 32;\n"
    "    @%p ret;\n"
    "    ld.shared.f32 %x, [%cell];\n"
    "    mov.u32 %half, 16;\n"
    "LANES:\n"
    "    mov.b32 %bits, %x; shfl.sync.down.b32 %other, %bits, %half, 31, -1; mov.b32 %y, %other;\n"
    "    add.f32 %x, %x, %y;\n"
    "    shr.u32 %half, %half, 1;\n"
    "    setp.ne.u32 %p, %half, 0;\n"
    "    @%p bra LANES;\n"
    "    setp.ne.u32 %p, %t, 0;\n"
    "    @%p ret;\n"
    "    red.global.add.f32 [%out], %x;\n"
    "    ret;\n"
    "}\n";

int main(int argc, char **argv) {
    uint64_t n = 100000;
    const struct flag flags[] = {{"n", "elements (100000)", FLAG_COUNT, {.count = &n}, 4000000},
                                 {0}};
    sample_begin(argc, argv, "reduce",
                 "Sums a vector on the GPU; the numbers are small, so the sum is exact.", flags,
                 true);
    float *x = malloc(n * 4), sum = 0, expected = 0;
    if (!x) return EXIT_CUDA;
    /* below 2^24 in all: every partial sum is exact in any order */
    for (uint64_t i = 0; i < n; i++) {
        x[i] = (float)(i % 4);
        expected += x[i];
    }
    cu_pointer in = sample_upload(x, n * 4), out = sample_upload(&sum, 4);
    unsigned count = (unsigned)n;
    void *params[] = {&in, &out, &count};
    CUDA(launch, sample_kernel(ptx, "reduce"), (count + 255) / 256, 1, 1, 256, 1, 1, 0, NULL,
         params, NULL);
    CUDA(from_device, &sum, out, 4);
    CUDA(release, in), CUDA(release, out);
    char fields[128];
    snprintf(fields, sizeof fields, "\"n\": %llu, \"sum\": %.0f, \"expected\": %.0f",
             (unsigned long long)n, sum, expected);
    return sample_end(sum == expected, fields, "sum of %llu elements on %s is %.0f, expected %.0f",
                      (unsigned long long)n, sample_device_name, sum, expected);
}
