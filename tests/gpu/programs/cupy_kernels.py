"""CuPy: arrays, a kernel of our own that it compiles, and cuBLAS."""

from program import needed, right

cp = needed("cupy")

x = cp.arange(100_000, dtype=cp.float32)
y = cp.empty_like(x)
source = r"""
extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""
cp.RawKernel(source, "twice")((391,), (256,), (x, y, cp.int32(x.size)))
eye = cp.eye(512, dtype=cp.float32)
right(bool((y == x + x).all()) and float((eye @ eye).sum()) == 512.0, "cupy")
