"""PyTorch, one operation at a time: a network learns; at the slice's end it gets its OutOfMemoryError, and goes on."""

from program import needed, right

torch = needed("torch")

torch.manual_seed(0)
x = torch.randn(4096, 16, device="cuda")
y = x @ torch.randn(16, 1, device="cuda")
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(100):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

held = []
try:
    while True:
        held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    refused = True
    held.clear()
right(refused and losses[-1] < losses[0] / 4 and float(model(x).isfinite().all()) == 1.0, "torch")
