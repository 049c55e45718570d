"""One small program of each library, checked: smoke.py LIBRARY. One JSON line, with the whole error where it fails."""

import json
import sys
import time
import traceback

N = 100_000


def cupy():
    import cupy as cp

    x = cp.arange(N, dtype=cp.float32)
    raw = cp.RawKernel(
        'extern "C" __global__ void k(const float* x, float* y, int n) {'
        " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }",
        "k",
    )
    y = cp.empty_like(x)
    raw(((N + 255) // 256,), (256,), (x, y, cp.int32(N)))
    return {"version": cp.__version__, "right": bool((y == x + x).all()) and float(cp.linalg.norm(cp.eye(64))) == 8.0}


def jax():
    import jax as j
    import jax.numpy as jnp

    x = jnp.arange(1 << 20, dtype=jnp.float32)
    got = j.jit(lambda v: (v * 2 + 1).sum())(x)
    a = jnp.ones((1024, 1024))
    stats = j.devices()[0].memory_stats() or {}
    return {
        "version": j.__version__,
        "devices": str(j.devices()),
        "right": abs(float(got) / ((1 << 20) * float(1 << 20)) - 1) < 1e-3 and float((a @ a)[0, 0]) == 1024.0,
        "limit_mib": stats.get("bytes_limit", 0) >> 20,
    }


def numba():
    import numba as nb
    import numpy as np
    from numba import cuda

    @cuda.jit
    def add(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    a = np.arange(N, dtype=np.float32)
    da, db = cuda.to_device(a), cuda.to_device(2 * a)
    dc = cuda.device_array_like(a)
    add[(N + 255) // 256, 256](da, db, dc)
    stream = cuda.stream()
    with cuda.pinned(a):
        again = cuda.to_device(a, stream=stream)
        stream.synchronize()
    return {
        "version": nb.__version__,
        "right": bool(np.array_equal(dc.copy_to_host(), 3 * a)) and bool(np.array_equal(again.copy_to_host(), a)),
    }


def core():
    """cuda.core with NVRTC, and cuda.bindings: the driver's API, from Python."""
    import cuda.core as package
    import numpy as np
    from cuda.bindings import driver as cu

    names = package if hasattr(package, "Device") else __import__("cuda.core.experimental", fromlist=["Device"])
    device = names.Device()
    device.set_current()
    stream = device.create_stream()
    arch = "".join(map(str, device.compute_capability))
    source = (
        'extern "C" __global__ void add(const float* a, const float* b, float* c, unsigned n) {'
        " unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }"
    )
    kernel = (
        names.Program(source, code_type="c++", options=names.ProgramOptions(arch=f"sm_{arch}"))
        .compile("cubin")
        .get_kernel("add")
    )

    def do(answer):
        if answer[0] != cu.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{answer[0]}")
        return answer[1] if len(answer) > 1 else None

    a = np.arange(N, dtype=np.float32)
    c = np.zeros_like(a)
    pointers = [int(do(cu.cuMemAlloc(a.nbytes))) for _ in range(3)]
    for pointer in pointers[:2]:
        do(cu.cuMemcpyHtoD(pointer, a.ctypes.data, a.nbytes))
    names.launch(stream, names.LaunchConfig(grid=(N + 255) // 256, block=256), kernel, *pointers, np.uint32(N))
    stream.sync()
    do(cu.cuMemcpyDtoH(c.ctypes.data, pointers[2], c.nbytes))
    buffer = device.allocate(1 << 20, stream=stream)
    buffer.close(stream)
    stream.sync()
    return {"version": package.__version__, "device": device.name, "right": bool(np.array_equal(c, 2 * a))}


def transformers():
    """A small language model, made here: forward, a step back, generated text; half of it through accelerate."""
    import torch as t
    import transformers as hf

    t.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = hf.LlamaForCausalLM(config)
    tokens = t.arange(64).reshape(2, 32) * 7 % 512
    here = model(tokens, labels=tokens).loss
    model = model.to("cuda")
    there = model(tokens.to("cuda"), labels=tokens.to("cuda")).loss
    there.backward()
    model = model.to(t.bfloat16).eval()
    written = model.generate(tokens[:1, :8].to("cuda"), max_new_tokens=8, do_sample=False, pad_token_id=0)
    import accelerate

    device = str(accelerate.Accelerator().device)
    return {
        "version": hf.__version__,
        "accelerate": device,
        "losses": [float(here), float(there)],
        "right": abs(float(here) - float(there)) < 1e-3 and written.shape == (1, 16) and device.startswith("cuda"),
    }


def onnx():
    """onnxruntime's CUDA provider, where this build has it."""
    import numpy as np
    import onnx as o
    import onnxruntime as ort
    from onnx import TensorProto, helper

    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return {"version": ort.__version__, "right": True, "skipped": "no CUDA provider in this build"}
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [N])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [N])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    x = np.arange(N, dtype=np.float32)
    return {
        "version": ort.__version__,
        "right": bool(np.array_equal(session.run(None, {"x": x})[0], 2 * x)),
        "onnx": o.__version__,
    }


report = {"library": sys.argv[1]}
began = time.monotonic()
try:
    report |= globals()[sys.argv[1]]()
    report["ok"] = report["right"]
except BaseException as error:
    last = traceback.extract_tb(error.__traceback__)[-1]
    report |= {
        "ok": False,
        "error": f"{type(error).__name__}: {error}"[:1200],
        "at": f"{last.filename.rpartition('site-packages/')[2]}:{last.lineno}",
    }
report["seconds"] = round(time.monotonic() - began, 1)
print(json.dumps(report), flush=True)
sys.exit(0 if report["ok"] else 1)
