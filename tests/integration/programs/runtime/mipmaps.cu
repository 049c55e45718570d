#include "check.h"
__global__ void halve(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
    const int x = threadIdx.x, y = threadIdx.y;
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += surf2Dread<float>(from, (2 * x + i % 2) * 4, 2 * y + i / 2);
    surf2Dwrite(sum / 4, to, x * 4, y);
}
__global__ void levels(cudaTextureObject_t t, float *out) {
    out[threadIdx.x] = tex2DLod<float>(t, 0.5f, 0.5f, threadIdx.x * 0.5f);
    if (threadIdx.x == 0) out[7] = tex2DGrad<float>(t, 0.5f, 0.5f, make_float2(0.5f, 0), make_float2(0, 0.25f));
    if (threadIdx.x == 0) out[8] = tex2D<float>(t, 0.1f, 0.1f);
}

static cudaSurfaceObject_t of_level(cudaMipmappedArray_t mipmap, unsigned level, cudaExtent *extent) {
    cudaResourceDesc resource = {};
    cudaSurfaceObject_t surface;
    resource.resType = cudaResourceTypeArray;
    OK(cudaGetMipmappedArrayLevel(&resource.res.array.array, mipmap, level));
    OK(cudaArrayGetInfo(nullptr, extent, nullptr, resource.res.array.array));
    OK(cudaCreateSurfaceObject(&surface, &resource));
    return surface;
}

static std::vector<float> read(const cudaResourceDesc &resource, const cudaTextureDesc &how) {
    cudaTextureObject_t t;
    float *out;
    std::vector<float> got(9);
    OK(cudaCreateTextureObject(&t, &resource, &how, nullptr));
    OK(cudaMalloc(&out, 9 * sizeof(float)));
    levels<<<1, 7>>>(t, out);
    OK(cudaMemcpy(got.data(), out, 9 * sizeof(float), cudaMemcpyDeviceToHost));
    OK(cudaDestroyTextureObject(t));
    OK(cudaFree(out));
    return got;
}

int main() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t mipmap;
    OK(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(8, 8, 0), 4, cudaArraySurfaceLoadStore));
    float picture[64];
    for (int i = 0; i < 64; i++) picture[i] = (float)(i % 8 + i / 8);
    cudaArray_t first;
    OK(cudaGetMipmappedArrayLevel(&first, mipmap, 0));
    OK(cudaMemcpyToArray(first, 0, 0, picture, sizeof picture, cudaMemcpyHostToDevice));
    cudaExtent extent;
    for (unsigned level = 1; level < 4; level++) {
        cudaSurfaceObject_t from = of_level(mipmap, level - 1, &extent), to = of_level(mipmap, level, &extent);
        CHECK(extent.width == 8u >> level && extent.height == 8u >> level);
        halve<<<1, dim3(8 >> level, 8 >> level)>>>(from, to);
        OK(cudaDestroySurfaceObject(from));
        OK(cudaDestroySurfaceObject(to));
    }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = mipmap;
    cudaTextureDesc how = {};
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    how.normalizedCoords = 1;
    how.maxMipmapLevelClamp = 2;
    const float nearest[9] = {8, 9, 9, 11, 11, 11, 11, 11, 0}, between[9] = {8, 8.5f, 9, 10, 11, 11, 11, 11, 0};
    CHECK(!std::memcmp(read(resource, how).data(), nearest, sizeof nearest));
    how.mipmapFilterMode = cudaFilterModeLinear;
    CHECK(!std::memcmp(read(resource, how).data(), between, sizeof between));
    FAILS(cudaErrorInvalidValue, cudaGetMipmappedArrayLevel(&first, mipmap, 4));
    how.normalizedCoords = 0;
    cudaTextureObject_t t;
    FAILS(cudaErrorInvalidValue, cudaCreateTextureObject(&t, &resource, &how, nullptr));
    OK(cudaFreeMipmappedArray(mipmap));
    return 0;
}
