"""Test PyTorch on a card, in small steps, each of them passed or failed by name.

    torch_steps.py MODEL MEMORY_MIB [STORE RANK]

MODEL and MEMORY_MIB are the expected values of the card. STORE and RANK make it one of two ranks, which meet in that
file, and nothing else. Each step prints `step NAME: passed`, or the reason; the next one follows in the same process.
Imports only PyTorch and its dependencies: its interpreter has none of our packages.
"""

import copy
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._inductor.config
import triton.language as tl
import triton_kernels as kernels
from torch.nn import functional

Step = Callable[[], None]
MIB = 1 << 20
RANK_SECONDS = 300.0
MODEL, MEMORY_BYTES = sys.argv[1], int(sys.argv[2]) * MIB
STEPS: list[Step] = []


def step(function: Step) -> Step:
    """Register a step; a false assertion or any error in it fails it."""
    STEPS.append(function)
    return function


@contextmanager
def refused(*words: str) -> Generator[None]:
    """Expect an error with one of these words from the block, and check that the card still works."""
    try:
        yield
        torch.cuda.synchronize()
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        print(f"refused: {said}", file=sys.stderr)
        assert any(word in said for word in words), f"the error says: {said}"
    else:
        raise AssertionError("no error")
    assert numbers(3).cuda().cpu().tolist() == [0, 1, 2], "nothing works after it"


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return 0, 1, 2, … in host memory."""
    count = 1
    for each in shape:
        count *= each
    return torch.arange(count, dtype=dtype).reshape(shape)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether the numbers on the card are those."""
    return torch.allclose(found.cpu(), expected)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal random numbers in host memory, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def columns(matrix: torch.Tensor) -> torch.Tensor:
    """Put it on the card, already by columns, as cuSOLVER needs: otherwise a kernel of PyTorch converts it there."""
    return matrix.mT.contiguous().cuda().mT


def room(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return empty memory of the card."""
    return torch.empty(*shape, dtype=dtype, device="cuda")


@contextmanager
def compiler() -> Generator[None]:
    """Use `torch.compile` without the steps that run PyTorch's own kernels while it compiles."""
    torch.compiler.reset()
    with torch._inductor.config.patch(compile_threads=1, joint_graph_constant_folding=False):
        yield


def trains(model: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor]) -> None:
    """Check that three steps of AdamW on the card, compiled whole, have the processor's losses."""
    there = copy.deepcopy(model).cuda()
    here_steps, there_steps = (torch.optim.AdamW(each.parameters(), lr=0.01) for each in (model, there))
    compiled, update = torch.compile(lambda: loss(there)), torch.compile(there_steps.step)
    one = torch.ones(()).cuda()  # backward() alone would make it with a kernel of PyTorch's
    for _ in range(3):
        expected, found = loss(model), compiled()
        assert torch.allclose(found.cpu(), expected, rtol=2e-3), (found, expected)
        expected.backward()
        found.backward(one)
        here_steps.step()
        update()
        for each in (here_steps, there_steps):
            each.zero_grad(set_to_none=True)


def exchange(store: torch.distributed.Store, *, rank: int, ranks: int) -> None:
    """Exchange gradients as a rank of data-parallel training."""
    torch.distributed.init_process_group("nccl", store=store, rank=rank, world_size=ranks)
    mine = (numbers(1000) + rank).cuda()
    torch.distributed.all_reduce(mine)
    assert same(mine, ranks * numbers(1000) + sum(range(ranks)))
    every = [torch.empty_like(mine) for _ in range(ranks)]
    torch.distributed.all_gather(every, (numbers(1000) + rank).cuda())
    assert all(same(each, numbers(1000) + other) for other, each in enumerate(every))
    torch.distributed.broadcast(mine, ranks - 1)
    torch.distributed.destroy_process_group()


@step
def available() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1


@step
def properties() -> None:
    found = torch.cuda.get_device_properties(0)
    assert found.name == MODEL == torch.cuda.get_device_name(), found.name
    assert found.total_memory == MEMORY_BYTES, found.total_memory
    assert (found.major, found.minor) == torch.cuda.get_device_capability()
    assert found.multi_processor_count > 0
    assert found.warp_size == 32


@step
def memory() -> None:
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total == MEMORY_BYTES, (free, total)
    block = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == block.numel()
    assert free - torch.cuda.mem_get_info()[0] >= block.numel()


