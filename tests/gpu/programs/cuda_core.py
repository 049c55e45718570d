"""cuda.core: a kernel that NVRTC compiles, on memory of the device's own pool."""

from program import needed, right

package = needed("cuda.core")
np = needed("numpy")
core = package if hasattr(package, "Device") else needed("cuda.core.experimental")
driver = needed("cuda.bindings.driver")
N = 100_000
SOURCE = """
extern "C" __global__ void fill(float* x, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 0.5f * i;
}
"""

device = core.Device()
device.set_current()
stream = device.create_stream()
options = core.ProgramOptions(arch="sm_{}{}".format(*device.compute_capability))
kernel = core.Program(SOURCE, code_type="c++", options=options).compile("cubin").get_kernel("fill")
buffer = device.allocate(4 * N, stream=stream)
core.launch(stream, core.LaunchConfig(grid=(N + 255) // 256, block=256), kernel, buffer, np.uint32(N))
stream.sync()
host = np.zeros(N, dtype=np.float32)
(result,) = driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), host.nbytes)
buffer.close(stream)
right(int(result) == 0 and bool(np.array_equal(host, 0.5 * np.arange(N, dtype=np.float32))), "cuda-core")
