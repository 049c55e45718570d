/* C = A·B of square matrices, in 16×16 tiles of shared memory. */
#include "sample.h"

#include <stdio.h>
#include <stdlib.h>

static const char ptx[] = PTX_HEADER
    ".visible .entry matmul(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{\n"
    "    .shared .align 4 .b8 ta[1024]; .shared .align 4 .b8 tb[1024];\n"
    "    .reg .pred %p; .reg .f32 %sum, %x, %y; .reg .b64 %a, %b, %c, %pa, %pb, %offset;\n"
    "    .reg .b32 %tx, %ty, %row, %col, %n, %tile, %k, %i, %sa, %sb, %ra, %rb;\n"
    "    ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c]; ld.param.u32 %n, [n];\n"
    "    mov.u32 %tx, %tid.x; mov.u32 %ty, %tid.y;\n"
    "    mov.u32 %row, %ctaid.y; shl.b32 %row, %row, 4; add.u32 %row, %row, %ty;\n"
    "    mov.u32 %col, %ctaid.x; shl.b32 %col, %col, 4; add.u32 %col, %col, %tx;\n"
    "    shl.b32 %i, %ty, 4; add.u32 %i, %i, %tx; shl.b32 %i, %i, 2;\n"
    "    mov.u32 %sa, ta; mov.u32 %sb, tb;\n"
    "    shl.b32 %ra, %ty, 6; add.u32 %ra, %ra, %sa;  // row of A's tile\n"
    "    shl.b32 %rb, %tx, 2; add.u32 %rb, %rb, %sb;  // column of B's tile\n"
    "    add.u32 %sa, %sa, %i; add.u32 %sb, %sb, %i;  // the cells this thread loads\n"
    "    mov.f32 %sum, 0f00000000; mov.u32 %tile, 0;\n"
    "TILE:\n"
    "    add.u32 %k, %tile, %tx; mad.lo.u32 %k, %row, %n, %k; mul.wide.u32 %offset, %k, 4; add.u64 %pa, %a, %offset;\n"
    "    add.u32 %k, %tile, %ty; mad.lo.u32 %k, %k, %n, %col; mul.wide.u32 %offset, %k, 4; add.u64 %pb, %b, %offset;\n"
    "    ld.global.f32 %x, [%pa]; st.shared.f32 [%sa], %x;\n"
    "    ld.global.f32 %y, [%pb]; st.shared.f32 [%sb], %y;\n"
    "    bar.sync 0;\n"
    "    mov.u32 %k, 0; mov.u32 %i, %rb;\n"
    "INNER:\n"
    "    add.u32 %sa, %ra, %k; ld.shared.f32 %x, [%sa]; ld.shared.f32 %y, [%i];\n"
    "    fma.rn.f32 %sum, %x, %y, %sum;\n"
    "    add.u32 %k, %k, 4; add.u32 %i, %i, 64;\n"
    "    setp.lt.u32 %p, %k, 64;\n"
    "    @%p bra INNER;\n"
    "    bar.sync 0;\n"
    "    shl.b32 %sa, %tx, 2; add.u32 %sa, %ra, %sa;\n"
    "    add.u32 %tile, %tile, 16;\n"
    "    setp.lt.u32 %p, %tile, %n;\n"
    "    @%p bra TILE;\n"
    "    mad.lo.u32 %k, %row, %n, %col; mul.wide.u32 %offset, %k, 4; add.u64 %c, %c, %offset;\n"
    "    st.global.f32 [%c], %sum;\n"
    "    ret;\n"
    "}\n";

int main(int argc, char **argv) {
    uint64_t n = 128;
    const struct flag flags[] = {
        {"n", "rows and columns, a multiple of 16 (128)", FLAG_COUNT, {.count = &n}, 4096}, {0}};
    sample_begin(argc, argv, "matmul",
                 "Multiplies two square matrices on the GPU and checks every element.", flags,
                 true);
    if (n % 16) {
        fprintf(stderr, "matmul: --n must be a multiple of 16\n");
        return EXIT_USAGE;
    }
    size_t bytes = n * n * 4;
    float *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
    if (!a || !b || !c) return EXIT_CUDA;
    for (uint64_t i = 0; i < n * n; i++) a[i] = (float)(i % 5) - 2, b[i] = (float)(i % 7) - 3;
    cu_pointer da = sample_upload(a, bytes), db = sample_upload(b, bytes), dc = sample_alloc(bytes);
    unsigned size = (unsigned)n;
    void *params[] = {&da, &db, &dc, &size};
    CUDA(launch, sample_kernel(ptx, "matmul"), size / 16, size / 16, 1, 16, 16, 1, 0, NULL, params,
         NULL);
    CUDA(from_device, c, dc, bytes);
    uint64_t wrong = 0;
    for (uint64_t row = 0; row < n; row++)
        for (uint64_t col = 0; col < n; col++) { /* small integers: exact */
            float sum = 0;
            for (uint64_t k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + col];
            wrong += c[row * n + col] != sum;
        }
    CUDA(release, da), CUDA(release, db), CUDA(release, dc);
    char fields[128];
    snprintf(fields, sizeof fields, "\"n\": %u, \"wrong\": %llu", size, (unsigned long long)wrong);
    return sample_end(wrong == 0, fields, "%u x %u on %s, %llu elements wrong", size, size,
                      sample_device_name, (unsigned long long)wrong);
}
