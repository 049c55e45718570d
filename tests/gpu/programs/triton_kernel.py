"""A kernel in Triton's language, compiled here."""

# pyright: reportInvalidTypeForm=false, reportUnknownParameterType=false

from typing import Any

from program import needed, right

torch, triton = needed("torch"), needed("triton")
tl = needed("triton.language")
N = 100_000


@triton.jit
def add(a: Any, b: Any, c: Any, n: Any, block: tl.constexpr) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(c + at, tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside), mask=inside)


a, b = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
c = torch.empty_like(a)
add[(triton.cdiv(N, 1024),)](a, b, c, N, block=1024)
right(bool((c == a + b).all()), "triton")
