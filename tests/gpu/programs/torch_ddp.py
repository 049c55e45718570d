"""Distributed data parallel on one card: NCCL with one rank, and two processes of one slice over gloo."""

import os
import tempfile
from typing import Any

from program import needed, right, skip

torch = needed("torch")
distributed = needed("torch.distributed")


def train(rank: int, ranks: int, backend: str, meeting: str, results: Any) -> None:
    distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).cuda(), device_ids=[0])
    torch.manual_seed(rank)  # each has data of its own; the weights stay the same all the same
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(64, 8, device="cuda")).square().mean().backward()
        optimizer.step()
    results.put(model.module.weight.detach().cpu().flatten().tolist())
    distributed.destroy_process_group()


def learned(ranks: int, backend: str) -> list[list[float]]:
    """The weights that each rank came to."""
    spawn = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        results = spawn.SimpleQueue()
        meeting = os.path.join(directory, "meeting")
        torch.multiprocessing.spawn(train, (ranks, backend, meeting, results), nprocs=ranks)
        return [results.get() for _ in range(ranks)]


if __name__ == "__main__":
    if not distributed.is_nccl_available():
        skip("this build of torch has no NCCL")
    ((*alone,),) = learned(1, "nccl")
    one, other = learned(2, "gloo")
    right(len(alone) == 8 and one == other, "torch")
