"""torch.compile: Triton's kernels, launched from a graph."""

from typing import Any

from program import needed, right

torch = needed("torch", "triton")


def formula(x: Any) -> Any:
    return (x.sin() * 2 + x.cos()).sum()


compiled = torch.compile(formula, mode="reduce-overhead")
x = torch.randn(1 << 20, device="cuda")
answers = [float(compiled(x)) for _ in range(4)]
right(all(abs(answer - float(formula(x))) < 1.0 for answer in answers), "torch")
