"""Other job mixes, made from the trace: other shares of pods without GPU, with part of one, with several, bound to one
model.

Each keeps the number of GPUs asked for about as it is. Pods are drawn with a seed from those of the trace.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from egpu.core.policies.shapes import WHOLE_CARD, Machine, Shape

Pods = list[Shape]


def _draw(pods: Sequence[Shape], random: np.random.Generator, gpu_milli: float) -> Pods:
    """Pods drawn with replacement until they ask for `gpu_milli`."""
    drawn: Pods = []
    while gpu_milli > 0:
        pod = pods[int(random.integers(len(pods)))]
        drawn.append(pod)
        gpu_milli -= pod.gpu_milli
    return drawn


def cpu_only(pods: Pods, percent: int, random: np.random.Generator) -> Pods:
    """The pods without GPU, `percent` of as many."""
    without = [pod for pod in pods if not pod.cards]
    count = len(without) * percent // 100
    chosen = random.integers(len(without), size=count)
    return [pod for pod in pods if pod.cards] + [without[int(place)] for place in chosen]


def _share_of_gpu(pods: Pods, percent: int, random: np.random.Generator, kind: Callable[[Shape], bool]) -> Pods:
    """Pods of a kind ask for `percent` of the GPU, the others for the rest; those without GPU stay."""
    total = sum(pod.gpu_milli for pod in pods)
    chosen = [pod for pod in pods if pod.cards and kind(pod)]
    others = [pod for pod in pods if pod.cards and not kind(pod)]
    part = total * percent / 100
    rest = _draw(others, random, total - part) if percent < 100 else []
    return [pod for pod in pods if not pod.cards] + _draw(chosen, random, part) + rest


def shared(pods: Pods, percent: int, random: np.random.Generator) -> Pods:
    """Shares of one card ask for `percent` of the GPU."""
    return _share_of_gpu(pods, percent, random, lambda pod: pod.cards == 1 and pod.core_milli < WHOLE_CARD)


def several(pods: Pods, percent: int, random: np.random.Generator) -> Pods:
    """Pods with several cards ask for `percent` of the GPU."""
    return _share_of_gpu(pods, percent, random, lambda pod: pod.cards > 1)


def bound(pods: Pods, percent: int, random: np.random.Generator, machines: Sequence[Machine]) -> Pods:
    """`percent` of the pods with GPU accept one model only, drawn by cards from those that can host the pod."""
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
    """Every pod asks for `percent` of its memory, but for no more than some node has that has its cards."""
    most = {cards: max(m.ram_mib for m in machines if m.cards >= cards) for cards in {pod.cards for pod in pods}}
    return [replace(pod, ram_mib=min(pod.ram_mib * percent // 100, most[pod.cards])) for pod in pods]


def all_mixes(pods: Pods, machines: Sequence[Machine], seed: int) -> dict[str, Pods]:
    """Nineteen of them, by name."""
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
