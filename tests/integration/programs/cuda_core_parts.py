"""What NVIDIA's examples of cuda.core do, compiled to PTX and without CuPy: the parts that are named."""

import json
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any, Final

import numpy as np

core: Any = import_module("cuda.core")  # which says nothing of its types
driver: Any = import_module("cuda.bindings.driver")

SOURCE: Final = """
template <typename T>
__global__ void saxpy(T a, const T *x, const T *y, T *out, size_t n) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = a * x[i] + y[i];
}
extern "C" __global__ void add_one(int *value) { *value += 1; }
"""
COUNT: Final = 1000
NAMES: Final = ("saxpy<float>", "saxpy<double>")

device = core.Device()
device.set_current()
stream = device.create_stream()
options = core.ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
module = core.Program(SOURCE, code_type="c++", options=options).compile("ptx", name_expressions=NAMES)
ONE_BLOCK = core.LaunchConfig(grid=1, block=1)


@contextmanager
def pinned(count: int) -> Generator[tuple[Any, Any]]:
    """Memory of the host that the device sees, and its numbers."""
    with closing(core.LegacyPinnedMemoryResource().allocate(4 * count)) as buffer:
        values = np.from_dlpack(buffer).view(np.int32)
        values[:] = 0
        yield buffer, values


def saxpy(name: str, dtype: Any) -> bool:
    """A kernel from a template, on memory of the device's own pool."""
    x, y = np.arange(COUNT, dtype=dtype), np.full(COUNT, 3, dtype=dtype)
    out = np.zeros(COUNT, dtype=dtype)
    buffers = [device.allocate(x.nbytes, stream=stream) for _ in range(3)]
    for buffer, array in zip(buffers, (x, y), strict=False):
        driver.cuMemcpyHtoDAsync(int(buffer.handle), array.ctypes.data, array.nbytes, int(stream.handle))
    config = core.LaunchConfig(grid=4, block=64)
    core.launch(stream, config, module.get_kernel(name), dtype(10), *buffers, np.uint64(COUNT))
    driver.cuMemcpyDtoHAsync(out.ctypes.data, int(buffers[2].handle), out.nbytes, int(stream.handle))
    stream.sync()
    for buffer in buffers:
        buffer.close(stream)
    return bool(np.array_equal(out, 10 * x + y))


def own_pool() -> bool:
    """What is on the device is copied through a pool that is made for it, and back to the host."""
    options = core.DeviceMemoryResourceOptions(max_size=64 << 20)
    with closing(core.DeviceMemoryResource(device, options=options)) as resource, pinned(COUNT) as (buffer, values):
        values[:] = np.arange(COUNT)
        with closing(resource.allocate(4 * COUNT, stream=stream)) as there:
            buffer.copy_to(there, stream=stream)
            stream.sync()
            values[:] = 0
            there.copy_to(buffer, stream=stream)
            stream.sync()
        return values.tolist() == list(range(COUNT))


def events() -> bool:
    """Time between two events, and a stream that waits for another."""
    other = device.create_stream()
    begun = stream.record(options=core.EventOptions(timing_enabled=True))
    with pinned(1) as (buffer, values):
        core.launch(stream, ONE_BLOCK, module.get_kernel("add_one"), buffer)
        ended = stream.record(options=core.EventOptions(timing_enabled=True))
        other.wait(ended)
        other.sync()
        return bool(ended - begun >= 0) and values.tolist() == [1]


def graph() -> bool:
    """What a stream captures is launched several times, and then with what another capture was given."""
    with pinned(2) as (buffer, values):

        def captured(target: int) -> Any:
            builder = device.create_graph_builder().begin_building()
            for _ in range(2):
                core.launch(builder, ONE_BLOCK, module.get_kernel("add_one"), target)
            return builder.end_building()

        first, second = (captured(int(buffer.handle) + offset) for offset in (0, values.itemsize))
        with closing(first), closing(second), closing(first.complete()) as whole:
            whole.upload(stream)
            for _ in range(3):
                whole.launch(stream)
            whole.update(second)
            whole.launch(stream)
            stream.sync()
        return values.tolist() == [6, 2]


def host_pool(resource: Any) -> bool:
    """What the host wrote into memory of a pool is changed by a kernel, and copied to memory of another."""
    with closing(resource), closing(resource.allocate(4, stream=stream)) as buffer, pinned(1) as (copy, copied):
        values = np.from_dlpack(buffer).view(np.int32)
        values[:] = 41
        core.launch(stream, ONE_BLOCK, module.get_kernel("add_one"), buffer)
        buffer.copy_to(copy, stream=stream)
        stream.sync()
        return values.tolist() == copied.tolist() == [42]


def properties() -> bool:
    """Every property that the package knows can be asked for."""
    shown = device.properties
    asked = [getattr(shown, name) for name in dir(type(shown)) if not name.startswith("_")]
    return len(asked) > 100 and shown.multiprocessor_count > 0


PARTS: Final[dict[str, Callable[[], bool]]] = {
    "templates": lambda: saxpy("saxpy<float>", np.float32) and saxpy("saxpy<double>", np.float64),
    "own pool": own_pool,
    "events": events,
    "graph": graph,
    "pinned pool": lambda: host_pool(core.PinnedMemoryResource()),
    "managed pool": lambda: host_pool(core.ManagedMemoryResource()),
    "properties": properties,
}


def outcome(part: Callable[[], bool]) -> bool | str:
    try:
        return part()
    except Exception as error:  # the other parts are told of as well
        return f"{type(error).__name__}: {error}"


warnings.simplefilter("ignore")
print(json.dumps({name: outcome(PARTS[name]) for name in sys.argv[1:]}))
