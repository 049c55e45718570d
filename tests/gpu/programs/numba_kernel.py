"""numba: a kernel compiled from Python, copies, a stream, pinned memory."""

from typing import Any

from program import needed, right

cuda = needed("numba.cuda")
np = needed("numpy")
N = 100_000


@cuda.jit
def add(a: Any, b: Any, c: Any) -> None:
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


a = np.arange(N, dtype=np.float32)
c = cuda.device_array_like(a)
add[391, 256](cuda.to_device(a), cuda.to_device(2 * a), c)
stream = cuda.stream()
with cuda.pinned(a):
    again = cuda.to_device(a, stream=stream)
    stream.synchronize()
right(bool(np.array_equal(c.copy_to_host(), 3 * a)) and bool(np.array_equal(again.copy_to_host(), a)), "numba")
