"""Other job mixes, made from the trace: other shares of pods without GPU, with a part of one, with several, or for one
model only.

Each requests about as many GPUs as the trace. Pods are drawn from it with a seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from egpu.core.policies.shapes import WHOLE_CARD, Machine, Shape

Pods = list[Shape]


def _draw(pods: Sequence[Shape], random: np.random.Generator, gpu_milli: float) -> Pods:
    """Draw pods with replacement until they request `gpu_milli`."""
    drawn: Pods = []
    while gpu_milli > 0:
        pod = pods[int(random.integers(len(pods)))]
        drawn.append(pod)
        gpu_milli -= pod.gpu_milli
    return drawn


def cpu_only(pods: Pods, percent: int, random: np.random.Generator) -> Pods:
    """Return `percent` of the number of pods, without GPU."""
    without = [pod for pod in pods if not pod.cards]
    count = len(without) * percent // 100
    chosen = random.integers(len(without), size=count)
    return [pod for pod in pods if pod.cards] + [without[int(place)] for place in chosen]


def _share_of_gpu(pods: Pods, percent: int, random: np.random.Generator, kind: Callable[[Shape], bool]) -> Pods:
    """Let pods of a kind request `percent` of the GPU, the others the rest; keep those without GPU."""
    total = sum(pod.gpu_milli for pod in pods)
    chosen = [pod for pod in pods if pod.cards and kind(pod)]
    others = [pod for pod in pods if pod.cards and not kind(pod)]
    part = total * percent / 100
    rest = _draw(others, random, total - part) if percent < 100 else []
    return [pod for pod in pods if not pod.cards] + _draw(chosen, random, part) + rest


def shared(pods: Pods, percent: int, random: np.random.Generator) -> Pods:
    """Let shares of one card request `percent` of the GPU."""
    return _share_of_gpu(pods, percent, random, lambda pod: pod.cards == 1 and pod.core_milli < WHOLE_CARD)


def several(pods: Pods, percent: int, random: np.random.Generator) -> Pods:
    """Let pods with several cards request `percent` of the GPU."""
    return _share_of_gpu(pods, percent, random, lambda pod: pod.cards > 1)


def bound(pods: Pods, percent: int, random: np.random.Generator, machines: Sequence[Machine]) -> Pods:
    """Let `percent` of the pods with GPU accept one model only, drawn by cards from those that can host the pod."""
    result: Pods = []
    for pod in pods:
        if not pod.cards or random.random() * 100 >= percent:
            result.append(pod)
            continue
        able = [
            m for m in machines if m.cards >= pod.cards and m.cpu_milli >= pod.cpu_milli and m.ram_mib >= pod.ram_mib
        ]
        weights = np.array([machine.cards for machine in able], dtype=float)
        chosen = able[int(random.choice(len(able), p=weights / weights.sum()))]
        result.append(replace(pod, models=(chosen.model,)))
    return result


def hungry(pods: Pods, percent: int, machines: Sequence[Machine]) -> Pods:
    """Let every pod request `percent` of its memory, at most the memory of a node that has its cards."""
    most = {cards: max(m.ram_mib for m in machines if m.cards >= cards) for cards in {pod.cards for pod in pods}}
    return [replace(pod, ram_mib=min(pod.ram_mib * percent // 100, most[pod.cards])) for pod in pods]


def all_mixes(pods: Pods, machines: Sequence[Machine], seed: int) -> dict[str, Pods]:
    """Return all nineteen, by name."""
    made: dict[str, Pods] = {}
    for percent in (0, 50, 200, 250, 300, 400):
        made[f"cpu{percent:03}"] = cpu_only(pods, percent, np.random.default_rng([seed, 1, percent]))
    for percent in (40, 60, 80, 100):
        made[f"shared{percent:03}"] = shared(pods, percent, np.random.default_rng([seed, 2, percent]))
    for percent in (20, 30, 40, 50):
        made[f"several{percent:03}"] = several(pods, percent, np.random.default_rng([seed, 3, percent]))
    for percent in (10, 20, 25, 33):
        made[f"bound{percent:03}"] = bound(pods, percent, np.random.default_rng([seed, 4, percent]), machines)
    made["mem200"] = hungry(pods, 200, machines)
    return made