@step
def out_of_memory() -> None:
    try:
        torch.empty(2 * MEMORY_BYTES, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return
    raise AssertionError("twice what there is was given")


@step
def copies() -> None:
    expected = numbers(1000, 7)
    there = expected.to("cuda")
    assert same(there, expected)
    assert same(there.clone(), expected)
    into = torch.empty_like(there)
    into.copy_(there, non_blocking=True)
    assert same(into[100:200], expected[100:200])


@step
def zeros() -> None:
    assert same(torch.zeros(1000, 7, device="cuda"), torch.zeros(1000, 7))


@step
def pinned_memory() -> None:
    source = numbers(1 << 20).pin_memory()
    assert source.is_pinned()
    back = torch.empty_like(source, pin_memory=True)
    back.copy_(source.to("cuda", non_blocking=True), non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, source)


@step
def streams_and_events() -> None:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    expected = numbers(1 << 16)
    with torch.cuda.stream(stream):
        began.record()
        there = expected.pin_memory().to("cuda", non_blocking=True)
        ended.record()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    assert stream.query()
    assert began.elapsed_time(ended) >= 0
    assert same(there, expected)


@step
def cublas() -> None:
    a, b = numbers(5, 7), numbers(7, 3)
    assert same(a.cuda() @ b.cuda(), a @ b)
    assert same(torch.mv(a.cuda(), numbers(7).cuda()), torch.mv(a, numbers(7)))
    many = numbers(4, 5, 7)
    assert same(torch.bmm(many.cuda(), many.mT.contiguous().cuda()), torch.bmm(many, many.mT))


@step
def cublas_half() -> None:
    a, b = numbers(8, 16), numbers(16, 8) / 64
    for dtype in (torch.float16, torch.bfloat16):
        found = a.to(dtype).cuda() @ b.to(dtype).cuda()
        assert torch.allclose(found.cpu().float(), a @ b, rtol=0.05), dtype


@step
def cublaslt_bias() -> None:
    layer = torch.nn.Linear(16, 8)
    x = numbers(4, 16) / 64
    expected = layer(x)
    with torch.no_grad():
        assert torch.allclose(layer.cuda()(x.cuda()).cpu(), expected, atol=1e-5)


@step
def kernel_without_ptx() -> None:
    with refused("no kernel image is available"):
        torch.ones(4, device="cuda")


@step
def cpu_goes_on() -> None:
    x = torch.zeros(4, requires_grad=True)
    (x + 1).square().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2, 2]


@step
def nvrtc_kernel() -> None:
    source = 'extern "C" __global__ void add(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }'
    kernel = torch.cuda._compile_kernel(source, "add")
    x = numbers(10).cuda()
    kernel((1, 1, 1), (32, 1, 1), (x, 10))
    assert same(x, numbers(10) + 1)


@step
def triton_elementwise() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, y, out = noise(5000, dtype=dtype), noise(5000, dtype=dtype), room(5000, dtype=dtype)
        kernels.add[(5,)](x.cuda(), y.cuda(), out, 5000, block=1024)
        assert torch.equal(out.cpu(), x + y), dtype


@step
def triton_reductions() -> None:
    x, out = noise(8, 200), room(8, 200)
    kernels.softmax[(8,)](x.cuda(), out, 200, block=256)
    assert torch.allclose(out.cpu(), x.softmax(1), atol=1e-6)
    weight, bias = noise(200), noise(200) + 1
    kernels.layer_norm[(8,)](x.cuda(), weight.cuda(), bias.cuda(), out, 200, 1e-5, block=256)
    assert torch.allclose(out.cpu(), functional.layer_norm(x, (200,), weight, bias), atol=1e-4)


