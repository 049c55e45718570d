"""Contexts: how much memory of a card an empty one takes, so that a slice without room for one is noticed when it is
asked for.

The driver chooses the amount, and tells it only by making a context. The interposer measures each one
(`native/interposer/contexts.c`) and refuses those that do not fit. The figures here only warn. They are estimates:
they grow with the number of threads that a card can run at once.
"""

import re
from collections.abc import Iterable
from typing import Final

CONTEXT_MIB: Final = {
    "T4": 84,
    "A30": 232,
    "V100": 332,
    "4090": 400,
    "L40S": 444,
    "A100": 448,
    "H100": 546,
    "H200": 546,
    "GH200": 546,
    "B200": 612,
}
"""By a word of the model's name."""


def context_mib(model: str) -> int:
    """Return the memory of an empty context on a card of this model; 0 if it is not known."""
    return next((CONTEXT_MIB[word] for word in re.split(r"[\s-]+", model) if word in CONTEXT_MIB), 0)


def warning(memory_mib: int, models: Iterable[str]) -> str | None:
    """Return what to tell a user whose slice has no room for a context on any of these cards, or None. `memory_mib` 0:
    memory in proportion to the compute share."""
    least = min(((context_mib(model), model) for model in models), default=(0, ""))
    if not 0 < memory_mib < least[0]:
        return None
    return (
        f"{memory_mib} MiB has no room for a CUDA context, which takes about {least[0]} MiB of a card ({least[1]}): "
        "programs get CUDA_ERROR_OUT_OF_MEMORY when they start. Ask for more memory"
    )
