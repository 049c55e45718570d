"""The placement bill: GPU time that was given or asked for and did no work, and what would recover it at least cost.

    lines     what each waiting pod and each idle or under-used slice has lost, and loses per day
    remedies  what would recover it: a released claim, an ended pod, moves, a smaller request

A slice takes from everybody else the larger part of compute and memory of its card: that is what it costs. What it used
is likewise the larger part of the time that the card worked for it and of the memory that it filled while it was at
work. The history is what the node agents publish: since the slice was made.
"""

from egpu.core.bill.lines import Bill, Cause, Line, bill_of, lost_gpu_seconds, summed
from egpu.core.bill.remedies import Remedy, Size, own_remedy, remedies

__all__ = ["Bill", "Cause", "Line", "Remedy", "Size", "bill_of", "lost_gpu_seconds", "own_remedy", "remedies", "summed"]
