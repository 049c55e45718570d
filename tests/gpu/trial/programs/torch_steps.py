"""Run PyTorch on a card, step by step.

torch_steps.py [--after STEP] [--only STEP,…] [--seconds S] [--device cpu] [--limit MIB] [--small] [--calls]

Each step prints one JSON line when it ends: {"step", "ok", "s", figures, "error": word for word}. The lines are
the same bare, in a slice and over the pool, so that they can be compared. With --small they have sizes for a simulated
card, so that each step takes seconds there. With --calls no number is compared: for cards that skip kernels. `losses`
are hexadecimal floats of a training that gives the same losses everywhere; `digest` is of a result's bits; names that
end with _per_s are rates, those with _gb_s copies.

A step that hangs is ended after its time, with all threads' stacks on stderr (status 4). After an error from which the
card does not recover, the program ends (status 3). Its caller goes on with --after.
"""

import argparse
import faulthandler
import functools
import hashlib
import json
import os
import sys
import time
import traceback

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same kernels every time
BEGAN = time.monotonic()
parser = argparse.ArgumentParser()
parser.add_argument("--after", default="")
parser.add_argument("--only", default="")
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--each", type=float, default=30.0, help="seconds for a step, before it counts as hanging")
parser.add_argument("--device", default="cuda")
parser.add_argument("--limit", type=int, default=0, help="MiB that the slice has; 0: not known")
parser.add_argument("--calls", action="store_true", help="compare no numbers")
parser.add_argument("--small", action="store_true", help="small products, for simulated cards")
options = parser.parse_args()
DEVICE = options.device
GPU = DEVICE == "cuda"
STEPS = []


def say(line):
    print(json.dumps(line, default=str), flush=True)


def step(function):
    STEPS.append(function)
    return function


faulthandler.enable()
faulthandler.dump_traceback_later(max(90, options.each), exit=True)
try:
    import torch
except BaseException as error:
    say(
        {
            "step": "import",
            "ok": False,
            "s": round(time.monotonic() - BEGAN, 2),
            "error": f"{type(error).__name__}: {error}"[:1500],
        }
    )
    sys.exit(5)
IMPORTED = round(time.monotonic() - BEGAN, 2)
F = torch.nn.functional
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False


def wait():
    if GPU:
        torch.cuda.synchronize()


def noise(*shape, seed=0, dtype=torch.float32):
    """Made on the processor, so the same everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + len(shape))).to(dtype)


def digest(tensor):
    return hashlib.sha256(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def right(numbers, why="wrong numbers"):
    assert numbers or options.calls, why


def close(found, expected, within=1e-3):
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    away = float((found - expected).norm() / expected.norm().clamp_min(1e-30))
    right(away <= within, f"{away:.3g} away from the processor's")
    return away


def rate(call, at_once=10):
    """Calls per second, at most two batches ahead of the card."""
    for _ in range(3):
        call()
    wait()
    count, start = 0, time.monotonic()
    while time.monotonic() - start < options.seconds:
        for _ in range(at_once):
            call()
        wait()
        count += at_once
    return round(count / (time.monotonic() - start), 2)


def train(model, optimiser, batches, loss_of, count):
    losses = []
    for i in range(count):
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(model, batches[i % len(batches)])
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    wait()
    return [float(each).hex() for each in torch.stack(losses).double().cpu()]


@step
def start():
    """The first call that needs a context."""
    if not GPU:
        return {"torch": torch.__version__, "import_s": IMPORTED}
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    return {
        "torch": torch.__version__,
        "import_s": IMPORTED,
        "count": torch.cuda.device_count(),
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "shared_optin": properties.shared_memory_per_block_optin,
        "l2": properties.L2_cache_size,
        "total_mib": properties.total_memory >> 20,
        "free_mib": free >> 20,
        "info_total_mib": total >> 20,
        "cudnn": torch.backends.cudnn.version(),
        "arch_list": torch.cuda.get_arch_list(),
    }


@step
def copies():
    x = noise(1000, 7)
    right(torch.equal(x.to(DEVICE).cpu(), x))
    pinned = noise(1 << 20).pin_memory() if GPU else noise(1 << 20)
    back = torch.empty_like(pinned)
    back.copy_(pinned.to(DEVICE, non_blocking=True))
    wait()
    right(torch.equal(back, pinned))


@step
def kernels():
    """PyTorch's own compiled kernels: fill, elementwise, reduction, copy with strides, index, sort, cumsum."""
    x = noise(513, 257)
    there = x.to(DEVICE)
    close(torch.ones(1000, device=DEVICE).sum(), torch.tensor(1000.0), 0)
    close((there * 2 + there.sin()).relu(), (x * 2 + x.sin()).relu(), 1e-6)
    close(there.sum(0), x.double().sum(0), 1e-5)
    close(there.t().contiguous(), x.t(), 0)
    close(there.sort(1).values, x.sort(1).values, 0)
    close(there.cumsum(0), x.cumsum(0), 1e-5)
    close(there[torch.arange(0, 500, 7)], x[torch.arange(0, 500, 7)], 0)
    close(there.softmax(1), x.softmax(1), 1e-6)
    y = torch.arange(1 << 20, device=DEVICE, dtype=torch.int64) * 2654435761
    return {"digest": digest(y)}


