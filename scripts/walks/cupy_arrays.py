"""CuPy's wheel: its runtime, arrays, a kernel that it compiles, and cuBLAS."""

import steps

SOURCE = 'extern "C" __global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'


def runtime() -> None:
    import cupy

    assert cupy.cuda.runtime.getDeviceCount() == 1


def arrays() -> None:
    import cupy

    x = cupy.arange(1000, dtype=cupy.float32)
    float((x + x).sum())


def kernel() -> None:
    import cupy

    x = cupy.ones(32, dtype=cupy.float32)
    cupy.RawKernel(SOURCE, "twice")((1,), (32,), (x, cupy.empty_like(x)))


def products() -> None:
    import cupy

    eye = cupy.eye(64, dtype=cupy.float32)
    float((eye @ eye).sum())


for each in (runtime, arrays, kernel, products):
    steps.step(each.__name__, each)
