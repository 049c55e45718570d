#include "check.h"
__global__ void fetch(cudaTextureObject_t t, float *out) {
    const int i = threadIdx.x;
    out[i] = tex1Dfetch<float>(t, i - 2);
}
__global__ void fetch_bytes(cudaTextureObject_t t, uchar4 *whole) { whole[threadIdx.x] = tex1Dfetch<uchar4>(t, threadIdx.x); }
__global__ void read(cudaTextureObject_t t, float4 *out) {
    out[threadIdx.x] = tex2D<float4>(t, threadIdx.x % 4 + 0.5f, threadIdx.x / 4 + 0.5f);
}
int main() {
    float values[12], *d, *out, got[16];
    for (int i = 0; i < 12; i++) values[i] = i * 1.5f;
    OK(cudaMalloc(&d, sizeof values));
    OK(cudaMalloc(&out, 256));
    OK(cudaMemcpy(d, values, sizeof values, cudaMemcpyHostToDevice));
    cudaResourceDesc memory = {};
    memory.resType = cudaResourceTypeLinear;
    memory.res.linear.devPtr = d;
    memory.res.linear.desc = cudaCreateChannelDesc<float>();
    memory.res.linear.sizeInBytes = sizeof values;
    cudaTextureDesc how = {};
    cudaTextureObject_t t;
    OK(cudaCreateTextureObject(&t, &memory, &how, nullptr));
    fetch<<<1, 16>>>(t, out);
    OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 16; i++) CHECK(got[i] == (i < 2 || i >= 14 ? 0 : values[i - 2]));
    cudaResourceDesc asked;
    cudaTextureDesc read_as;
    OK(cudaGetTextureObjectResourceDesc(&asked, t));
    CHECK(asked.resType == cudaResourceTypeLinear && asked.res.linear.devPtr == d && asked.res.linear.desc.x == 32);
    OK(cudaGetTextureObjectTextureDesc(&read_as, t));
    CHECK(read_as.readMode == cudaReadModeElementType && !read_as.normalizedCoords);
    cudaResourceViewDesc view;
    FAILS(cudaErrorInvalidValue, cudaGetTextureObjectResourceViewDesc(&view, t));
    OK(cudaDestroyTextureObject(t));
    FAILS(cudaErrorInvalidResourceHandle, cudaDestroyTextureObject(t));

    memory.res.linear.desc = cudaCreateChannelDesc<uchar4>();
    OK(cudaCreateTextureObject(&t, &memory, &how, nullptr));
    fetch_bytes<<<1, 12>>>(t, (uchar4 *)out);
    OK(cudaMemcpy(got, out, sizeof values, cudaMemcpyDeviceToHost));
    CHECK(!std::memcmp(got, values, sizeof values));
    OK(cudaDestroyTextureObject(t));

    size_t pitch, width;
    uchar4 *rows, pixels[12];
    for (int i = 0; i < 12; i++) pixels[i] = make_uchar4(i, 255 - i, 0, 255);
    OK(cudaMallocPitch(&rows, &pitch, 16, 3));
    OK(cudaMemcpy2D(rows, pitch, pixels, 16, 16, 3, cudaMemcpyHostToDevice));
    memory = cudaResourceDesc();
    memory.resType = cudaResourceTypePitch2D;
    memory.res.pitch2D.devPtr = rows;
    memory.res.pitch2D.desc = cudaCreateChannelDesc<uchar4>();
    memory.res.pitch2D.width = 4;
    memory.res.pitch2D.height = 3;
    memory.res.pitch2D.pitchInBytes = pitch;
    how.readMode = cudaReadModeNormalizedFloat;
    OK(cudaCreateTextureObject(&t, &memory, &how, nullptr));
    float4 *colours, seen[12];
    OK(cudaMalloc(&colours, sizeof seen));
    read<<<1, 12>>>(t, colours);
    OK(cudaMemcpy(seen, colours, sizeof seen, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 12; i++)
        CHECK(seen[i].x == i / 255.0f && seen[i].y == (255 - i) / 255.0f && seen[i].w == 1);
    cudaChannelFormatDesc bytes = cudaCreateChannelDesc<uchar4>();
    OK(cudaDeviceGetTexture1DLinearMaxWidth(&width, &bytes, 0));
    CHECK(width >= 1 << 20);
    memory.res.pitch2D.pitchInBytes = 17;
    FAILS(cudaErrorInvalidValue, cudaCreateTextureObject(&t, &memory, &how, nullptr));
    FAILS(cudaErrorInvalidValue, cudaCreateTextureObject(nullptr, &memory, &how, nullptr));
    return 0;
}