@step
def random_numbers():
    """Philox on the card; dropout."""
    torch.manual_seed(7)
    x = torch.randn(1 << 16, device=DEVICE)
    right(abs(float(x.mean())) < 0.05)
    right(abs(float(x.std()) - 1) < 0.05)
    return {"digest": digest(torch.cat([x, F.dropout(x, 0.5)]))}


@step
def cublas():
    a, b = noise(300, 200), noise(200, 100, seed=1)
    found = {"float32": close(a.to(DEVICE) @ b.to(DEVICE), a @ b, 1e-5)}
    for kind, within in ((torch.float64, 1e-12), (torch.float16, 1e-2), (torch.bfloat16, 2e-2)):
        found[str(kind)[6:]] = close(a.to(DEVICE, kind) @ b.to(DEVICE, kind), a.double() @ b.double(), within)
    many = noise(4, 64, 32)
    close(torch.bmm(many.to(DEVICE), many.mT.contiguous().to(DEVICE)), torch.bmm(many, many.mT), 1e-5)
    return {"away": found, "digest": digest(noise(512, 512).to(DEVICE) @ noise(512, 512, seed=3).to(DEVICE))}


@step
def cublaslt():
    layer = torch.nn.Linear(128, 64).to(DEVICE, torch.bfloat16)
    x = noise(32, 128).to(DEVICE, torch.bfloat16)
    with torch.no_grad():
        close(layer(x), x.cpu().double() @ layer.weight.cpu().double().T + layer.bias.cpu().double(), 2e-2)
        return {"digest": digest(F.gelu(layer(x)))}


@step
def cudnn():
    """Convolution and its gradients; with a bias, channels last, half."""
    x, w, along = noise(2, 8, 32, 32), noise(16, 8, 3, 3, seed=1), noise(2, 16, 32, 32, seed=2)
    made = []
    for device in ("cpu", DEVICE):
        inputs = [each.to(device).requires_grad_() for each in (x, w)]
        y = F.conv2d(*inputs, padding=1)
        made.append([y, *torch.autograd.grad(y, inputs, along.to(device))])
    away = [close(there, here, 1e-3) for here, there in zip(*made, strict=False)]
    net = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    ).to(DEVICE)
    half = net.half().to(memory_format=torch.channels_last)(
        x.to(DEVICE, torch.float16).to(memory_format=torch.channels_last)
    )
    right(bool(half.isfinite().all()))
    return {"away": away, "digest": digest(made[1][0])}


@step
def train_mlp():
    """Twenty steps of a small network: the same losses, to the bit, wherever the same libraries run."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 10)
    ).to(DEVICE)
    batches = [(noise(128, 64, seed=i).to(DEVICE), (torch.arange(128) * (i + 3) % 10).to(DEVICE)) for i in range(4)]
    return {
        "losses": train(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-3),
            batches,
            lambda m, b: F.cross_entropy(m(b[0]), b[1]),
            20,
        )
    }


@step
def train_cnn():
    """The same with convolutions, pooling, batch normalisation."""
    many = 8 if options.small else 32
    torch.manual_seed(2)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    ).to(DEVICE)
    batches = [
        (noise(many, 3, many, many, seed=i).to(DEVICE), (torch.arange(many) * (i + 3) % 10).to(DEVICE))
        for i in range(2)
    ]
    return {
        "losses": train(
            model,
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            batches,
            lambda m, b: F.cross_entropy(m(b[0]), b[1]),
            10,
        )
    }


@step
def train_transformer():
    """An encoder layer in bfloat16: cuBLASLt, attention kernels, AdamW's foreach kernels."""
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dropout=0.0)
    model = layer.to(DEVICE, torch.bfloat16)
    batches = [noise(4, 64, 256, seed=i).to(DEVICE, torch.bfloat16) for i in range(2)]
    return {
        "losses": train(
            model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches, lambda m, b: m(b).float().square().mean(), 6
        )
    }


