#include "check.h"
__global__ void blur(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
    const int x = threadIdx.x, y = threadIdx.y;
    int sum = surf2Dread<int>(from, x * 4, y) + surf2Dread<int>(from, (x - 1) * 4, y, cudaBoundaryModeZero) +
              surf2Dread<int>(from, (x + 1) * 4, y, cudaBoundaryModeClamp);
    surf2Dwrite(sum, to, x * 4, y);
    surf2Dwrite(-1, to, x * 4, y + 4, cudaBoundaryModeZero); /* below all rows */
}
__global__ void others(cudaSurfaceObject_t volume, cudaSurfaceObject_t layers, cudaSurfaceObject_t line) {
    const int i = threadIdx.x;
    surf3Dwrite(make_float2(i, -i), volume, i * 8, 1, i);
    const float2 read = surf3Dread<float2>(volume, i * 8, 1, i);
    surf2DLayeredwrite((unsigned char)(read.x * 10), layers, i, 1, i);
    surf1Dwrite((short)surf2DLayeredread<unsigned char>(layers, i, 1, i), line, i * 2);
}
__global__ void beyond(cudaSurfaceObject_t line) { surf1Dwrite((short)1, line, 6); }

static cudaSurfaceObject_t made(const cudaChannelFormatDesc &format, cudaExtent extent, unsigned flags, cudaArray_t *array) {
    cudaSurfaceObject_t surface;
    cudaResourceDesc resource = {}, asked;
    resource.resType = cudaResourceTypeArray;
    OK(cudaMalloc3DArray(array, &format, extent, flags | cudaArraySurfaceLoadStore));
    resource.res.array.array = *array;
    OK(cudaCreateSurfaceObject(&surface, &resource));
    OK(cudaGetSurfaceObjectResourceDesc(&asked, surface));
    CHECK(asked.resType == cudaResourceTypeArray && asked.res.array.array == *array);
    return surface;
}

int main() {
    cudaArray_t a, b, c, d, e;
    int in[4][8], out[4][8];
    for (int i = 0; i < 32; i++) in[0][i] = i * i;
    auto from = made(cudaCreateChannelDesc<int>(), make_cudaExtent(8, 4, 0), 0, &a);
    auto to = made(cudaCreateChannelDesc<int>(), make_cudaExtent(8, 4, 0), 0, &b);
    OK(cudaMemcpy2DToArray(a, 0, 0, in, 32, 32, 4, cudaMemcpyHostToDevice));
    blur<<<1, dim3(8, 4)>>>(from, to);
    OK(cudaMemcpy2DFromArray(out, 32, b, 0, 0, 32, 4, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 8; x++)
            CHECK(out[y][x] == in[y][x] + (x ? in[y][x - 1] : 0) + in[y][x < 7 ? x + 1 : 7]);

    auto volume = made(cudaCreateChannelDesc<float2>(), make_cudaExtent(3, 2, 3), 0, &c);
    auto layers = made(cudaCreateChannelDesc<unsigned char>(), make_cudaExtent(3, 2, 3), cudaArrayLayered, &d);
    auto line = made(cudaCreateChannelDesc<short>(), make_cudaExtent(3, 0, 0), 0, &e);
    others<<<1, 3>>>(volume, layers, line);
    short numbers[3];
    OK(cudaMemcpyFromArray(numbers, e, 0, 0, sizeof numbers, cudaMemcpyDeviceToHost));
    CHECK(numbers[0] == 0 && numbers[1] == 10 && numbers[2] == 20);

    cudaResourceDesc plain = {};
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    plain.resType = cudaResourceTypeArray;
    OK(cudaMallocArray(&plain.res.array.array, &format, 8));
    FAILS(cudaErrorInvalidValue, cudaCreateSurfaceObject(&to, &plain));
    OK(cudaDestroySurfaceObject(from));
    FAILS(cudaErrorInvalidResourceHandle, cudaDestroySurfaceObject(from));
    beyond<<<1, 1>>>(line);
    CHECK(cudaDeviceSynchronize() != cudaSuccess); /* outside of a surface, where nothing else is said */
    return 0;
}
