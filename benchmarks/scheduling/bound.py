"""Upper bounds of allocated GPU: two fluid relaxations of placing, as linear programmes.

Pods are divisible, and nodes of one kind are one. *Evenly*: the same part of every shape's arrivals is placed, as much
as fits. *By choice*: refusals are chosen, knowing all arrivals. No policy exceeds the second, and none chooses so
freely, because a pod that fits is placed. A policy exceeds the first where large pods without GPU find no room.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from egpu.core.policies.patterns import solver
from egpu.core.policies.shapes import Machine, Shape


def evenly_percent(machines: Sequence[Machine], arrived: Sequence[Shape]) -> float:
    """Return the allocated GPU, percent of capacity, with the same part of every shape placed."""
    shapes = Counter(arrived)
    model, _ = _programme(machines, list(shapes))
    rows = np.arange(len(shapes), dtype=np.int32)
    for row in rows.tolist():
        model.changeRowBounds(row, 0.0, 0.0)
    asked = sum(shape.gpu_milli * count for shape, count in shapes.items())
    model.addCol(-float(asked), 0.0, 1.0, len(rows), rows, -np.array(list(shapes.values()), dtype=np.float64))
    return _solved(model, machines)


def by_choice_percent(machines: Sequence[Machine], arrived: Sequence[Shape]) -> float:
    """Return the most allocated GPU, percent of capacity."""
    shapes = Counter(arrived)
    model, gpu = _programme(machines, list(shapes))
    for row, count in enumerate(shapes.values()):
        model.changeRowBounds(row, 0.0, float(count))
    for column, amount in enumerate(gpu):
        model.changeColCost(column, -amount)
    return _solved(model, machines)


def _programme(machines: Sequence[Machine], shapes: Sequence[Shape]) -> tuple[Any, list[float]]:
    """Return a programme: a row for the placed pods of each shape, then rows of each kind of node for GPU, CPU and
    memory; a column for each shape on each kind that could have it, with its GPU."""
    kinds = Counter((m.cpu_milli, m.ram_mib, m.cards, m.model) for m in machines)
    highs = solver()
    model: Any = highs.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    limits = [0.0 for _ in shapes]
    limits += [float(a * count) for (cpu, ram, cards, _), count in kinds.items() for a in (1000 * cards, cpu, ram)]
    for limit in limits:
        model.addRow(-highs.kHighsInf, limit, 0, np.zeros(0, dtype=np.int32), np.zeros(0))
    gpu: list[float] = []
    for row, shape in enumerate(shapes):
        for at, (cpu, ram, cards, name) in enumerate(kinds):
            fits = shape.cpu_milli <= cpu and shape.ram_mib <= ram and shape.cards <= cards
            if not fits or (shape.cards and shape.models and name not in shape.models):
                continue
            first = len(shapes) + 3 * at
            rows = np.array([row, first, first + 1, first + 2], dtype=np.int32)
            values = np.array([1.0, shape.gpu_milli, shape.cpu_milli, shape.ram_mib])
            model.addCol(0.0, 0.0, highs.kHighsInf, len(rows), rows, values)
            gpu.append(float(shape.gpu_milli))
    return model, gpu


def _solved(model: Any, machines: Sequence[Machine]) -> float:
    model.run()
    return -100 * model.getInfo().objective_function_value / sum(1000 * machine.cards for machine in machines)
