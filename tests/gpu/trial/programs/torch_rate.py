"""Measure PyTorch's calls per second: torch_rate.py WORK SECONDS [START]

WORK: matmul-SIZE, small (eager layers) or graph (the same layers, replayed). START is a time of day at which to begin.
"""

import json
import sys
import time

import torch

work, seconds = sys.argv[1], float(sys.argv[2])
report = {"work": work}
try:
    with torch.no_grad():
        if work.startswith("matmul-"):
            size = int(work.removeprefix("matmul-"))
            a = torch.randn(size, size, device="cuda").to(torch.bfloat16)
            b, out = torch.randn_like(a), torch.empty_like(a)

            def step():
                torch.mm(a, b, out=out)
        else:
            small = torch.randn(64, 256, device="cuda")
            model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(20)]).to("cuda")

            def step():
                model(small)

            step()
            torch.cuda.synchronize()
            if work == "graph":
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    model(small)
                step = graph.replay
        step()
        torch.cuda.synchronize()
        print(json.dumps({"ready": True}), flush=True)
        if len(sys.argv) > 3:  # together with others: all begin at this time of the day
            time.sleep(max(0.0, float(sys.argv[3]) - time.time()))
            report["late_s"] = round(max(0.0, time.time() - float(sys.argv[3])), 2)
        done = [torch.cuda.Event(), torch.cuda.Event()]
        count, rounds, start, warm = 0, 0, time.monotonic(), False
        while not warm or time.monotonic() - start < seconds:
            for _ in range(10):
                step()
            count += 10
            done[rounds & 1].record()
            if rounds:
                done[(rounds & 1) ^ 1].synchronize()
            rounds += 1
            if not warm and time.monotonic() - start > 0.7:
                warm, count, start = True, 0, time.monotonic()
        torch.cuda.synchronize()
        report |= {"ok": True, "per_second": round(count / (time.monotonic() - start), 2)}
except Exception as error:
    report |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:1500]}
print(json.dumps(report))
sys.exit(0 if report["ok"] else 1)