@step
def triton_products() -> None:
    """Multiply on every kind of tensor core, with and without prefetched tiles."""
    for dtype, sums, within in (
        (torch.float32, tl.float32, 3e-2),
        (torch.float16, tl.float32, 1e-3),
        (torch.bfloat16, tl.float32, 1e-3),
        (torch.float16, tl.float16, 5e-2),
        (torch.float64, tl.float64, 1e-12),
        (torch.int8, tl.int32, 0),
    ):
        whole = dtype == torch.int8
        a, b = ((noise(*shape) * (40 if whole else 1)).to(dtype) for shape in ((100, 72), (72, 80)))
        expected = a.double() @ b.double()
        for stages in (1, 3):
            out = room(
                100, 80, dtype=torch.int32 if whole else torch.float64 if dtype == torch.float64 else torch.float32
            )
            kernels.product[(2, 2)](
                a.cuda(), b.cuda(), out, 100, 80, 72, tile=64, step=32, sums=sums, num_stages=stages
            )
            assert torch.allclose(out.cpu().double(), expected, rtol=within, atol=within), (dtype, sums, stages)


@step
def triton_attention() -> None:
    for dtype, stages in ((torch.float16, 1), (torch.float16, 2), (torch.bfloat16, 3)):
        q, k, v = (noise(128, 64, dtype=dtype) for _ in range(3))
        out = room(128, 64, dtype=dtype)
        kernels.attention[(2,)](q.cuda(), k.cuda(), v.cuda(), out, 128, 0.125, tile=64, width=64, num_stages=stages)
        expected = (q.float() @ k.float().T * 0.125).softmax(1) @ v.float()
        assert torch.allclose(out.cpu().float(), expected, atol=2e-2), dtype


@step
def triton_order() -> None:
    x, ordered, summed, greatest = noise(256), room(256), room(256), room(1, dtype=torch.int32)
    kernels.order[(1,)](x.cuda(), ordered, summed, greatest, block=256)
    assert torch.equal(ordered.cpu(), x.sort()[0])
    assert torch.allclose(summed.cpu(), x.cumsum(0), atol=1e-4)
    assert greatest.item() == x.argmax()


@step
def triton_atomics() -> None:
    for dtype in (torch.int32, torch.float32, torch.float16):
        x, sums = (numbers(1000) % 5).to(dtype), torch.zeros(7, dtype=dtype).cuda()
        kernels.count[(4,)](x.cuda(), sums, 1000, block=256)
        assert sums.cpu().tolist() == [x[at::7].sum().item() for at in range(7)], dtype


