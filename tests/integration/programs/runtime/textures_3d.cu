#include "check.h"
__global__ void volume(cudaTextureObject_t t, float *out) {
    out[0] = tex3D<float>(t, 0.5f, 1.5f, 2.5f);
    out[1] = tex3D<float>(t, 1, 1, 1);
}
__global__ void layers(cudaTextureObject_t planes, cudaTextureObject_t lines, float *out) {
    for (int i = 0; i < 3; i++) out[i] = tex2DLayered<float>(planes, 1.5f, 0.5f, i);
    for (int i = 0; i < 3; i++) out[i + 3] = tex1DLayered<float>(lines, 1.0f, i);
}
__global__ void cube(cudaTextureObject_t t, cudaTextureObject_t cubes, float *out) {
    const float directions[6][3] = {{1, 0, 0}, {-1, 0, 0}, {0, 1, 0}, {0, -1, 0}, {0, 0, 1}, {0, 0, -1}};
    const float *v = directions[threadIdx.x];
    out[threadIdx.x] = texCubemap<float>(t, v[0], v[1], v[2]);
    out[threadIdx.x + 6] = texCubemapLayered<float>(cubes, v[0], v[1], v[2], 1);
}

/* An array whose elements count from 0, and a texture of it. */
static cudaTextureObject_t counting(size_t width, size_t height, size_t depth, unsigned flags, bool linear) {
    const size_t rows = height ? height : 1;
    std::vector<float> values(width * rows * depth);
    for (size_t i = 0; i < values.size(); i++) values[i] = (float)i;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    OK(cudaMalloc3DArray(&resource.res.array.array, &format, make_cudaExtent(width, height, depth), flags));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(values.data(), width * sizeof(float), width, rows);
    copy.dstArray = resource.res.array.array;
    copy.extent = make_cudaExtent(width, rows, depth);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    cudaTextureDesc how = {};
    how.addressMode[0] = how.addressMode[1] = how.addressMode[2] = cudaAddressModeClamp;
    how.filterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
    cudaTextureObject_t t;
    OK(cudaCreateTextureObject(&t, &resource, &how, nullptr));
    return t;
}

int main() {
    float *out, got[12];
    OK(cudaMalloc(&out, sizeof got));
    volume<<<1, 1>>>(counting(3, 4, 5, 0, true), out);
    OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 27 && got[1] == 8);
    layers<<<1, 1>>>(counting(4, 2, 3, cudaArrayLayered, false), counting(2, 0, 3, cudaArrayLayered, true), out);
    OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 3; i++) CHECK(got[i] == 1 + 8 * i && got[i + 3] == 0.5f + 2 * i);
    cube<<<1, 6>>>(counting(1, 1, 6, cudaArrayCubemap, false), counting(1, 1, 12, cudaArrayCubemap | cudaArrayLayered, false), out);
    OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 12; i++) CHECK(got[i] == i);
    return 0;
}
