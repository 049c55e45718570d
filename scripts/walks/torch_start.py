"""PyTorch's start: import, a context, and three steps of training a small network."""

import steps


def start() -> None:
    import torch

    layers = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 10)
    model = torch.nn.Sequential(*layers).cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(128, 64).cuda(), (torch.arange(128) % 10).cuda()
    for _ in range(3):
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    torch.cuda.synchronize()


steps.step("start", start)
