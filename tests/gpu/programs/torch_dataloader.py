"""PyTorch's DataLoader: workers are forked from a process that has a card, and pin memory for it."""

from typing import Any

from program import needed, right

torch = needed("torch")


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index * index)


if __name__ == "__main__":
    on_card = torch.zeros(1, device="cuda", dtype=torch.int64)
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(Squares(), batch_size=50, num_workers=3, pin_memory=True):
            on_card += batch.cuda(non_blocking=True).sum()
    right(int(on_card) == 2 * sum(index * index for index in range(1000)), "torch")
