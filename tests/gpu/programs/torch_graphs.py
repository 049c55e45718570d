"""PyTorch's CUDA graphs: captured with allocations, replayed with other data in the same place."""

from program import needed, right

torch = needed("torch")

place = torch.zeros(1024, 1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):  # what is to be captured has to have run before
    for _ in range(3):
        (place @ place).relu().sum()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    answer = (place @ place).relu().sum()
fine = []
for value in (1.0, 2.0, 3.0):
    place.fill_(value)
    graph.replay()
    fine.append(abs(answer.item() / (1024.0**3 * value * value) - 1) < 1e-3)
right(all(fine), "torch")
