"""The placement bill: GPU time that was allocated or requested and did no work, and the cheapest way to recover it.

    lines     the lost time of each waiting pod and each idle or under-used slice, so far and per day
    remedies  how to recover it: release a claim, end a pod, move pods, or ask for less

A slice costs the larger part of compute and memory that it takes of its card. It uses the larger part of the card's
busy time and of the memory that it filled while at work. Node agents publish the history since the slice was created.
"""

from egpu.core.bill.lines import Bill, Cause, Line, bill_of, lost_gpu_seconds, summed
from egpu.core.bill.remedies import Remedy, Size, own_remedy, remedies

__all__ = ["Bill", "Cause", "Line", "Remedy", "Size", "bill_of", "lost_gpu_seconds", "own_remedy", "remedies", "summed"]
