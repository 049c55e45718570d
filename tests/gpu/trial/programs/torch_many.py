"""PyTorch with more than one process or thread: torch_many.py loader|spawn|nccl|threads. One JSON line."""

import json
import sys
import tempfile
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset


def loader():
    """Workers that fork from a process with a context; copies from pinned memory."""
    torch.ones(1, device="cuda")
    data = TensorDataset(torch.arange(20_000, dtype=torch.float32).reshape(-1, 10))
    total = 0.0
    for _ in range(2):
        for (batch,) in DataLoader(data, batch_size=500, num_workers=2, pin_memory=True):
            total += float(batch.to("cuda", non_blocking=True).double().sum())
    return {"right": total == 2 * sum(range(20_000))}


def child(queue, tensor, size_mib):
    tensor.add_(1)
    mine = torch.ones(size_mib << 18, device="cuda")
    torch.cuda.synchronize()
    queue.put((float(mine.sum()), torch.cuda.mem_get_info()[0] >> 20))


def spawn():
    """A tensor shared with spawned processes by CUDA IPC; each allocates for itself, too."""
    context = torch.multiprocessing.get_context("spawn")
    queue, tensor = context.Queue(), torch.zeros(1 << 20, device="cuda")
    children = [context.Process(target=child, args=(queue, tensor, 128)) for _ in range(2)]
    for each in children:
        each.start()
    answers = [queue.get(timeout=90) for _ in children]
    for each in children:
        each.join(30)
    torch.cuda.synchronize()
    return {
        "right": float(tensor.sum()) == 2 * (1 << 20) and all(answer[0] == 128 << 18 for answer in answers),
        "answers": answers,
    }


def nccl():
    """One rank: NCCL starts, allocates, launches."""
    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("nccl", init_method=f"file://{file.name}x", rank=0, world_size=1)
        x = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()
        dist.destroy_process_group()
    return {"right": bool((x == 1).all())}


def threads():
    """Four threads on streams of their own, two of which capture graphs, thread-locally."""
    wrong = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.zeros(1 << 16, device="cuda")
                for _ in range(2000):
                    x += 1
                stream.synchronize()
                if float(x.sum()) != 2000 * (1 << 16):
                    wrong.append(f"{number}: sum")
        except Exception as error:
            wrong.append(f"{number}: {error}"[:300])

    def capture(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.zeros(1 << 16, device="cuda")
                for _ in range(5):
                    x += 1
                stream.synchronize()
                for _ in range(5):
                    graph = torch.cuda.CUDAGraph()
                    graph.capture_begin(capture_error_mode="thread_local")
                    x += 1
                    graph.capture_end()
                    graph.replay()
                stream.synchronize()
                if float(x.sum()) != 10 * (1 << 16):
                    wrong.append(f"{number}: graph sum {float(x.sum())}")
        except Exception as error:
            wrong.append(f"{number}: {error}"[:300])

    all_of_them = [threading.Thread(target=work, args=(i,)) for i in range(3)] + [
        threading.Thread(target=capture, args=(3,))
    ]
    for each in all_of_them:
        each.start()
    for each in all_of_them:
        each.join()
    return {"right": not wrong, "wrong": wrong}


if __name__ == "__main__":
    report = {"what": sys.argv[1]}
    try:
        report |= {"loader": loader, "spawn": spawn, "nccl": nccl, "threads": threads}[sys.argv[1]]()
        report["ok"] = report["right"]
    except Exception as error:
        report |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:1500]}
    print(json.dumps(report))
    sys.exit(0 if report["ok"] else 1)