@step
def attention():
    """Each way that PyTorch has: flash, memory-efficient, cuDNN's."""
    found = {}
    q, k, v = (noise(2, 4, 128, 64, seed=i).to(DEVICE, torch.float16 if GPU else torch.float32) for i in range(3))
    expected = F.scaled_dot_product_attention(*(each.cpu().double() for each in (q, k, v)), is_causal=True)
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        if not GPU and name != "MATH":
            continue
        try:
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, name)):
                found[name] = close(F.scaled_dot_product_attention(q, k, v, is_causal=True), expected, 1e-2)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:300]
    if [name for name, said in found.items() if isinstance(said, str)]:
        raise RuntimeError(json.dumps(found))
    return {"away": found}


@step
def fft():
    x = torch.complex(noise(8, 1000), noise(8, 1000, seed=1))
    return {"away": close(torch.view_as_real(torch.fft.fft(x.to(DEVICE))), torch.view_as_real(torch.fft.fft(x)), 1e-5)}


@step
def solvers():
    """cuSOLVER's dense functions by type, cuBLAS's triangular systems."""
    a, b = noise(64, 64).double() + 20 * torch.eye(64).double(), noise(64, 3).double()
    there = a.to(DEVICE)
    close(torch.linalg.solve(there, b.to(DEVICE)), torch.linalg.solve(a, b), 1e-9)
    close(torch.linalg.cholesky(there @ there.T), torch.linalg.cholesky(a @ a.T), 1e-9)
    close(torch.linalg.svdvals(there), torch.linalg.svdvals(a), 1e-9)


@step
def eigen():
    """cuSOLVER's functions of 64 bits, to which PyTorch gives no parameters (NULL)."""
    a = noise(64, 64).double()
    there = a.to(DEVICE)
    close(torch.linalg.eigvalsh(there + there.T), torch.linalg.eigvalsh(a + a.T), 1e-9)
    close(torch.linalg.eigh(there + there.T).eigenvalues, torch.linalg.eigvalsh(a + a.T), 1e-9)
    close(torch.linalg.qr(there).R.abs(), torch.linalg.qr(a).R.abs(), 1e-9)
    b = noise(64, 3, seed=1).double()
    close(torch.linalg.lstsq(there, b.to(DEVICE)).solution, torch.linalg.lstsq(a, b).solution, 1e-6)


@step
def nvrtc():
    """Kernels that PyTorch compiles while it runs: complex and special functions, its own compiler for programs."""
    if not GPU:
        return
    x = noise(1000)
    close(torch.special.bessel_j0(x.to(DEVICE)), torch.special.bessel_j0(x), 1e-5)
    kernel = torch.cuda._compile_kernel(
        'extern "C" __global__ void add(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }', "add"
    )
    y = torch.zeros(10, device=DEVICE)
    kernel((1, 1, 1), (32, 1, 1), (y, 10))
    right(float(y.sum()) == 10)


@step
def sparse():
    a = noise(200, 300) * (noise(200, 300, seed=5) > 1)
    b = noise(300, 20, seed=6)
    return {"away": close(a.to(DEVICE).to_sparse_csr() @ b.to(DEVICE), a @ b, 1e-5)}


@step
def streams_and_events():
    if not GPU:
        return None
    began, ended, stream = (
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Stream(),
    )
    size = 128 if options.small else 4096
    a = torch.randn(size, size, device=DEVICE)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        a @ a
        began.record()
        for _ in range(5):
            a @ a
        ended.record()
    wait()
    return {"five_products_ms": round(began.elapsed_time(ended), 3)}


@step
def graph():
    """PyTorch's CUDA graphs, with its private pool."""
    if not GPU:
        return None
    x = torch.zeros(64, 256, device=DEVICE)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(10)]).to(DEVICE)
    side = torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(x)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            out = model(x)
        x.copy_(noise(64, 256))
        captured.replay()
        wait()
        close(out, model(noise(64, 256).to(DEVICE)), 1e-5)
        return {"replays_per_s": rate(captured.replay)}