@step
def compiled_functions() -> None:
    def compute(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sin(x) * x + torch.relu(x).exp()
        return y, y.softmax(1), x.sum(), x.var(0), x.cumsum(1), x.argmax(1), x.T.contiguous()

    x = noise(64, 100)
    with compiler():
        found = torch.compile(compute)(x.cuda())
    for one, two in zip(found, compute(x), strict=True):
        assert torch.allclose(one.cpu(), two, rtol=1e-4, atol=1e-4)


@step
def compiled_training() -> None:
    layers = torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
    x, y = noise(32, 64), torch.arange(32) % 10
    with compiler():
        trains(torch.nn.Sequential(*layers), lambda m: functional.cross_entropy(m(x.to(home(m))), y.to(home(m))))


def home(model: torch.nn.Module) -> torch.device:
    """Return its device."""
    return next(model.parameters()).device


class Transformer(torch.nn.Module):
    """A decoder of one block that predicts the next of 50 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 64)
        self.before, self.behind = torch.nn.LayerNorm(64), torch.nn.LayerNorm(64)
        self.attended, self.joined = torch.nn.Linear(64, 3 * 64), torch.nn.Linear(64, 64)
        self.wide = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
        self.last = torch.nn.Linear(64, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        many, length, width = x.shape
        parts = self.attended(self.before(x)).chunk(3, -1)
        q, k, v = (part.view(many, length, 4, -1).transpose(1, 2) for part in parts)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        score = (q @ k.transpose(-1, -2) / 4).masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.joined((score @ v).transpose(1, 2).reshape(many, length, width))
        return self.last(x + self.wide(self.behind(x)))


@step
def compiled_transformer() -> None:
    tokens = torch.arange(34).reshape(2, 17) * 7 % 50

    def loss(model: torch.nn.Module) -> torch.Tensor:
        there = tokens.to(home(model))
        return functional.cross_entropy(model(there[:, :-1]).flatten(0, 1), there[:, 1:].flatten())

    with compiler():
        trains(Transformer(), loss)


@step
def cudnn() -> None:
    assert torch.backends.cudnn.version() > 0
    x, weight, along = numbers(2, 4, 8, 8) / 512, numbers(6, 2, 3, 3) / 108, numbers(2, 6, 4, 4) / 192
    made: list[list[torch.Tensor]] = []
    for device in ("cpu", "cuda"):
        inputs = [each.to(device).requires_grad_() for each in (x, weight)]
        y = torch.nn.functional.conv2d(*inputs, stride=2, padding=1, groups=2)
        made.append([y, *torch.autograd.grad(y, inputs, along.to(device))])
    assert all(torch.allclose(there.cpu(), here, atol=1e-5) for here, there in zip(*made, strict=True))


@step
def cudnn_attention() -> None:
    """Run forward and back, as cuDNN has it in graphs with the scale and the mask's value in host memory."""
    shape, cudnn = (2, 3, 16, 32), torch.nn.attention.SDPBackend.CUDNN_ATTENTION
    given = [((numbers(*shape) * factor) % 17 / 17 - 0.5).half() for factor in (1, 3, 5, 7)]
    made: list[list[torch.Tensor]] = []
    for device, kind, way in (("cpu", torch.float32, torch.nn.attention.SDPBackend.MATH), ("cuda", torch.half, cudnn)):
        *inputs, along = (each.to(kind).to(device) for each in given)
        inputs = [each.requires_grad_() for each in inputs]
        with torch.nn.attention.sdpa_kernel(way):
            y = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        made.append([y, *torch.autograd.grad(y, inputs, along)])
    assert all(torch.allclose(there.cpu().float(), here, atol=1e-2) for here, there in zip(*made, strict=True))


@step
def cufft() -> None:
    x = torch.complex(numbers(4, 30), numbers(4, 30))
    assert torch.allclose(torch.fft.fft(x.cuda()).cpu(), torch.fft.fft(x), atol=1e-3)


@step
def cusolver() -> None:
    """Run PyTorch's functions of it that use no kernels of its own."""
    for real in (True, False):
        a, b, c = (x if real else torch.complex(x, x.flip(0)) for x in (noise(7, 4), noise(7, 2), noise(4, 4)))
        factors, tau = torch.geqrf(a)
        there = torch.geqrf(columns(a))
        assert same(there[0], factors)
        assert same(there[1], tau)
        assert same(torch.linalg.householder_product(*there), torch.linalg.householder_product(factors, tau))
        assert same(torch.ormqr(*there, columns(b)), torch.ormqr(factors, tau, b))
        factor = torch.linalg.cholesky(c @ c.mH + 4 * torch.eye(4))
        assert same(torch.cholesky_solve(columns(b[:4]), columns(factor)), torch.cholesky_solve(b[:4], factor))


@step
def cusparse() -> None:
    index = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0])
    matrix = torch.sparse_csr_tensor(*index, size=(2, 2), check_invariants=False).cuda()
    with refused("cusparse"):
        matrix @ numbers(2, 2).cuda()


@step
def nccl() -> None:
    exchange(torch.distributed.HashStore(), rank=0, ranks=1)


@step
def nccl_two_ranks() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", *sys.argv[:3], str(Path(folder, "store"))]
        ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
        assert [rank.wait(RANK_SECONDS) for rank in ranks] == [0, 0]


@step
def profiler() -> None:
    with torch.profiler.profile() as profile:
        numbers(1 << 10).cuda()
    assert profile.events()


@step
def graph() -> None:
    """Run last, because a failure leaves its stream within a capture, where nothing else works."""
    a = numbers(8, 8).cuda()
    out = torch.empty(8, 8, device="cuda")
    torch.mm(a, a, out=out)  # the library's workspace is there before the capture
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        torch.mm(a, a, out=out)
    a.copy_(torch.eye(8))
    captured.replay()
    assert same(out, torch.eye(8))


if len(sys.argv) > 3:  # one of two ranks
    exchange(torch.distributed.FileStore(sys.argv[3], 2), rank=int(sys.argv[4]), ranks=2)
    sys.exit()
with tempfile.TemporaryDirectory() as caches:
    os.environ |= {"TRITON_CACHE_DIR": caches, "TORCHINDUCTOR_CACHE_DIR": caches}
    for each in STEPS:
        name = each.__name__.replace("_", " ")
        try:
            each()
            print(f"step {name}: passed", flush=True)
        except Exception as error:
            print(f"step {name}: {type(error).__name__}: {(str(error) or 'no reason').splitlines()[0]}", flush=True)
