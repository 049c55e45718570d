#include "check.h"
__global__ void along(cudaTextureObject_t t, const float2 *at, float *out) {
    out[threadIdx.x] = tex2D<float>(t, at[threadIdx.x].x, at[threadIdx.x].y);
}
__global__ void whole(cudaTextureObject_t t, int *out) { out[threadIdx.x] = tex1D<int>(t, (float)threadIdx.x); }
__global__ void gather(cudaTextureObject_t t, float4 *out) { *out = tex2Dgather<float4>(t, 1, 1, 0); }

static std::vector<float> read(cudaArray_t array, cudaTextureAddressMode mode, cudaTextureFilterMode filter, bool normalized,
                               const std::vector<float2> &at) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how = {};
    how.addressMode[0] = how.addressMode[1] = mode;
    how.filterMode = filter;
    how.normalizedCoords = normalized;
    how.borderColor[0] = 100;
    cudaTextureObject_t t;
    float2 *places;
    float *out;
    std::vector<float> got(at.size());
    OK(cudaCreateTextureObject(&t, &resource, &how, nullptr));
    OK(cudaMalloc(&places, at.size() * sizeof(float2)));
    OK(cudaMalloc(&out, at.size() * sizeof(float)));
    OK(cudaMemcpy(places, at.data(), at.size() * sizeof(float2), cudaMemcpyHostToDevice));
    along<<<1, (unsigned)at.size()>>>(t, places, out);
    OK(cudaMemcpy(got.data(), out, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
    OK(cudaDestroyTextureObject(t));
    OK(cudaFree(places));
    OK(cudaFree(out));
    return got;
}

int main() {
    using floats = std::vector<float>;
    const float picture[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    OK(cudaMallocArray(&array, &format, 4, 2, cudaArrayTextureGather));
    OK(cudaMemcpyToArray(array, 0, 0, picture, sizeof picture, cudaMemcpyHostToDevice));
    auto point = cudaFilterModePoint, linear = cudaFilterModeLinear;
    CHECK(read(array, cudaAddressModeClamp, point, false, {{0, 0}, {3.9f, 1.9f}, {-5, 9}}) == (floats{0, 7, 4}));
    CHECK(read(array, cudaAddressModeBorder, point, false, {{-1, 0}, {1, 2}, {1, 1}}) == (floats{100, 100, 5}));
    CHECK(read(array, cudaAddressModeWrap, point, true, {{1.25f, 0.5f}, {-0.25f, 0}}) == (floats{5, 3}));
    CHECK(read(array, cudaAddressModeMirror, point, true, {{1.1f, 0}, {-0.3f, 1.2f}}) == (floats{3, 5}));
    CHECK(read(array, cudaAddressModeClamp, linear, false, {{1, 1}, {1.5f + 1 / 1024.0f, 0}, {2, 0.5f}}) == (floats{2.5f, 1, 1.5f}));
    CHECK(read(array, cudaAddressModeWrap, linear, true, {{0, 0.25f}}) == (floats{1.5f}));
    CHECK(read(array, cudaAddressModeBorder, linear, false, {{0, 0.5f}}) == (floats{50}));

    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how = {};
    cudaTextureObject_t t;
    OK(cudaCreateTextureObject(&t, &resource, &how, nullptr));
    float4 *four, of_four;
    OK(cudaMalloc(&four, sizeof *four));
    gather<<<1, 1>>>(t, four);
    OK(cudaMemcpy(&of_four, four, sizeof of_four, cudaMemcpyDeviceToHost));
    CHECK(of_four.x == 4 && of_four.y == 5 && of_four.z == 1 && of_four.w == 0);
    OK(cudaDestroyTextureObject(t));

    /* Whole numbers of 16 bits, by a view that calls them signed. */
    const unsigned short line[4] = {1, 2, 65535, 32768};
    format = cudaCreateChannelDesc<unsigned short>();
    OK(cudaMallocArray(&resource.res.array.array, &format, 4));
    OK(cudaMemcpyToArray(resource.res.array.array, 0, 0, line, sizeof line, cudaMemcpyHostToDevice));
    cudaResourceViewDesc view = {}, kept;
    view.format = cudaResViewFormatSignedShort1;
    view.width = 4;
    OK(cudaCreateTextureObject(&t, &resource, &how, &view));
    OK(cudaGetTextureObjectResourceViewDesc(&kept, t));
    CHECK(kept.format == cudaResViewFormatSignedShort1 && kept.width == 4);
    int *d, numbers[4];
    OK(cudaMalloc(&d, sizeof numbers));
    whole<<<1, 4>>>(t, d);
    OK(cudaMemcpy(numbers, d, sizeof numbers, cudaMemcpyDeviceToHost));
    CHECK(numbers[0] == 1 && numbers[1] == 2 && numbers[2] == -1 && numbers[3] == -32768);
    how.filterMode = cudaFilterModeLinear;
    FAILS(cudaErrorInvalidFilterSetting, cudaCreateTextureObject(&t, &resource, &how, nullptr));
    OK(cudaFreeArray(array));
    return 0;
}