@step
def triton():
    if not GPU:
        return None
    import triton as t
    import triton.language as tl

    globals()["tl"] = tl

    @t.jit
    def add(a, b, c, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(c + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n)

    a, b = noise(100_000).to(DEVICE), noise(100_000, seed=1).to(DEVICE)
    c = torch.empty_like(a)
    add[(98,)](a, b, c, 100_000, block=1024)
    close(c, (a + b).cpu(), 0)
    return {"triton": t.__version__}


@step
def out_of_memory():
    """Its own error at the limit, the right one, and it goes on."""
    if not GPU:
        return None
    held, kind, said = [], "", ""
    free, _total = torch.cuda.mem_get_info()
    if not options.limit:  # not in a slice: a little is enough
        return {"skipped": "no limit", "free_mib": free >> 20}
    before = torch.cuda.memory_reserved()
    try:
        while len(held) < 100_000:
            held.append(torch.empty(32 << 20, dtype=torch.uint8, device=DEVICE))
    except torch.cuda.OutOfMemoryError as error:
        kind, said = "OutOfMemoryError", str(error)
    except RuntimeError as error:
        kind, said = type(error).__name__, str(error)
    wait()
    given = torch.cuda.memory_reserved()
    held.clear()
    torch.cuda.empty_cache()
    a = torch.ones(1024, 1024, device=DEVICE)
    right(float((a @ a)[0, 0]) == 1024.0)
    assert kind == "OutOfMemoryError", said
    assert given <= options.limit << 20, f"{given >> 20} MiB were given"
    return {
        "given_mib": given >> 20,
        "reserved_before_mib": before >> 20,
        "short_by_mib": options.limit - (given >> 20),
        "message": said[:300],
    }


# ---- how fast


@step
def speed_products():
    found = {}
    for size, at_once in ((1024, 100), (8192, 5)) if GPU and not options.small else ((256, 10),):
        a = torch.randn(size, size, device=DEVICE).to(torch.bfloat16)
        b, out = torch.randn_like(a), torch.empty_like(a)
        found[f"matmul_{size}_per_s"] = rate(functools.partial(torch.mm, a, b, out=out), at_once)
    return found


@step
def speed_small():
    """Launch-bound: twenty small layers, eager."""
    x = torch.randn(64, 256, device=DEVICE)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(20)]).to(DEVICE)
    with torch.no_grad():
        return {"small_per_s": rate(lambda: model(x))}


@step
def speed_train():
    """A transformer as large as makes the card work, with AdamW."""
    if not GPU:
        return None
    wide, many = (64, 2) if options.small else (1024, 16)
    layer = torch.nn.TransformerEncoderLayer(wide, many, 4 * wide, batch_first=True, dropout=0.0)
    layer = layer.to(DEVICE, torch.bfloat16)
    tokens = torch.randn(8, wide // 2, wide, device=DEVICE).to(torch.bfloat16)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-4)

    def once():
        optimiser.zero_grad(set_to_none=True)
        layer(tokens).float().square().mean().backward()
        optimiser.step()

    return {"train_per_s": rate(once, 5)}


@step
def speed_copies():
    if not GPU:
        return None
    found = {}
    plain, pinned, there = (
        torch.empty(64 << 20, dtype=torch.uint8),
        torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True),
        torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE),
    )
    plain.fill_(1), pinned.fill_(2)
    for name, call in (
        ("to_plain", lambda: there.copy_(plain)),
        ("from_plain", lambda: plain.copy_(there)),
        ("to_pinned", lambda: there.copy_(pinned, non_blocking=True)),
        ("from_pinned", lambda: pinned.copy_(there, non_blocking=True)),
    ):
        best = 1e9
        for _ in range(5):
            wait()
            at = time.monotonic()
            call()
            wait()
            best = min(best, time.monotonic() - at)
        found[f"{name}_gb_s"] = round((64 << 20) / best / 1e9, 2)
    return found


@step
def torch_compile():
    def compute(x):
        y = torch.sin(x) * x + torch.relu(x).exp()
        return y.softmax(1), x.var(0), y @ x.T

    x = noise(256, 256)
    torch._dynamo.reset()
    for one, two in zip(torch.compile(compute)(x.to(DEVICE)), compute(x), strict=False):
        close(one, two, 1e-4)


def recovers():
    """Whether the card still answers."""
    try:
        wait()
        return not GPU or float(torch.zeros(1).to(DEVICE).cpu()) == 0
    except Exception:
        return False


only = set(filter(None, options.only.split(",")))
names = [each.__name__ for each in STEPS]
if options.after:
    STEPS = STEPS[names.index(options.after) + 1 :]
for each in STEPS:
    name = each.__name__
    if only and name not in only:
        continue
    say({"begins": name})
    faulthandler.dump_traceback_later(options.each, exit=True)
    at = time.monotonic()
    line = {"step": name, "ok": True}
    try:
        line |= each() or {}
        wait()
    except Exception as error:
        frames = [
            f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
        ][-3:]
        said = f"{type(error).__name__}: {error}"
        line |= {"ok": False, "error": said if len(said) < 1500 else f"{said[:500]} […] {said[-900:]}", "at": frames}
    line["s"] = round(time.monotonic() - at, 3)
    if GPU and line["ok"]:
        line["reserved_mib"] = torch.cuda.memory_reserved() >> 20
    say(line)
    if not line["ok"] and not recovers():
        say({"step": f"after {name}", "ok": False, "error": "the card does not answer any more in this process"})
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        os._exit(3)
faulthandler.cancel_dump_traceback_later()
sys.stdout.flush()
os._exit(0)  # what a runtime does at the end of a process is not what is tried here
